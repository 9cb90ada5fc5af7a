# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json

import pytest
from alerts import RECORDINGS, recorded, rewritten
from ansible_collections.gpuops.remediation.plugins.modules import incident, incident_change, incident_info, incident_stage
from run_module import run_module

RECORDING = str(RECORDINGS / "firing-single.json")
INVENTORY = {"gpu-1": {"host": "host-1", "uid": "uid-1"}}


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/state/ledger.db"


@pytest.fixture
def run(url):
    def run(check_mode=False, **params):
        return run_module(incident.main, check_mode=check_mode, ledger_url=url, **params)

    return run


@pytest.fixture
def alert_file(tmp_path):
    (tmp_path / "alert.json").write_text(json.dumps(rewritten(recorded("firing-single"), {})))
    return str(tmp_path / "alert.json")


def names(result):
    """Whom the modules that go on with the incident will ask the ledger about."""
    record = result["incidents"][0]
    return record["id"], record["target"]["incident_id"]


def test_an_alert_file(run, alert_file):
    predicted = run(check_mode=True, alert_file=alert_file, inventory=INVENTORY)
    assert predicted["changed"] and names(predicted) == ("predicted", "predicted")
    opened = run(alert_file=alert_file, inventory=INVENTORY)
    assert (opened["changed"], opened["incidents"][0]["host"]) == (True, "host-1")
    incident_id = opened["incidents"][0]["id"]
    assert opened["diff"] == {"before": {}, "after": {incident_id: "running"}}
    again = run(alert_file=alert_file, inventory=INVENTORY)
    assert (again["changed"], again["incidents"][0]["id"], again["incidents"][0]["found"]) == (False, incident_id, True)
    assert names(run(check_mode=True, alert_file=alert_file, inventory=INVENTORY)) == (incident_id, incident_id)
    assert names(run(check_mode=True, incident_ids=[incident_id], anew=True)) == ("predicted", "predicted"), "a round that is taken back"


def test_a_held_alert(run, alert_file):
    """S2"""
    held = run(alert_file=alert_file)
    assert (held["changed"], held["incidents"], held["held"][0]["reason"]) == (True, [], "its node is not in the inventory")


@pytest.mark.parametrize(
    "content, words",
    [(None, "cannot be read: No such file"), ("{", "not JSON"), ("[]", "no list 'alerts'")],
)
def test_a_file_that_cannot_be_read(run, tmp_path, content, words):
    if content is not None:
        (tmp_path / "bad.json").write_text(content)
    failed = run(alert_file=str(tmp_path / "bad.json"))
    assert failed["failed"] and failed["error_kind"] == "bad_message" and words in failed["msg"]


def test_by_hand_and_by_id(run):
    opened = run(node="gpu-1", gpu="3", inventory=INVENTORY)
    incident_id = opened["incidents"][0]["id"]
    again = run(incident_ids=[incident_id])
    assert (again["changed"], again["incidents"][0]["gpu"]) == (False, "index:3")
    closed = run(state="closed", incident_id=incident_id, end_state="held_for_human", reason="a look first")
    assert closed["diff"] == {
        "before": {"state": "running", "reason": None},
        "after": {"state": "held_for_human", "reason": "a look first"},
    }
    assert run(state="closed", incident_id=incident_id, end_state="held_for_human", reason="a look first")["changed"] is False
    assert run(incident_ids=[incident_id])["incidents"][0]["resume"] == "verify"
    assert run(incident_ids=[incident_id], anew=True)["incidents"][0]["round"] == 2
    assert run(check_mode=True, state="released", incident_id=incident_id)["incident"]["state"] == "released"
    released = run(state="released", incident_id=incident_id, checks={"nvml": "answers"})
    assert (released["changed"], released["incident"]["release"]) == (True, {"nvml": "answers"})
    assert run(state="released", incident_id=incident_id)["changed"] is False
    assert run(state="pruned")["pruned"] == 0


def test_a_group(run):
    group = {"kind": "controller", "name": "c1", "nodes": ["gpu-1", "gpu-2"]}
    assert run(group=group)["incidents"][0]["kind"] == "group"
    assert run(group=group)["changed"] is False


@pytest.mark.parametrize(
    "options, kind",
    [
        ({"node": "gpu-9"}, "unknown_node"),
        ({"node": "gpu-1", "gpu": "the third"}, "bad_gpu"),
        ({"node": "gpu-1", "limits": {"nap_seconds": 3}}, "bad_limit"),
        ({"incident_ids": ["x"]}, "unknown_incident"),
        ({"alert_file": RECORDING, "alert_labels": {"index": ["gpu"]}}, "bad_alert_labels"),
        ({"state": "closed", "incident_id": "x"}, "unknown_incident"),
        ({"inbox_ids": [7]}, "bad_message"),
    ],
)
def test_refusals(run, options, kind):
    failed = run(inventory=INVENTORY, **options)
    assert failed["failed"] and failed["error_kind"] == kind


def test_no_ledger_no_change(alert_file):
    """S19"""
    failed = run_module(incident.main, ledger_url="sqlite:////proc/nowhere/ledger.db", alert_file=alert_file)
    assert (failed["failed"], failed["error_kind"]) == (True, "ledger_unavailable")
    assert "nothing is changed" in failed["msg"]


def test_a_release_in_check_mode_predicts_what_undoing_the_changes_leads_to(run, url):
    incident_id = run(node="gpu-1", inventory=INVENTORY)["incidents"][0]["id"]
    change = {"incident_id": incident_id, "target": "node/gpu-1/taint/gpu.unhealthy:NoSchedule", "ledger_url": url}
    run_module(incident_change.main, state="intended", wanted="tainted", **change)
    assert run_module(incident_change.main, check_mode=True, state="disowned", **change)["changed"]
    assert run(check_mode=True, state="released", incident_id=incident_id)["incident"]["state"] == "released"
    assert run(state="released", incident_id=incident_id)["error_kind"] == "changes_left"


def test_a_whole_run_in_check_mode(url, tmp_path):
    """Nothing is written anywhere, and every module answers as if the incident existed."""
    check = {"check_mode": True, "ledger_url": url}
    opened = run_module(incident.main, node="gpu-1", inventory=INVENTORY, **check)
    for stage in ("diagnose", "isolate", "taint", "evict", "verify"):
        step = run_module(incident_stage.main, state="started", incident_id=opened["incidents"][0]["id"], stage=stage, **check)
        assert (step["skip"], step["mode"], step["permitted"], step["changed"]) == (False, "observe", [], True)
        run_module(incident_stage.main, state="finished", incident_id="predicted", stage=stage, outcome="due", **check)
    assert run_module(incident.main, state="closed", incident_id="predicted", **check)["changed"]
    assert run_module(incident_info.main, ledger_url=url)["incidents"] == []
    assert list(tmp_path.iterdir()) == []
