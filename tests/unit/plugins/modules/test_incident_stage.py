# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.store import Ledger
from ansible_collections.gpuops.remediation.plugins.modules import incident_stage
from ledgers import GPU, by_hand, opened, verdict
from run_module import run_module


@pytest.fixture
def run(tmp_path):
    url = f"sqlite:///{tmp_path}/ledger.db"
    ledger = Ledger.open(url)
    incident_id = opened(ledger, by_hand(now=ledger.now()))

    def run(check_mode=False, **params):
        return run_module(incident_stage.main, check_mode=check_mode, ledger_url=url, **{"incident_id": incident_id, **params})

    return run


def test_begin_and_end(run):
    assert run(check_mode=True, state="started", stage="diagnose")["seconds"] == 180
    step = run(state="started", stage="diagnose", limits={"diagnose_seconds": 7})
    assert (step["changed"], step["skip"], step["seconds"], step["history"], step["releases"]) == (True, False, 7, [], {})
    assert step["diff"] == {
        "before": {"state": None, "outcome": None, "reason": None},
        "after": {"state": "started", "outcome": None, "reason": None},
    }
    end = {"state": "finished", "stage": "diagnose", "outcome": "ok", "reason": "", "data": {"verdict": verdict()}}
    assert run(check_mode=True, **end)["incident"]["gpu"] == GPU
    ended = run(**end)
    assert (ended["changed"], ended["incident"]["gpu"], ended["incident"]["verdict"]["domain"]) == (True, GPU, "memory")
    assert run(**end)["changed"] is False
    again = run(state="started", stage="diagnose")
    assert (again["changed"], again["skip"], again["outcome"], again["data"]["verdict"]["gpu_uuid"]) == (False, True, "ok", GPU)


def test_the_mode_forbade_it(run):
    """S4: a module refused; what it would have done is due."""
    ended = run(state="finished", stage="taint", outcome="failed", error_kind="mode_forbids", reason="mode observe")
    assert ended["incident"]["stages"]["taint"]["outcome"] == "due"


@pytest.mark.parametrize(
    "options, words",
    [
        ({"state": "finished", "stage": "taint"}, "missing: outcome"),
        ({"state": "started", "stage": "nap"}, "value of stage must be one of"),
        ({"state": "started", "stage": "taint", "incident_id": "x"}, "no incident x"),
        ({"state": "started", "stage": "taint", "incident_id": "predicted"}, "no incident predicted"),
    ],
)
def test_refusals(run, options, words):
    failed = run(**options)
    assert failed["failed"] and words in failed["msg"]
