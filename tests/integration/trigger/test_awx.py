# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The rulebook that lets AWX run the playbooks, in the real ansible-rulebook, against an AWX of the tests."""

from __future__ import annotations

import json

import awx
import pytest
from awx import Awx
from canaries import poisoned, touching, with_one_to_hold
from cluster.objects import wait_until
from loop import Controller
from trigger import Rulebook, request


@pytest.mark.timeout(300)
def test_only_ids_reach_awx(tmp_path):
    """S1: rows of the inbox, and nothing of the event or its alerts beside them, whatever each of their fields says."""
    canary = touching(tmp_path / "canary")
    with Controller(tmp_path / "controller") as controller, Awx("gpuops remediate", "gpuops reconcile").running() as server:
        rulebook = Rulebook(controller, name="gpu_alerts_awx", gpuops_trigger_window_seconds=0.1)
        rulebook.environment = {
            "EDA_CONTROLLER_URL": server.url,
            "EDA_CONTROLLER_TOKEN": awx.TOKEN,
            "EDA_JOB_TEMPLATE_REFRESH_DELAY": "0.2",
        }
        fires = controller.alert("gpu-1", None, 79, gpu_uuid="GPU-5f0c1a52-6a8d-4f0e-9f0e-3c1d4e8a2b11")
        ended = controller.alert("gpu-2", None, 79, recording="resolved-single")
        for message, poison in ((fires, with_one_to_hold), (ended, poisoned)):
            message.write_text(json.dumps(poison(json.loads(message.read_text()), canary)))
        with rulebook.running():
            rows = []
            for number, message in enumerate((fires, ended), 1):
                rows.append(rulebook.post(message))
                wait_until(lambda number=number: len(server.launches) == number, "the job", 60)
            refused = request(rulebook.variables["gpuops_trigger_port"], "POST", "/alerts", b"{")
            wait_until(lambda: len(server.launches) == 3, "the job for a message that was refused", 60)
            wait_until(lambda: server.ended == {1, 2, 3}, "the look at their ends", 60)
        assert refused[0] == 400
        assert server.launches == [
            ("gpuops remediate", {"extra_vars": {"gpuops_inbox_ids": rows[0]}, "limit": "all,localhost"}),
            ("gpuops remediate", {"extra_vars": {"gpuops_inbox_ids": rows[1]}, "limit": "all,localhost"}),
            ("gpuops reconcile", {"extra_vars": {}, "limit": "all,localhost"}),
        ]
        assert server.unknown == [] and "lookup" not in json.dumps(server.launches) + rulebook.log.read_text()
