# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import sqlalchemy as sa
from alerts import recorded, rewritten
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.parcels import parcels
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.tables import INBOX
from ledgers import NOON
from sqlalchemy.exc import IntegrityError


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


def two(second_status):
    """The recorded pair of alerts of one node; as None the second is not in the message."""
    message = rewritten(recorded("firing-grouped-two-gpus"), {"node": "gpu-9"}, starts_at=NOON)
    message["alerts"] = [message["alerts"][0], *([{**message["alerts"][1], "status": second_status}] if second_status else [])]
    return [(parcel, "alertmanager at ::1") for parcel in parcels(json.dumps(message).encode())]


def test_a_held_alert_is_judged_again_with_the_row_that_brings_it_now(ledger, clock):
    """What else was in its first message may be over: Alertmanager never sends that one again."""
    for second_status in ("firing", "resolved", None):
        [row] = ledger.keep(two(second_status))
        ledger.open_from_inbox([row.inbox_id], {})
        clock.on(600)
    [again] = ledger.keep(two(None))
    assert (again.inbox_id, again.due) == (row.inbox_id, True)
    assert len(ledger.open_from_inbox([row.inbox_id], {"gpu-9": {"host": "h", "uid": "u"}})["incidents"]) == 1


def test_an_alert_that_was_opened_is_held_no_more(ledger, clock):
    [row] = ledger.keep(arrivals("gpu-1"))
    ledger.open_from_inbox([row.inbox_id], {})
    clock.on(600)
    ledger.keep(arrivals("gpu-1"))
    ledger.open_from_inbox([row.inbox_id], {"gpu-1": {"host": "h", "uid": "u"}})
    assert ledger.overview()["held_alerts"] == []
    clock.on(600)
    assert not ledger.keep(arrivals("gpu-1"))[0].due


def test_all_or_none(ledger):
    [(parcel, source)] = arrivals("gpu-2")
    with pytest.raises(IntegrityError):
        ledger.keep([*arrivals("gpu-1"), (replace(parcel, body=None), source)])
    assert ledger.undecided() == []


def test_the_same_twice_in_one_commit(ledger):
    """As the two Alertmanagers of a pair send it."""
    first, second = ledger.keep([*arrivals("gpu-1"), *arrivals("gpu-1")])
    assert (second.inbox_id, second.repeat) == (first.inbox_id, True)


def test_a_storm_in_one_commit(ledger):
    """More rows than one statement takes: each is there once, in the order of the arrivals, and every delivery is counted."""
    nodes = [f"gpu-{number}" for number in range(1100)]
    first = ledger.keep(arrivals(*nodes, "gpu-7"))
    assert [row.node for row in first] == [*nodes, "gpu-7"]
    assert (first[-1].inbox_id, first[-1].repeat) == (first[7].inbox_id, True)
    assert ledger.waiting() == ([row.inbox_id for row in first[:-1]], NOON)
    again = ledger.keep(arrivals(*nodes, "new"))
    assert [row.inbox_id for row in again[:-1]] == [row.inbox_id for row in first[:-1]]
    assert [row.repeat for row in again] == [True] * 1100 + [False]
    assert [row.node for row in ledger.undecided([first[7].inbox_id, again[-1].inbox_id])] == ["gpu-7", "new"]
    with ledger.read() as connection:
        counted = dict(connection.execute(sa.select(INBOX.c.node, INBOX.c.deliveries)).all())
    assert (counted["gpu-7"], counted["gpu-8"], counted["new"]) == (3, 2, 1)


def test_some_of_many_may_be_decided_otherwise(ledger, clock):
    """Each for a reason of its own: held, or decided before the mode was set."""
    held, old, new = (ledger.keep(arrivals(node))[0].inbox_id for node in ("gpu-9", "gpu-1", "gpu-2"))
    inventory = {f"gpu-{number}": {"host": "h", "uid": "u%d" % number} for number in (1, 2)}
    ledger.open_from_inbox([held, old], inventory)
    clock.on(600)
    assert [row.due for row in ledger.keep(arrivals("gpu-9", "gpu-1", "gpu-2"))] == [True, False, True]
    ledger.open_from_inbox([held], inventory)
    ledger.set_mode("act", "jane", "the trial week is over")
    clock.on(1)
    ledger.open_from_inbox([new], inventory)
    assert [row.due for row in ledger.keep(arrivals("gpu-9", "gpu-1", "gpu-2"))] == [False, True, False]


def test_busy_nodes(ledger, clock):
    token = ledger.take_lock("gpu-1", "an incident")
    ledger.take_lock("gpu-2", "another")
    ledger.release_lock("gpu-1", token)
    assert ledger.busy_nodes() == {"gpu-2"}
    clock.on(31)
    assert ledger.busy_nodes() == set()
