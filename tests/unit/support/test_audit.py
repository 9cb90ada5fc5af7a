# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Reading the API server's audit log while it is being written."""

from __future__ import annotations

import json

from cluster.audit import WRITES, read


def line(verb: str, uri: str = "/api/v1/nodes/gpu-0", stage: str = "ResponseComplete") -> str:
    return json.dumps(
        {
            "stage": stage,
            "requestReceivedTimestamp": "2026-01-01T00:00:00.000001Z",
            "stageTimestamp": "2026-01-01T00:00:01.000001Z",
            "user": {"username": "u"},
            "verb": verb,
            "requestURI": uri,
            "objectRef": {"resource": "pods", "subresource": "eviction", "name": "p", "namespace": "n"},
            "responseStatus": {"code": 201},
        }
    )


def test_read(tmp_path):
    log = tmp_path / "audit.log"
    lines = [line("get"), line("patch", "/api/v1/nodes/gpu-0?dryRun=All"), line("watch", stage="ResponseStarted"), line("create")]
    log.write_text("\n".join(lines) + '\n{"stage": "Resp')
    assert [entry.verb for entry in read(log)] == ["get", "patch", "create"]
    assert [entry.dry_run for entry in read(log, verb=WRITES)] == [True, False]
    assert len(read(log, verb="create", resource="pods/eviction", user="u", name="p", code=201, since="2026")) == 1
    assert {(entry.time, entry.answered) for entry in read(log)} == {("2026-01-01T00:00:00.000001Z", "2026-01-01T00:00:01.000001Z")}
    for other in ({"verb": "delete"}, {"resource": "pods"}, {"user": "v"}, {"name": "q"}, {"code": 200}, {"since": "2027"}):
        assert read(log, **other) == []
