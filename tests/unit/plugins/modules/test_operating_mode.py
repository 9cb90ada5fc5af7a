# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.errors import BreakerTripped
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.store import Ledger
from ansible_collections.gpuops.remediation.plugins.modules import operating_mode
from run_module import run_module


@pytest.fixture
def run(tmp_path):
    def run(check_mode=False, **params):
        return run_module(operating_mode.main, check_mode=check_mode, ledger_url=f"sqlite:///{tmp_path}/ledger.db", **params)

    return run


def test_reading_makes_no_ledger(run, tmp_path):
    seen = run()
    assert (seen["changed"], seen["mode"], seen["history"]) == (False, "observe", [])
    assert list(tmp_path.iterdir()) == []


def test_setting(run):
    """S4: who and why are kept."""
    wanted = {"mode": "act", "who": "jane", "why": "the trial week is over", "breaker": {"nodes": 10}}
    runs = [run(check_mode=check, **wanted) for check in (True, False, False, True)]
    assert [one["changed"] for one in runs] == [True, True, False, False]
    assert [(one["mode"], one["breaker"]["nodes"]) for one in runs] == [("act", 10)] * 4
    told = [entry for entry in run()["history"] if entry["name"] == "mode"]
    assert [(entry["value"], entry["who"], entry["why"]) for entry in told] == [("act", "jane", "the trial week is over")]


@pytest.mark.parametrize("options", [{"mode": "act"}, {"breaker_reset": True}, {"breaker": {"nodes": 5}, "who": "jane"}, {"mode": "panic"}])
def test_who_and_why_are_asked_for(run, options):
    assert run(**options)["failed"]


def test_resetting_the_breaker(run, tmp_path):
    """S8"""
    ledger = Ledger.open(f"sqlite:///{tmp_path}/ledger.db")
    with pytest.raises(BreakerTripped):
        for node in "abcd":
            ledger.take_slot("i", node)
    assert run()["breaker"]["tripped"]
    wanted = {"breaker_reset": True, "who": "jane", "why": "the switch is replaced"}
    runs = [run(check_mode=check, **wanted) for check in (True, False, False, True)]
    assert [one["changed"] for one in runs] == [True, True, False, False]
    assert not run()["breaker"]["tripped"]
