# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from datetime import timedelta

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.errors import IncidentEnded, LockHeld, LockLost
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.store import Ledger
from ledgers import by_hand, opened


def test_one_holder(ledger, clock):
    """S5"""
    token = ledger.take_lock("gpu-1", "run-1")
    with pytest.raises(LockHeld, match="locked by run-1") as error:
        ledger.take_lock("gpu-1", "run-2")
    assert (error.value.kind, error.value.details["holder"]) == ("lock_held", "run-1")
    clock.on(31)
    assert ledger.take_lock("gpu-1", "run-2") > token
    with pytest.raises(LockLost):
        ledger.renew_lock("gpu-1", token)


def test_a_lapsed_lease_that_nobody_took_is_renewed_with_the_same_token(ledger, clock):
    """S5"""
    token = ledger.take_lock("gpu-1", "run-1")
    clock.on(300)
    ledger.renew_lock("gpu-1", token)
    with pytest.raises(LockHeld):
        ledger.take_lock("gpu-1", "run-2")


def test_taking_over_ones_own_lock_raises_the_token(ledger):
    """S5: after a restart the old run's writes must not pass."""
    old = ledger.take_lock("gpu-1", "incident-1")
    new = ledger.take_lock("gpu-1", "incident-1")
    assert new > old
    with pytest.raises(LockLost):
        ledger.renew_lock("gpu-1", old)


def test_the_token_grows_past_a_release(ledger):
    token = ledger.take_lock("gpu-1", "run-1")
    assert not ledger.release_lock("gpu-1", token + 1)
    assert ledger.release_lock("gpu-1", token)
    assert not ledger.release_lock("gpu-1", token)
    with pytest.raises(LockLost):
        ledger.renew_lock("gpu-1", token)
    assert ledger.take_lock("gpu-1", "run-2") > token


def test_never_taken(ledger):
    with pytest.raises(LockLost):
        ledger.renew_lock("gpu-1", 1)


WRITES = [
    pytest.param(lambda ledger, incident: ledger.start_stage(incident, "taint"), id="a stage begins"),
    pytest.param(lambda ledger, incident: ledger.finish_stage(incident, "taint", "ok"), id="a stage ends"),
    pytest.param(lambda ledger, incident: ledger.close_incident(incident), id="the incident ends"),
    pytest.param(lambda ledger, incident: ledger.release_incident(incident), id="the release"),
    pytest.param(lambda ledger, incident: ledger.intend(incident, "t", None, 1), id="a change"),
]


def taken_by_another(ledger):
    ledger.take_lock("gpu-1", "run-2")


def given_back_by_another(ledger):
    ledger.release_lock("gpu-1", ledger.take_lock("gpu-1", "run-2"))


def taken_over_by_its_own_next_run(ledger):
    ledger.take_lock("gpu-1", "run-1")


def mirrored_with_a_lower_token(ledger):
    ledger.record_lock("gpu-1", "run-2", 0, ledger.now() + timedelta(seconds=30))


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("happens", [taken_by_another, given_back_by_another, taken_over_by_its_own_next_run, mirrored_with_a_lower_token])
def test_a_sleeper_writes_no_more(ledger, url, clock, happens, write):
    """S5: it lost the node's lock while it slept, so the incident is another's to write."""
    incident_id = opened(ledger)
    sleeper = Ledger.open(url, clock=clock).under("gpu-1", "run-1", ledger.take_lock("gpu-1", "run-1"))
    clock.on(300)
    happens(ledger)
    before = ledger.story(incident_id)
    with pytest.raises(LockLost, match="run-1 no longer has the lock of node gpu-1"):
        write(sleeper, incident_id)
    assert ledger.story(incident_id) == before


@pytest.mark.parametrize("write", WRITES)
def test_who_has_the_lock_writes_and_keeps_it(ledger, url, clock, write):
    """Also after its lease has lapsed, as long as nobody took it; and where the ledger has heard of no lock."""
    token = ledger.take_lock("gpu-1", "run-1")
    clock.on(300)
    write(Ledger.open(url, clock=clock).under("gpu-1", "run-1", token), opened(ledger))
    with pytest.raises(LockHeld):
        ledger.take_lock("gpu-1", "run-2")
    write(Ledger.open(url, clock=clock).under("gpu-2", "run-1", 7), opened(ledger, by_hand("1")))
    predicting = Ledger.open(url, clock=clock, check_mode=True).under("gpu-1", "run-2", 7)
    write(predicting, opened(ledger, by_hand("2")))


@pytest.mark.parametrize(
    "take",
    [
        pytest.param(lambda ledger, ids: ledger.take_lock("gpu-1", "run-1", incident_ids=ids), id="its own"),
        pytest.param(
            lambda ledger, ids: ledger.record_lock("gpu-1", "run-1", 7, ledger.now() + timedelta(seconds=30), incident_ids=ids),
            id="the mirror of another",
        ),
    ],
)
def test_nobody_locks_a_node_for_what_has_ended(ledger, take):
    """Who listed it while it ran would keep room from others for nothing; while one of its incidents lives there is work."""
    ended, living = opened(ledger), opened(ledger, by_hand("1"))
    ledger.close_incident(ended)
    with pytest.raises(IncidentEnded, match=f"another run has ended what was to be done on node gpu-1 .{ended}."):
        take(ledger, [ended])
    assert ledger.locks() == []
    take(ledger, [ended, living])
    assert [lock["holder"] for lock in ledger.locks()] == ["run-1"]


def test_nodes_are_apart(ledger):
    ledger.take_lock("gpu-1", "run-1")
    ledger.take_lock("gpu-2", "run-2")
    assert [(one["node"], one["holder"]) for one in ledger.locks()] == [("gpu-1", "run-1"), ("gpu-2", "run-2")]


def test_who_works_where(ledger, clock):
    """What died is not at work."""
    ledger.take_lock("gpu-1", "run-1")
    clock.on(20)
    ledger.take_lock("gpu-2", "run-2")
    clock.on(20)
    assert [(one["node"], one["live"]) for one in ledger.locks()] == [("gpu-1", False), ("gpu-2", True)]


def test_the_mirror_of_other_locks(ledger, clock):
    """S5: while the node is silent, the ledger's own lock goes on from what it has heard."""
    ledger.record_lock("gpu-1", "run-1", 7, clock() + timedelta(seconds=30))
    ledger.record_lock("gpu-1", "run-0", 6, clock() + timedelta(seconds=900))
    with pytest.raises(LockHeld, match="run-1"):
        ledger.take_lock("gpu-1", "run-2")
    ledger.record_lock("gpu-1", None, 7, clock())
    assert ledger.take_lock("gpu-1", "run-2") == 8


def test_the_mirror_follows_a_lower_token_once_the_ledgers_own_lock_is_free(ledger, clock):
    """S5: two runs in mode observe count on in the ledger, and the Lease or file does not hear of them."""
    ledger.record_lock("gpu-1", "run-1", 7, clock() + timedelta(seconds=30))
    ledger.record_lock("gpu-1", None, 7, clock())
    ledger.release_lock("gpu-1", ledger.take_lock("gpu-1", "run-2"))
    own = ledger.take_lock("gpu-1", "run-3")
    ledger.record_lock("gpu-1", "run-4", 8, clock() + timedelta(seconds=30))
    assert [lock["holder"] for lock in ledger.locks()] == ["run-3"], "its lease is live"
    ledger.release_lock("gpu-1", own)
    ledger.record_lock("gpu-1", "run-4", 8, clock() + timedelta(seconds=30))
    ledger.renew_lock("gpu-1", 8)
