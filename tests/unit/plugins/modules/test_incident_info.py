# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.store import Ledger
from ansible_collections.gpuops.remediation.plugins.modules import incident_info
from ledgers import by_hand, opened
from run_module import run_module


def test_a_new_installation(tmp_path):
    seen = run_module(incident_info.main, ledger_url=f"sqlite:///{tmp_path}/ledger.db")
    assert (seen["changed"], seen["mode"], seen["incidents"], seen["breaker"]["tripped"]) == (False, "observe", [], False)
    assert list(tmp_path.iterdir()) == [], "reading makes no ledger"


def test_one_incident(tmp_path):
    url = f"sqlite:///{tmp_path}/ledger.db"
    ledger = Ledger.open(url)
    incident_id = opened(ledger, by_hand(now=ledger.now()))
    for check_mode in (True, False):
        seen = run_module(incident_info.main, check_mode=check_mode, ledger_url=url, incident_id=incident_id)
        assert [one["id"] for one in seen["incidents"]] == [incident_id]
        assert [one["stage"] for one in seen["incident"]["timeline"]] == ["detect"]
        assert seen["incident"]["budget"]["seconds"] == 720
    ledger.close_incident(incident_id, "no_action")
    assert run_module(incident_info.main, ledger_url=url)["incidents"] == []
    assert len(run_module(incident_info.main, ledger_url=url, closed=True, node="gpu-1")["incidents"]) == 1
    assert run_module(incident_info.main, ledger_url=url, incident_id="x")["error_kind"] == "unknown_incident"
