# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json

import pytest
from alerts import recorded, rewritten
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.parcels import parcels
from ledgers import NOON


def arrivals(*nodes):
    messages = [rewritten(recorded("firing-single"), {"node": node}, starts_at=NOON) for node in nodes]
    return [(parcel, "alertmanager at ::1") for message in messages for parcel in parcels(json.dumps(message).encode())]


def test_kept_once(ledger, clock):
    first, second = ledger.keep(arrivals("gpu-1", "gpu-2"))
    assert [(row.node, row.due, row.repeat) for row in (first, second)] == [("gpu-1", True, False), ("gpu-2", True, False)]
    clock.on(60)
    [again] = ledger.keep(arrivals("gpu-1"))
    assert (again.inbox_id, again.received_at, again.due, again.repeat) == (first.inbox_id, NOON, True, True)
    assert [row.inbox_id for row in ledger.undecided()] == [first.inbox_id, second.inbox_id]


def test_a_decided_row_is_not_due_again(ledger):
    [row] = ledger.keep(arrivals("gpu-1"))
    ledger.open_from_inbox([row.inbox_id], {"gpu-1": {"host": "h", "uid": "u"}})
    [again] = ledger.keep(arrivals("gpu-1"))
    assert (again.due, ledger.undecided()) == (False, [])


def test_a_repeat_counts_where_it_may_be_decided_otherwise(ledger, clock):
    """S4: what only the mode forbade is looked at again when the mode allows more, with the next repeat."""
    [row] = ledger.keep(arrivals("gpu-1"))
    ledger.open_from_inbox([row.inbox_id], {"gpu-1": {"host": "h", "uid": "u"}})
    clock.on(600)
    assert not ledger.keep(arrivals("gpu-1"))[0].due
    ledger.set_mode("act", "jane", "the trial week is over")
    assert ledger.keep(arrivals("gpu-1"))[0].due
    assert [one.inbox_id for one in ledger.undecided()] == [row.inbox_id]


def test_a_held_alert_is_judged_again(ledger, clock):
    """Its node may be in the inventory by now; the other Alertmanager of a pair is no reason."""
    [row] = ledger.keep(arrivals("gpu-1"))
    ledger.open_from_inbox([row.inbox_id], {})
    clock.on(5)
    assert not ledger.keep(arrivals("gpu-1"))[0].due
    clock.on(600)
    assert ledger.keep(arrivals("gpu-1"))[0].due
    [incident] = ledger.open_from_inbox([row.inbox_id], {"gpu-1": {"host": "h", "uid": "u"}})["incidents"]
    assert incident["node"] == "gpu-1"


def test_all_or_none(ledger):
    with pytest.raises(AttributeError):
        ledger.keep([*arrivals("gpu-1"), (None, "nowhere")])
    assert ledger.undecided() == []


def test_the_same_twice_in_one_commit(ledger):
    """As the two Alertmanagers of a pair send it."""
    first, second = ledger.keep([*arrivals("gpu-1"), *arrivals("gpu-1")])
    assert (second.inbox_id, second.repeat) == (first.inbox_id, True)


def test_busy_nodes(ledger, clock):
    token = ledger.take_lock("gpu-1", "an incident")
    ledger.take_lock("gpu-2", "another")
    ledger.release_lock("gpu-1", token)
    assert ledger.busy_nodes() == {"gpu-2"}
    clock.on(31)
    assert ledger.busy_nodes() == set()
