# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.budget import Limits
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.stages import LOOP, start

NOW = datetime(2026, 11, 29, 12, tzinfo=timezone.utc)
STARTED, FINISHED = {"state": "started"}, {"state": "finished"}


@pytest.mark.parametrize(
    "stage, state, stored, remaining, expected",
    [
        pytest.param("diagnose", "running", None, 700, (False, 180, False), id="new"),
        pytest.param("diagnose", "running", STARTED, 700, (False, 180, False), id="begun and not finished begins again"),
        pytest.param("diagnose", "running", FINISHED, 700, (True, 0, False), id="finished"),
        pytest.param("evict", "running", None, 0, (True, 0, True), id="no time left"),
        pytest.param("taint", "running", None, -100, (False, 30, False), id="S16 the taint has its floor"),
        pytest.param("taint", "contained", None, 500, (True, 0, False), id="ended"),
        pytest.param("verify", "contained", FINISHED, -500, (False, 60, False), id="ended, looking again"),
        pytest.param("verify", "quarantined_overdue", FINISHED, -500, (False, 60, False), id="overdue, looking again"),
        pytest.param("verify", "released", None, 500, (True, 0, False), id="closed"),
        pytest.param("release", "contained", FINISHED, -500, (False, 600, False), id="release is not bound to the deadline"),
        pytest.param("release", "released", None, 500, (True, 0, False), id="released"),
    ],
)
def test_start(stage, state, stored, remaining, expected):
    answer = start(stage, {"state": state, "deadline_at": NOW + timedelta(seconds=remaining)}, stored, NOW, Limits())
    assert (answer["skip"], answer["seconds"], answer["overdue"]) == expected


@pytest.mark.parametrize("state", ["no_action", "fence_lifted", "cancelled_by_human", "released"])
@pytest.mark.parametrize("stage", LOOP)
def test_a_closed_incident_runs_nothing(state, stage):
    assert start(stage, {"state": state, "deadline_at": NOW + timedelta(seconds=500)}, None, NOW, Limits())["skip"]
