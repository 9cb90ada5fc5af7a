# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""How many nodes are worked on at once, by all runs together."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.requests import from_group
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.queue import ASKED_SECONDS
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.store import Ledger
from ledgers import GPU, NOON, by_hand, opened


def waiting(ledger, number, gpu=None):
    """An incident of a node that waits, since gpu-0 is being worked on."""
    record = ledger.open_incident(by_hand(gpu, node=f"gpu-{number}", uid=f"uid-{number}", now=ledger.now()), max_running=1).record
    assert record["state"] == "fenced_waiting"
    return record["id"]


@pytest.fixture
def first(ledger):
    return opened(ledger, by_hand(node="gpu-0", uid="uid-0"))


def test_two_runs_at_once_find_room_for_no_more_than_there_is(ledger, first, url, clock):
    """Each looks through a ledger of its own, at the same moment, for other nodes."""
    ids = [waiting(ledger, number) for number in range(1, 9)]
    runs = [Ledger.open(url, clock=clock) for _run in range(2)]
    for one, other in zip(ids[::2], ids[1::2]):
        together = threading.Barrier(2)

        def begin(run, incident_id, together=together):
            together.wait()
            return run.begin([incident_id], max_running=4)[0]

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(begin, runs, [one, other]))
    for run in runs:
        run.close()
    assert len(ledger.overview()["unfinished"]) == 4, "gpu-0 and three more"


def test_whoever_ends_makes_room_once_the_lock_is_given_back(ledger, first, clock):
    token = ledger.take_lock("gpu-0", "a run")
    second = waiting(ledger, 1)
    assert ledger.begin([second], max_running=1) == (False, [])
    ledger.close_incident(first, "no_action")
    assert ledger.begin([second], max_running=1) == (False, []), "the run has not left the node yet"
    ledger.release_lock("gpu-0", token)
    clock.on(500)
    may, [record] = ledger.begin([second], max_running=1)
    assert (may, record["state"], record["seconds_left"]) == (True, "running", 630)
    assert ledger.begin([second], max_running=1) == (True, []), "it has begun"


def test_a_lock_that_has_lapsed_keeps_nobody_waiting(ledger, clock):
    ledger.take_lock("gpu-0", "a run that died")
    second = waiting(ledger, 1)
    clock.on(31)
    assert ledger.begin([second], max_running=1)[0]


def test_no_time_begins_on_a_node_that_another_run_has_locked(ledger, clock):
    """It would be spent on waiting for the lock."""
    first = opened(ledger, by_hand(node="gpu-1", uid="uid-1"))
    opened(ledger, by_hand(node="gpu-0", uid="uid-0"))
    ledger.close_incident(first, "held_for_human")
    second = ledger.reopen(first, anew=True, max_running=1).record["id"]
    token = ledger.take_lock("gpu-1", "release")
    assert ledger.begin([second], max_running=2) == (False, [])
    assert ledger.begin([second]) == (False, []), "nor without a limit"
    ledger.release_lock("gpu-1", token)
    assert ledger.begin([second], max_running=2)[0]


def test_who_asks_each_second_does_not_write_each_second(ledger, first, clock):
    """Many ask, and the stages of those at work write between them."""
    second = waiting(ledger, 1)
    asked = []
    for _second in range(59):
        clock.on(1)
        assert ledger.begin([second], max_running=1, asks_again=True) == (False, [])
        with ledger.read() as connection:
            asked.append(ledger._incident(connection, second).asked_at)
    assert len(set(asked)) == 3
    assert clock.now - asked[-1] < timedelta(seconds=ASKED_SECONDS / 2)


def test_the_line_is_the_same_by_what_is_written_of_its_times(ledger, first, clock):
    """A run that took another for the first in line would keep its forks for nodes that come later."""
    ids = []
    for number in (1, 2, 3, 4):
        clock.on(0.0001)
        ids.append(waiting(ledger, number))
    records = [ledger.incident(one) for one in ids]
    by_text = [one["id"] for one in sorted(records, key=lambda one: (one["clock_at"], one["id"]))]
    assert ledger.overview()["waiting"] == by_text
    ended(ledger, clock, first)
    assert [ledger.begin([one], max_running=4)[0] for one in by_text] == [True] * 4


def test_a_node_counts_once(ledger, first):
    """Else a node with two faults would wait for itself."""
    beside = ledger.open_incident(by_hand(GPU, node="gpu-0", uid="uid-0"), max_running=1).record
    assert beside["state"] == "running"
    second, third = waiting(ledger, 1), waiting(ledger, 1, GPU)
    assert [one["id"] for one in ledger.begin([second, third], max_running=2)[1]] == [second, third]


def test_a_group_takes_no_room(ledger):
    """Its nodes are left alone."""
    ledger.open_incident(from_group("rack", "r12", ["gpu-7", "gpu-8"], "fabric", NOON), max_running=1)
    assert ledger.open_incident(by_hand(), max_running=1).record["state"] == "running"


def test_what_is_taken_up_anew_waits_like_any_other(ledger, first):
    second = opened(ledger, by_hand(node="gpu-1", uid="uid-1"))
    ledger.close_incident(second, "held_for_human")
    record = ledger.reopen(second, anew=True, max_running=1).record
    assert (record["state"], ledger.overview()["waiting"]) == ("fenced_waiting", [second])
    [told] = [one["payload"] for one in ledger.claim_notifications() if one["topic"] == "fenced_waiting"]
    assert told["incident_ids"] == [second]


def ended(ledger, clock, incident_id):
    ledger.close_incident(incident_id, "no_action", "over")
    clock.on(1)


@pytest.mark.parametrize(
    "later, who",
    [
        pytest.param(0, "second", id="its run has not got so far as to ask"),
        pytest.param(59, "second", id="nor within a minute"),
        pytest.param(61, "third", id="its run has died: it keeps nobody waiting"),
    ],
)
def test_whoever_waits_longest_begins_first(ledger, first, clock, later, who):
    ids = {"second": waiting(ledger, 2)}
    clock.on(1)
    ids["third"] = waiting(ledger, 1)
    ended(ledger, clock, first)
    clock.on(later - 2)
    began = [name for name in ("third", "second") if ledger.begin([ids[name]], max_running=1)[0]]
    assert began == [who]


def test_a_new_fault_goes_behind_those_that_wait(ledger, first, clock):
    """Unless there is room for all of them."""
    second = waiting(ledger, 1)
    ended(ledger, clock, first)
    new = ledger.open_incident(by_hand(node="gpu-2", uid="uid-2", now=clock.now), max_running=1).record
    assert new["state"] == "fenced_waiting"
    beside = ledger.open_incident(by_hand(GPU, node="gpu-1", uid="uid-1", now=clock.now), max_running=1).record
    assert beside["state"] == "running", "the first in line, whichever of its faults"
    assert ledger.begin([second], max_running=1)[0]
    assert ledger.open_incident(by_hand(node="gpu-3", uid="uid-3", now=clock.now), max_running=3).record["state"] == "running"


@pytest.mark.parametrize("asks_again", [True, False])
def test_who_asks_on_keeps_its_place_and_who_gives_up_leaves_it(ledger, first, clock, asks_again):
    second = waiting(ledger, 1)
    for _minute in range(3):
        clock.on(50)
        ledger.begin([second], max_running=1, asks_again=asks_again)
    ended(ledger, clock, first)
    new = ledger.open_incident(by_hand(node="gpu-2", uid="uid-2", now=clock.now), max_running=1).record
    assert new["state"] == ("fenced_waiting" if asks_again else "running")


def test_reconcile_puts_the_oldest_in_front_again(ledger, first, clock):
    """A run has left it; what came since is behind it from when reconcile takes it up."""
    second = waiting(ledger, 2)
    ledger.begin([second], max_running=1)
    clock.on(10)
    third = waiting(ledger, 1)
    assert ledger.overview()["waiting"] == [second, third]
    ledger.reopen(second, max_running=1)
    ended(ledger, clock, first)
    assert not ledger.begin([third], max_running=1, asks_again=True)[0]
    assert ledger.begin([second], max_running=1)[0]


def test_what_is_over_time_and_nobody_s_keeps_no_room(ledger, first, clock):
    second = waiting(ledger, 1)
    clock.on(700)
    token = ledger.take_lock("gpu-0", "a run that is about to end it")
    clock.on(20)
    assert not ledger.begin([second], max_running=1)[0]
    ledger.release_lock("gpu-0", token)
    assert ledger.begin([second], max_running=1)[0]
    assert ledger.overview()["overdue"] == [first]


@pytest.mark.parametrize(
    "later, stands, state",
    [
        pytest.param(719, False, "running", id="it has time left"),
        pytest.param(721, False, "held_for_human", id="nothing was done"),
        pytest.param(721, True, "quarantined_overdue", id="a fence stands"),
    ],
)
def test_what_nobody_could_work_on_ends_with_its_time(ledger, first, clock, later, stands, state):
    """S16, S12."""
    if stands:
        ledger.intend(first, "node/gpu-0/taint/x", None, {})
    clock.on(later)
    changed, record = ledger.close_incident(first, overdue_because="the disk is full")
    assert (changed, record["state"]) == (state != "running", state)
    assert not changed or "the disk is full" in record["reason"]
    assert not ledger.close_incident(first, overdue_because="again")[0]


def test_what_waits_is_not_over_time(ledger, first, clock):
    second = waiting(ledger, 1)
    clock.on(721)
    assert ledger.close_incident(second, overdue_because="the disk is full")[1]["state"] == "fenced_waiting"


def told(ledger):
    """The pages about those that wait which are due now; they are sent."""
    pages = [one for one in ledger.claim_notifications() if one["topic"] == "fenced_waiting"]
    ledger.notifications_sent([one["id"] for one in pages])
    return [one["payload"]["nodes"] for one in pages]


def test_people_are_told_of_who_comes_later(ledger, first, clock):
    """Once in ten minutes, with all that wait then."""
    ids = [waiting(ledger, number) for number in (1, 2)]
    assert told(ledger) == [["gpu-1", "gpu-2"]]
    clock.on(60)
    ids += [waiting(ledger, number) for number in (3, 4)]
    clock.on(530)
    assert told(ledger) == []
    ended(ledger, clock, first)
    for incident_id in (ids[0], ids[2]):
        assert ledger.begin([incident_id], max_running=2)[0]
    clock.on(10)
    assert told(ledger) == [["gpu-2", "gpu-4"]], "without those that have begun"
    waiting(ledger, 2, GPU)
    clock.on(601)
    assert told(ledger) == [["gpu-2", "gpu-4"]], "another fault of a node that waits"
    clock.on(601)
    assert told(ledger) == [], "nobody new"


def test_a_page_that_is_held_back_is_not_late(ledger, first, clock):
    """Nor is it once it has been tried: what counts is since when it could have been sent."""
    waiting(ledger, 1)
    assert told(ledger) == [["gpu-1"]]
    due = clock.now + timedelta(seconds=600)
    waiting(ledger, 2)
    clock.on(599)
    assert ledger.figures().outbox_since is None
    clock.on(2)
    assert ledger.figures().outbox_since == due
    assert ledger.claim_notifications()
    assert ledger.figures().outbox_since == due


@pytest.mark.parametrize(
    "how",
    [
        pytest.param(lambda ledger, one: ledger.begin([one], max_running=2), id="it was given room"),
        pytest.param(lambda ledger, one: ledger.start_stage(one, "diagnose"), id="by a run that knows no limit"),
        pytest.param(lambda ledger, one: ledger.close_incident(one, "cancelled_by_human", "somebody said so"), id="it has ended"),
    ],
)
def test_a_page_about_nobody_is_not_sent(ledger, first, clock, how):
    waiting(ledger, 1)
    assert told(ledger) == [["gpu-1"]]
    second = waiting(ledger, 2)
    ended(ledger, clock, first)
    how(ledger, second)
    assert ledger.incident(second)["state"] != "fenced_waiting"
    clock.on(601)
    assert told(ledger) == []


def test_nor_is_the_first_page_which_is_due_at_once(ledger, first, clock):
    """As in a run that an operator began, which tells people when it is over."""
    second, third = waiting(ledger, 1), waiting(ledger, 2)
    ended(ledger, clock, first)
    assert ledger.begin([second], max_running=2)[0]
    assert ledger.figures().outbox_since == NOON, "and it is as old as it is"
    ledger.begin([third], max_running=2)
    assert told(ledger) == []


def test_one_that_waits_for_the_second_time_is_told_of_again(ledger, first, clock):
    second = waiting(ledger, 1)
    assert told(ledger) == [["gpu-1"]]
    ended(ledger, clock, first)
    ledger.begin([second], max_running=1)
    ledger.close_incident(second, "held_for_human")
    opened(ledger, by_hand(node="gpu-0", uid="uid-0", now=clock.now))
    clock.on(601)
    assert ledger.reopen(second, anew=True, max_running=1).record["state"] == "fenced_waiting"
    assert told(ledger) == [["gpu-1"]]


def test_a_prediction_takes_no_room(ledger, url, clock):
    predicting = Ledger.open(url, check_mode=True, clock=clock)
    assert predicting.open_incident(by_hand(), max_running=1).record["state"] == "running"
    predicting.close()
