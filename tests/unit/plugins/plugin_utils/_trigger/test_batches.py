# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import math

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.reception import Kept
from ansible_collections.gpuops.remediation.plugins.plugin_utils._trigger.batches import Batches
from ledgers import NOON


def row(inbox_id, node="gpu-1", due=True, patient=False):
    return Kept(inbox_id, node, True, NOON, patient, due)


def taken(batches, busy_nodes, now):
    return [row.inbox_id for row in batches.take(busy_nodes, now)]


@pytest.fixture
def batches():
    return Batches(window_seconds=0.5, size=3, retry_seconds=60, patience_seconds=15)


def test_what_arrives_within_the_window_leaves_together(batches):
    batches.add([row(1, "a")], 10.0)
    assert taken(batches, [], 10.4) == []
    batches.add([row(2, "b")], 10.4)
    assert (batches.next_look(10.4), taken(batches, [], 10.5), taken(batches, [], 11)) == (10.5, [1, 2], [])


def test_a_full_batch_does_not_wait(batches):
    batches.add([row(number, f"n{number}") for number in range(4)], 10.0)
    assert [taken(batches, [], 10.0), taken(batches, [], 10.0), taken(batches, [], 10.5)] == [[0, 1, 2], [], [3]]


def test_a_busy_node_holds_nobody_back(batches):
    batches.add([row(1, "busy"), row(2, "free"), row(3, None)], 10.0)
    assert taken(batches, ["busy"], 11.0) == [2, 3]
    assert taken(batches, [], 12.0) == [1]


def test_a_busy_node_leaves_the_others_their_window(batches):
    batches.add([row(1, "busy")], 0.0)
    batches.add([row(2, "a")], 10.0)
    batches.add([row(3, "b")], 10.4)
    assert (taken(batches, ["busy"], 10.4), batches.next_look(10.4)) == ([], 10.5)
    assert taken(batches, ["busy"], 10.5) == [2, 3]


def test_a_second_fault_does_not_wait_for_the_first_ones_end(batches):
    """It has 720 s of its own; its run opens it, and meets the lock there."""
    batches.add([row(1)], 10.0)
    assert taken(batches, ["gpu-1"], 39.9) == []
    assert taken(batches, ["gpu-1"], 40.0) == [1]


def test_what_came_in_while_the_ledger_answered_stays(batches):
    batches.add([row(1)], 10.0)
    batches.settle(set(), 9.9, 10.1)
    assert taken(batches, [], 11.0) == [1]


def test_a_slow_engine_does_not_get_it_twice(batches):
    batches.add([row(1)], 10.0)
    batch = batches.take([], 11.0)
    batches.handed(batch, math.inf)
    batches.settle({1}, 100.0, 100.0)
    batches.handed(batch, 100.0)
    batches.settle({1}, 101.0, 101.0)
    assert taken(batches, [], 101.0) == []
    batches.settle({1}, 160.0, 160.0)
    assert taken(batches, [], 160.0) == [1]


def test_a_node_that_was_handed_over_is_busy_until_it_is_decided(batches):
    batches.add([row(1)], 10.0)
    assert taken(batches, [], 11.0) == [1]
    batches.add([row(2)], 12.0)
    assert taken(batches, [], 13.0) == []
    batches.settle({2}, 14.0, 14.0)
    assert taken(batches, [], 14.0) == [2]


def test_what_nobody_decides_is_handed_on_again(batches):
    batches.add([row(1)], 10.0)
    assert taken(batches, [], 11.0) == [1]
    batches.settle({1}, 70.9, 70.9)
    assert taken(batches, [], 70.9) == []
    batches.settle({1}, 71.0, 71.0)
    assert taken(batches, [], 71.0) == [1]


def test_neither_twice_nor_when_decided(batches):
    batches.add([row(1), row(1), row(2, due=False), row(3)], 10.0)
    batches.settle({1}, 10.1, 10.1)
    assert taken(batches, [], 11.0) == [1]
    batches.add([row(1)], 11.5)
    assert (taken(batches, [], 13.0), batches.waiting, batches.idle) == ([], 0, False)
    batches.settle(set(), 13.0, 13.0)
    assert batches.idle


def test_patient_rows_wait_for_each_other_and_keep_nobody_waiting(batches):
    batches.add([row(1, "a", patient=True)], 10.0)
    batches.add([row(2, "b")], 12.0)
    batches.add([row(3, "c", patient=True)], 20.0)
    assert (batches.next_look(12.1), taken(batches, [], 12.5)) == (12.5, [2])
    assert (batches.next_look(12.5), taken(batches, [], 34.9), taken(batches, [], 35.0)) == (35.0, [], [1, 3])


def test_patience_follows_a_chain_as_the_rule_does():
    """Two alerts of a group may be as far apart as the window; its first and its last are further."""
    batches = Batches(window_seconds=0.5, size=100, retry_seconds=60, patience_seconds=15)
    for number, at in enumerate((0.0, 10.0, 20.0)):
        batches.add([row(number, f"n{number}", patient=True)], at)
        assert taken(batches, [], at + 9.9) == []
    assert (taken(batches, [], 34.9), taken(batches, [], 35.0)) == ([], [0, 1, 2])


def test_patience_has_an_end():
    batches = Batches(window_seconds=0.5, size=100, retry_seconds=60, patience_seconds=15)
    for number in range(5):
        batches.add([row(number, f"n{number}", patient=True)], number * 10.0)
    assert (taken(batches, [], 44.9), taken(batches, [], 45.0)) == ([], [0, 1, 2, 3, 4])


def test_a_patient_row_that_waited_in_vain_holds_no_new_one_and_waits_for_none(batches):
    batches.add([row(1, "a", patient=True)], 0.0)
    assert taken(batches, [], 15.0) == [1]
    batches.add([row(2, "b", patient=True)], 74.0)
    batches.settle({1, 2}, 75.0, 75.0)
    assert (taken(batches, [], 75.0), taken(batches, [], 88.9), taken(batches, [], 89.0)) == ([1], [], [2])


def test_a_patient_row_that_nobody_decided_has_waited_enough(batches):
    batches.add([row(1, patient=True)], 0.0)
    assert taken(batches, [], 15.0) == [1]
    batches.settle({1}, 75.0, 75.0)
    assert taken(batches, [], 75.0) == [1]


def test_what_is_known_is_waiting_or_handed_over(batches):
    batches.add([row(1)], 0.0)
    assert (batches.knows(1), batches.knows(2), taken(batches, [], 1.0), batches.knows(1)) == (True, False, [1], True)
    batches.settle(set(), 2.0, 2.0)
    assert not batches.knows(1)
