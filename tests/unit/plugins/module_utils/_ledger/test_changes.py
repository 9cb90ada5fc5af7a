# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.errors import UnknownChange, UnknownIncident
from ledgers import by_hand, opened

TARGET = "node/gpu-1/taint/gpu.unhealthy:NoSchedule"


@pytest.fixture
def two(ledger):
    return opened(ledger, by_hand("0")), opened(ledger, by_hand("1"))


def test_written_ahead(ledger):
    """S9: intended before, applied after."""
    incident_id = opened(ledger)
    change = ledger.intend(incident_id, TARGET, None, {"value": "true"})
    assert (change.status, change.before, change.wanted, change.owners) == ("intended", None, {"value": "true"}, [incident_id])
    change = ledger.applied(change.id, {"value": "true"})
    assert (change.status, change.after) == ("applied", {"value": "true"})


def test_killed_between_write_and_commit(ledger):
    """S9: the resumed run takes `before` from the row, not from what it sees."""
    incident_id = opened(ledger)
    first = ledger.intend(incident_id, TARGET, "what was there", "ours")
    again = ledger.intend(incident_id, TARGET, "ours", "ours")
    assert (again.id, again.before, again.status) == (first.id, "what was there", "intended")
    assert len(ledger.changes(incident_id)) == 1


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_owners_released_in_both_orders(ledger, two, order):
    """S9: undone with the last one, to the value before the first."""
    first = ledger.intend(two[0], TARGET, "before us", "ours")
    ledger.applied(first.id, "ours")
    second = ledger.intend(two[1], TARGET, "ours", "ours")
    assert (second.id, second.before, second.status, second.owners) == (first.id, "before us", "applied", sorted(two))
    kept = ledger.disown(two[order[0]], TARGET)
    assert kept.owners == [two[order[1]]]
    ledger.close_incident(two[order[0]], "contained")
    assert ledger.release_incident(two[order[0]])[0], "the other one still wants it"
    last = ledger.disown(two[order[1]], TARGET)
    assert (last.owners, last.before) == ([], "before us")
    assert ledger.reverted(last.id).status == "reverted"
    assert ledger.open_change(TARGET) is None


def test_killed_between_disowning_and_reverting(ledger):
    """S9: asked again, the answer is the same, and the incident is not released before it is done."""
    incident_id = opened(ledger)
    ledger.applied(ledger.intend(incident_id, TARGET, "b", "w").id, "w")
    ledger.close_incident(incident_id, "contained")
    ledger.disown(incident_id, TARGET)
    with pytest.raises(Exception, match="not undone"):
        ledger.release_incident(incident_id)
    again = ledger.disown(incident_id, TARGET)
    assert (again.owners, again.before) == ([], "b")
    ledger.reverted(again.id)
    assert ledger.release_incident(incident_id)[0]


def test_wanted_again_while_it_is_being_undone(ledger, two):
    """S9: the newcomer's change stays on record, to be made again and undone by its own release."""
    first = ledger.intend(two[0], TARGET, "before us", "ours")
    ledger.applied(first.id, "ours")
    assert ledger.disown(two[0], TARGET).owners == []
    joined = ledger.intend(two[1], TARGET, "ours", "ours")
    assert (joined.id, joined.before, joined.status) == (first.id, "before us", "intended")
    kept = ledger.reverted(first.id)
    assert (kept.status, kept.owners) == ("intended", [two[1]])
    assert ledger.open_change(TARGET).owners == [two[1]]


def test_a_reverted_change_is_history(ledger, two):
    change = ledger.intend(two[0], TARGET, "b", "w")
    ledger.disown(two[0], TARGET)
    ledger.reverted(change.id)
    assert ledger.applied(change.id, "late").status == "reverted"
    new = ledger.intend(two[1], TARGET, "c", "w")
    assert (new.id != change.id, new.before, new.owners) == (True, "c", [two[1]])


def test_wanting_something_else_is_intended_again(ledger):
    incident_id = opened(ledger)
    change = ledger.intend(incident_id, "node/gpu-1/cgroup/x", "thawed", "frozen")
    ledger.applied(change.id, "frozen")
    change = ledger.intend(incident_id, "node/gpu-1/cgroup/x", "frozen", "killed")
    assert (change.before, change.wanted, change.status) == ("thawed", "killed", "intended")


def test_a_humans_decision_is_neither_put_back_nor_undone(ledger, two):
    """S6: and new evidence starts afresh."""
    shared = ledger.intend(two[0], "shared", None, 1)
    ledger.intend(two[1], "shared", None, 1)
    ledger.applied(ledger.intend(two[0], TARGET, None, 1).id, 1)
    ledger.close_incident(two[0], "cancelled_by_human", "untainted")
    own = next(change for change in ledger.changes(two[0]) if change.target == TARGET)
    assert (own.status, own.note, own.owners) == ("reverted", "left to a human", [])
    assert ledger.open_change("shared").owners == [two[1]]
    assert ledger.open_change("shared").id == shared.id
    assert ledger.intend(two[1], TARGET, None, 1).id != own.id


def test_what_does_not_exist(ledger):
    incident_id = opened(ledger)
    with pytest.raises(UnknownChange):
        ledger.disown(incident_id, TARGET)
    with pytest.raises(UnknownChange):
        ledger.applied(99, None)
    with pytest.raises(UnknownIncident):
        ledger.intend("x", TARGET, None, 1)
