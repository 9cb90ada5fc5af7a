# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""S19: what was done without the ledger comes home."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.errors import LockHeld, UnknownIncident
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.database import Database
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.store import Ledger
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.tables import FAILURES
from ledgers import GPU, alert, by_hand, diagnosed, opened, wanted

TARGET = f"node/gpu-1/gpu/{GPU}/holders"


@pytest.fixture
def away(tmp_path, clock):
    """The node's own ledger, in an operator's hands."""
    ledger = Ledger.open(f"sqlite:///{tmp_path}/gpu-1.db", clock=clock)
    ledger.glass_wanted("gpu-1", "jane", "the database is down")
    ledger.set_mode("act", "jane", "the database is down")
    yield ledger
    ledger.close()


@pytest.fixture
def absorb(tmp_path, ledger):
    def absorb(into=ledger):
        other = Database.open(f"sqlite:///{tmp_path}/gpu-1.db", check_mode=into.check_mode)
        try:
            return into.absorb(other)
        finally:
            other.close()

    return absorb


def contained(ledger, before="before"):
    """An incident with a change, ended and told of."""
    incident_id = opened(ledger, by_hand(GPU, now=ledger.now()))
    diagnosed(ledger, incident_id)
    changed(ledger, incident_id, before)
    for stage in ("isolate", "verify"):
        ledger.start_stage(incident_id, stage)
        ledger.finish_stage(incident_id, stage, "ok")
    ledger.close_incident(incident_id)
    return incident_id


def changed(ledger, incident_id, before="before"):
    ledger.applied(ledger.intend(incident_id, TARGET, before, "wanted").id, "after")


def states(ledger):
    return {one["id"]: one["state"] for one in ledger.overview(closed=True)["incidents"]}


def test_all_that_belongs_to_it_comes_along_once(ledger, away, absorb):
    """Its slot counts too: the breaker sees what was done without it. The mode of that time stays there; who broke the glass does not."""
    incident_id = contained(away)
    away.take_slot(incident_id, "gpu-1")
    away.notifications_sent([one["id"] for one in away.claim_notifications()])
    away.notify("glass:x", "glass_broken", {"who": "jane"}, incident_id)
    before = away.story(incident_id)
    other = opened(ledger, by_hand("7", node="gpu-2", uid="uid-2"))
    ledger.notify("x", "contained", {}, other)  # so that the numbers of both differ
    ledger.intend(other, "node/gpu-2/taint", "before", "wanted")
    assert absorb() == [incident_id]
    assert absorb() == []

    story = ledger.story(incident_id)
    for whole in (before, story):
        for row in whole["changes"] + whole["notifications"]:
            del row["id"]
    assert story == before
    assert [(one["topic"], one["sent_at"] is None) for one in story["notifications"]] == [("contained", False), ("glass_broken", True)]
    assert [(one["target"], one["status"], one["owners"]) for one in story["changes"]] == [(TARGET, "applied", [incident_id])]
    assert ledger.mode() == "observe"
    [word] = [one for one in ledger.settings_history() if one["name"] == "break_glass"]
    assert (word["value"], word["who"], word["why"]) == ("gpu-1", "jane", "the database is down")
    ledger.configure(None, {"nodes": 1}, False, "test", "test")
    ledger.take_slot(incident_id, "gpu-1")
    with pytest.raises(Exception, match="breaker has tripped"):
        ledger.take_slot("another", "gpu-2")


def test_programs_that_failed_count(ledger, away, absorb, clock):
    """S14: three of them within a day are a hint at the hardware, whichever ledger heard of them."""
    incident_id = opened(away)
    row = {"node": "gpu-1", "gpu_uuid": GPU, "code": 31, "program": "train", "failed_at": clock.now, "incident_id": incident_id}
    with away.write() as connection:
        connection.execute(sa.insert(FAILURES).values(**row))
    absorb()
    assert [one["executable_or_image"] for one in ledger.start_stage(incident_id, "diagnose")["history"]] == ["train"]


def test_whoever_still_writes_there_is_refused(ledger, away, absorb):
    """S9: what was absorbed takes no change more, or it would be on no record."""
    incident_id = contained(away)
    absorb()
    with pytest.raises(UnknownIncident):
        away.intend(incident_id, "node/gpu-1/else", "before", "wanted")


def test_a_run_that_is_at_work_is_left_alone(clock, ledger, away, absorb):
    """S5"""
    incident_id = contained(away)
    away.take_lock("gpu-1", incident_id)
    with pytest.raises(LockHeld, match=incident_id):
        absorb()
    assert (states(ledger), list(states(away))) == ({}, [incident_id])
    clock.on(31)
    assert absorb() == [incident_id]


def test_whoever_dies_between_both_ledgers_begins_again(ledger, away, absorb, monkeypatch):
    """What was written there meanwhile comes along too."""
    incident_id = contained(away)

    class Died(Exception):
        pass

    def die(connection):
        raise Died

    monkeypatch.setattr(Ledger, "_empty", staticmethod(die))
    with pytest.raises(Died):
        absorb()
    monkeypatch.undo()
    away.intend(incident_id, "node/gpu-1/else", "before", "wanted")
    assert absorb() == []
    assert [change.target for change in ledger.changes(incident_id)] == [TARGET, "node/gpu-1/else"]
    assert len(ledger.story(incident_id)["notifications"]) == 1 and states(away) == {}


def test_who_is_at_it_goes_on(ledger, away, absorb):
    """A run that was killed before it changed anything is taken up again, rather than one that waits for people; the alert follows."""
    fired = alert(gpu_uuid=GPU)
    held = opened(ledger, wanted(fired))
    ledger.close_incident(held, "held_for_human", "several nodes are silent")
    running = opened(away, by_hand(GPU))
    assert absorb() == [running]
    assert states(ledger) == {held: "no_action", running: "running"}
    assert ledger.open_incident(wanted(fired)).record["id"] == running


def test_one_that_is_closed_collides_with_nothing(ledger, away, absorb):
    closed = contained(ledger)
    ledger.disown(closed, TARGET)
    ledger.reverted(1)
    ledger.release_incident(closed)
    incident_id = opened(away)
    away.close_incident(incident_id, "no_action", "nothing to do")
    absorb()
    assert states(ledger) == {closed: "released", incident_id: "no_action"}
    assert ledger.overview()["incidents"] == []


@pytest.mark.parametrize("held", [False, True])
def test_what_dealt_with_the_fault_stands_for_it(clock, ledger, away, absorb, held):
    """The run that the ledger left on its way knew the fault already, and had done nothing of what was done since."""
    known = opened(ledger, by_hand(GPU))
    diagnosed(ledger, known)
    if held:
        ledger.close_incident(known, "held_for_human", "the mode forbids it")
    clock.on(60)
    incident_id = contained(away)
    absorb()
    assert states(ledger) == {incident_id: "contained", known: "no_action"}
    assert ledger.incident(known)["reason"] == f"incident {incident_id} has dealt with the same fault while the ledger was away"
    assert ledger.open_incident(by_hand(GPU, now=clock.now)).record["id"] == incident_id


def test_what_did_nothing_gives_way(clock, ledger, away, absorb):
    known = contained(ledger)
    clock.on(60)
    incident_id = opened(away, by_hand(GPU))
    diagnosed(away, incident_id)
    absorb()
    assert states(ledger) == {incident_id: "no_action", known: "contained"}
    assert ledger.open_incident(by_hand(GPU)).record["id"] == known


@pytest.mark.parametrize("first", ["known", "away"])
def test_where_both_hold_the_fault(clock, ledger, away, absorb, first):
    """Each is released by itself; the change is one, and is undone with its last owner, to the value before the first of them."""
    if first == "away":
        incident_id = contained(away, "first")
        clock.on(60)
    known = opened(ledger, by_hand(GPU))
    diagnosed(ledger, known)
    ledger.intend(known, TARGET, "first" if first == "known" else "wanted", "wanted")  # and there the ledger went away
    clock.on(60)
    if first == "known":
        incident_id = contained(away, "wanted")
    absorb()
    [change] = ledger.changes(incident_id)
    assert (change.before, change.status, change.after, change.owners) == ("first", "applied", "after", sorted([known, incident_id]))
    assert {one["id"] for one in ledger.overview()["incidents"]} == {known, incident_id}
    for one in (incident_id, known):
        ledger.disown(one, TARGET)
        ledger.reverted(change.id)
        ledger.release_incident(one)
    assert states(ledger) == {known: "released", incident_id: "released"}
    assert ledger.open_change(TARGET) is None


def test_check_mode_takes_nothing_over(url, clock, ledger, away, absorb):
    incident_id = contained(away)
    assert absorb(Ledger.open(url, check_mode=True, clock=clock)) == [incident_id]
    assert states(ledger) == {} and list(states(away)) == [incident_id]
