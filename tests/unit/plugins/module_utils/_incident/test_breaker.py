# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.breaker import Group, Rule, Slot, groups_of, in_window, overfull

NOW = datetime(2026, 11, 29, 12, tzinfo=timezone.utc)
FLEET = Group("fleet", "fleet")


def slots(*nodes, groups=(FLEET,), ago=0):
    return [Slot(node, NOW - timedelta(seconds=ago), groups) for node in nodes]


@pytest.mark.parametrize("size, allowed", [(0, 3), (8, 3), (60, 3), (79, 3), (80, 4), (1000, 50)])
def test_the_larger_of_a_number_and_a_share(size, allowed):
    """S8: 3 nodes or 5 % of the group."""
    assert Rule().allowed(size) == allowed


@pytest.mark.parametrize(
    "taken, node, full",
    [
        pytest.param(slots(), "a", False, id="first"),
        pytest.param(slots("a", "b"), "c", False, id="third"),
        pytest.param(slots("a", "b", "c"), "d", True, id="fourth"),
        pytest.param(slots("a", "b", "c", "c"), "c", False, id="a node counts once"),
        pytest.param(slots("a", "b", "c", groups=()), "d", False, id="of another group"),
    ],
)
def test_overfull(taken, node, full):
    assert (overfull(taken, node, [FLEET], Rule()) is FLEET) == full


def test_every_group_counts_by_itself():
    """S8: a job of 4 nodes is full long before a fleet of 1000."""
    fleet, job = Group("fleet", "fleet", 1000), Group("job", "train-7", 4)
    taken = slots("a", "b", "c", groups=(fleet, job))
    assert overfull(taken, "d", [fleet, job], Rule()) is job
    assert overfull(taken, "d", [fleet, Group("job", "train-8", 4)], Rule()) is None


def test_the_window_and_a_reset():
    taken = slots("old", ago=600) + slots("young", ago=599) + slots("new")
    assert [slot.node for slot in in_window(taken, NOW, Rule(), None)] == ["young", "new"]
    assert [slot.node for slot in in_window(taken, NOW, Rule(), NOW - timedelta(seconds=10))] == ["new"]
    assert [slot.node for slot in in_window(taken, NOW, Rule(), NOW)] == ["new"], "what came with the reset is of the new count"


def test_how_groups_are_given():
    assert groups_of({}) == [FLEET]
    given = {"fleet": 40, "job": "train-7", "rack": {"name": "r12", "size": 16}, "nvlink_domain": None}
    assert groups_of(given) == [Group("fleet", "fleet", 40), Group("job", "train-7"), Group("rack", "r12", 16)]
    assert [group.label for group in groups_of(given)] == ["fleet", "job train-7", "rack r12"]
