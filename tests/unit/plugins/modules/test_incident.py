# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import contextlib
import json
import os
import sqlite3

import pytest
from alerts import RECORDINGS, recorded, rewritten
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.errors import BreakerTripped
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger import database, opening
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.store import Ledger
from ansible_collections.gpuops.remediation.plugins.module_utils._node.procfs import ProcFs
from ansible_collections.gpuops.remediation.plugins.modules import incident, incident_change, incident_info, incident_stage
from run_module import run_module

RECORDING = str(RECORDINGS / "firing-single.json")
INVENTORY = {"gpu-1": {"host": "host-1", "uid": "uid-1"}}
AWAY = "sqlite:////proc/nowhere/ledger.db"
AWAY_TO_ALL = "postgresql://127.0.0.1:1/x"  # a prediction would take a missing file for a new ledger


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
    assert not any(run(state=state)["changed"] for state in ("reconciling", "reconciled")), "a heartbeat is no news"


def test_waiting_for_room(run, monkeypatch):
    inventory = {name: {"host": name} for name in ("gpu-1", "gpu-2")}
    first, second = (run(node=node, inventory=inventory, max_running=1)["incidents"][0] for node in inventory)
    asked = {"state": "begun", "incident_ids": [second["id"]], "max_running": 1, "wait_seconds": 5}
    predicted = run(check_mode=True, **asked)
    assert (predicted["changed"], predicted["begun"]) == (False, False)
    slept = []
    monkeypatch.setattr(opening.time, "sleep", lambda seconds: slept.append(seconds) or run(state="closed", incident_id=first["id"]))
    begun = run(**asked)
    assert (begun["changed"], begun["begun"], slept) == (True, True, [1.0])
    assert begun["diff"] == {"before": {second["id"]: "fenced_waiting"}, "after": {second["id"]: "running"}}
    assert (predicted["incident_ids"], begun["incident_ids"]) == ([], [second["id"]])
    again = run(**asked)
    assert (again["changed"], again["begun"], again["incident_ids"]) == (False, True, []), "another run's"


@pytest.mark.parametrize(
    "wait_seconds, state", [pytest.param(2, "fenced_waiting", id="asks on"), pytest.param(0, "running", id="gives up")]
)
def test_who_gives_up_its_place(run, monkeypatch, wait_seconds, state):
    inventory = {name: {"host": name} for name in ("gpu-1", "gpu-2", "gpu-3")}
    first, second = (run(node=node, inventory=inventory, max_running=1)["incidents"][0]["id"] for node in ("gpu-1", "gpu-2"))
    new = []

    def arrives(seconds=0):
        run(state="closed", incident_id=first)
        new.append(run(node="gpu-3", inventory=inventory, max_running=1)["incidents"][0]["state"])

    monkeypatch.setattr(opening.time, "sleep", arrives)
    run(state="begun", incident_ids=[second], max_running=1, wait_seconds=wait_seconds)
    if not new:
        arrives()
    assert new == [state]


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
    failed = run_module(incident.main, ledger_url=AWAY, alert_file=alert_file)
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


@pytest.fixture
def glass(tmp_path):
    """What an operator says who breaks the glass."""
    return {"who": "jane", "why": "the database is down", "ledger_dir": str(tmp_path / "glass")}


@pytest.fixture
def run_ended(monkeypatch):
    """The run that went by the private ledger is gone; here it would be whoever started pytest."""
    monkeypatch.setattr(ProcFs, "alive", lambda self, pid, start_ticks: False)


@pytest.mark.usefixtures("run_ended")
def test_breaking_the_glass(url, glass, tmp_path):
    """S19: the operator's word stands for mode act and a breaker slot; people are told, once; asked again it goes on."""
    broken = {"ledger_url": AWAY, "node": "gpu-1", "gpu": "3", "inventory": INVENTORY, "break_glass": glass}
    opened, again = run_module(incident.main, **broken), run_module(incident.main, **broken)
    own = f"sqlite:///{tmp_path}/glass/gpu-1.db"
    assert opened["glass"]["ledger_url"] == again["glass"]["ledger_url"] == own
    assert "nothing is changed" in opened["glass"]["reason"]
    assert [one["incidents"][0]["found"] for one in (opened, again)] == [False, True]
    assert [(tmp_path / "glass").stat().st_mode & 0o777, (tmp_path / "glass/gpu-1.db").stat().st_mode & 0o777] == [0o700, 0o600]

    incident_id = opened["incidents"][0]["id"]
    with contextlib.closing(Ledger.open(own)) as ledger:
        assert (ledger.mode(), ledger.incident(incident_id)["mode"]) == ("act", "act")
        [told] = ledger.story(incident_id)["notifications"]
        ledger.configure(None, {"nodes": 1}, False, "test", "test")
        with pytest.raises(BreakerTripped):
            ledger.take_slot("another", "gpu-2")
    assert (told["topic"], told["payload"]["who"], told["payload"]["node"]) == ("glass_broken", "jane", "gpu-1")

    absorb = {"state": "absorbed", "ledger_dir": glass["ledger_dir"]}
    assert run_module(incident.main, ledger_url=own, **absorb)["absorbed"] == [], "whoever goes by it takes nothing over"
    assert run_module(incident.main, ledger_url=AWAY, **absorb)["error_kind"] == "ledger_unavailable"
    predicted = run_module(incident.main, check_mode=True, ledger_url=url, **absorb)
    assert (predicted["changed"], predicted["absorbed"]) == (True, [incident_id])
    taken = run_module(incident.main, ledger_url=url, **absorb)
    assert (taken["changed"], taken["absorbed"], taken["left"]) == (True, [incident_id], [])
    assert list((tmp_path / "glass").iterdir()) == []
    assert run_module(incident.main, ledger_url=url, **absorb) == {
        **taken,
        "changed": False,
        "absorbed": [],
        "diff": {"before": {"ledgers": []}, "after": {"incidents": []}},
    }
    assert run_module(incident.main, ledger_url=url, incident_ids=[incident_id])["incidents"][0]["found"]


def test_an_opted_out_node_stays_so(glass):
    """S4: the operator's word stands for the mode, not for the node's owner."""
    inventory = {"gpu-1": {"managed": False}}
    opened = run_module(incident.main, ledger_url=AWAY, node="gpu-1", inventory=inventory, break_glass=glass)
    assert [one["state"] for one in opened["incidents"]] == ["no_action"]
    with contextlib.closing(Ledger.open(opened["glass"]["ledger_url"])) as ledger:
        assert [one["topic"] for one in ledger.story(opened["incidents"][0]["id"])["notifications"]] == ["no_action"]
        ledger.configure(None, {"nodes": 1}, False, "test", "test")
        ledger.take_slot("another", "gpu-2")


def test_a_run_that_is_alive_keeps_its_ledger(run, glass):
    """S5: before it has a lock, and where a long stage lets the lock's copy in the ledger lapse."""
    run_module(incident.main, ledger_url=AWAY, node="gpu-1", inventory=INVENTORY, break_glass=glass)
    answer = run(state="absorbed", ledger_dir=glass["ledger_dir"])
    assert (answer["absorbed"], [one["why"] for one in answer["left"]]) == ([], [f"the run of jane (process {os.getppid()}) is at work"])


@pytest.mark.usefixtures("run_ended")
def test_a_run_that_is_at_work_keeps_its_ledger(run, glass, tmp_path):
    """S5: it is taken over once its lock is given back or has lapsed."""
    own = run_module(incident.main, ledger_url=AWAY, node="gpu-1", inventory=INVENTORY, break_glass=glass)["glass"]["ledger_url"]
    with contextlib.closing(Ledger.open(own)) as ledger:
        token = ledger.take_lock("gpu-1", "run-1")
        answer = run(state="absorbed", ledger_dir=glass["ledger_dir"])
        ledger.release_lock("gpu-1", token)
    assert (answer["changed"], answer["absorbed"]) == (False, [])
    assert answer["left"] == [{"file": str(tmp_path / "glass/gpu-1.db"), "why": "run-1 is at work on node gpu-1"}]
    assert len(run(state="absorbed", ledger_dir=glass["ledger_dir"])["absorbed"]) == 1


def test_the_glass_stays_whole_where_the_ledger_can_be_written(run, glass, url, tmp_path):
    """S19: and the ledger's mode holds. That somebody wanted it is kept."""
    opened = run(node="gpu-1", inventory=INVENTORY, break_glass=glass)
    assert ("glass" in opened, opened["incidents"][0]["mode"]) == (False, "observe")
    with contextlib.closing(Ledger.open(url)) as ledger:
        assert ledger.settings_history()[0]["who"] == "jane"
    assert not (tmp_path / "glass").exists()


def test_a_full_disk_breaks_even_if_the_incident_is_known(run, glass, url):
    """S19: finding an incident writes nothing, so it says nothing about whether its stages could be kept."""
    run(node="gpu-1", inventory=INVENTORY)
    with contextlib.closing(sqlite3.connect(url[len("sqlite:///") :])) as ledger:
        ledger.execute("CREATE TRIGGER full BEFORE INSERT ON settings BEGIN INSERT INTO room VALUES (1); END")
        ledger.commit()
    assert run(node="gpu-1", inventory=INVENTORY)["incidents"][0]["found"]
    assert "no such table: main.room" in run(node="gpu-1", inventory=INVENTORY, break_glass=glass)["glass"]["reason"]


def test_another_controllers_ledger_is_not_away(run, glass, monkeypatch, tmp_path):
    """S5, S19: there it is at work, and its mode holds; here nobody would ever take the record over."""
    run(node="gpu-1", inventory=INVENTORY)
    monkeypatch.setattr(database, "controller", lambda: "another")
    assert "belongs to controller" in run(node="gpu-1", inventory=INVENTORY, break_glass=glass)["msg"]
    assert not (tmp_path / "glass").exists()


@pytest.mark.parametrize(
    "options, words",
    [
        ({"node": "gpu-9"}, "gpu-9 is not in the inventory"),
        ({"node": "../gpu-1", "inventory": {"../gpu-1": {}}}, "cannot name a file"),
        ({"node": "gpu-1?x", "inventory": {"gpu-1?x": {}}}, "cannot name a file"),
        ({"node": "gpu-1", "gpu": "the third"}, "neither a UUID"),
        ({"node": "gpu-1", "check_mode": True}, "nothing is changed"),
        ({"node": "gpu-1", "break_glass": {"who": "jane", "why": "why", "ledger_dir": "/proc/nowhere/glass"}}, "cannot be made"),
        ({"alert_file": RECORDING}, "required by 'break_glass': node"),
        ({"node": "gpu-1", "alert_file": RECORDING}, "mutually exclusive"),
    ],
)
def test_a_glass_that_is_not_broken(glass, tmp_path, options, words):
    failed = run_module(incident.main, **{"ledger_url": AWAY_TO_ALL, "inventory": INVENTORY, "break_glass": glass, **options})
    assert failed["failed"] and words in failed["msg"]
    assert not (tmp_path / "glass").exists()


@pytest.mark.usefixtures("run_ended")
def test_one_that_cannot_be_read_keeps_nobody_from_the_others(run, url, glass, tmp_path):
    """S19: it stays for people, who are told once."""
    for node in ("gpu-1", "gpu-3"):
        run_module(incident.main, ledger_url=AWAY, node=node, inventory={node: {}}, break_glass=glass)
    (tmp_path / "glass/gpu-0.db").write_bytes(b"this is no database" * 100)
    with contextlib.closing(sqlite3.connect(tmp_path / "glass/gpu-1.db")) as ledger:
        ledger.execute("UPDATE incidents SET verdict = 'no json', opened_at = 'yesterday'")
        ledger.commit()
    for expected in (1, 0):
        answer = run(state="absorbed", ledger_dir=glass["ledger_dir"])
        assert len(answer["absorbed"]) == expected
        assert [one["file"].rpartition("/")[2] for one in answer["left"]] == ["gpu-0.db", "gpu-1.db"]
    assert sorted(path.name for path in (tmp_path / "glass").glob("*.db")) == ["gpu-0.db", "gpu-1.db"]
    with contextlib.closing(Ledger.open(url)) as ledger:
        told = [one for one in ledger.overview()["unsent"] if one["topic"] == "glass_unreadable"]
    assert [one["payload"]["file"].rpartition("/")[2] for one in told] == ["gpu-0.db", "gpu-1.db"]
