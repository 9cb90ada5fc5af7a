# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""How many nodes are worked on at once, by all runs together."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.requests import from_group
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.store import Ledger
from ledgers import GPU, NOON, by_hand, opened


def waiting(ledger, number, gpu=None):
    """An incident of a node that waits, since gpu-0 is being worked on."""
    record = ledger.open_incident(by_hand(gpu, node=f"gpu-{number}", uid=f"uid-{number}"), max_running=1).record
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


def test_a_prediction_takes_no_room(ledger, url, clock):
    predicting = Ledger.open(url, check_mode=True, clock=clock)
    assert predicting.open_incident(by_hand(), max_running=1).record["state"] == "running"
    predicting.close()
