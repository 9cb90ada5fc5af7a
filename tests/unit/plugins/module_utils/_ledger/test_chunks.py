# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""More rows than one statement takes, and than fit into memory at once."""

from __future__ import annotations

import json
import sqlite3
import tracemalloc
from datetime import timedelta

import pytest
import sqlalchemy as sa
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.alerts import DEFAULT_LABELS
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.arrivals import How
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.budget import Limits
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.parcels import Parcel, parcels
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger import chunks
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.tables import INBOX, INCIDENTS
from ledgers import NOON, by_hand, opened

EMPTY = json.dumps({"version": "4", "alerts": []}).encode()
MANY = 1200


@pytest.fixture
def narrow(ledger):
    """A ledger that takes 999 values in a statement, as older SQLites do."""
    if ledger._engine.dialect.name != "sqlite":
        pytest.skip("PostgreSQL's limit cannot be set")

    def limit(connection, record):
        connection.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 999)

    sa.event.listen(ledger._engine, "connect", limit)
    ledger._engine.dispose()
    return ledger


def waiting(ledger, count=MANY, body=EMPTY):
    with ledger.write() as connection:
        connection.execute(sa.insert(INBOX), [{"received_at": NOON, "source": "x", "body": body} for _each in range(count)])
    return ledger.waiting()[0]


def test_many_rows_are_decided_at_once(narrow):
    ids = waiting(narrow)
    assert len(ids) == MANY
    narrow.open_from_inbox(ids, {})
    assert narrow.waiting() == ([], None)


def test_many_rows_are_put_up_again(narrow):
    arrivals = [(Parcel(None, True, f"{number:064}", EMPTY), "x") for number in range(MANY)]
    kept = narrow.keep_news(arrivals, [False] * MANY)
    narrow.open_from_inbox([row.inbox_id for row in kept], {})
    assert len(narrow.keep_news(arrivals, [True] * MANY)) == len(narrow.waiting()[0]) == MANY


def test_many_incidents_are_forgotten(narrow, clock):
    incident_id = opened(narrow, by_hand())
    narrow.close_incident(incident_id, "no_action", "a test")
    with narrow.write() as connection:
        [one] = connection.execute(sa.select(INCIDENTS)).mappings()
        connection.execute(sa.insert(INCIDENTS), [{**one, "id": f"i{number}"} for number in range(MANY)])
    clock.on(timedelta(days=91).total_seconds())
    assert narrow.prune(90) > MANY
    assert narrow.overview(closed=True)["incidents"] == []


def test_many_new_nodes_are_fenced_at_once(narrow):
    """S8, S9: opened, granted, applied and weighed, each in one transaction."""
    narrow.configure("fence", {"nodes": MANY}, False, "tests", "the test needs it")
    names = [f"gpu-{number}" for number in range(MANY)]
    alerts = [
        {
            "status": "firing",
            "labels": {"alertname": "GpuXid", "node": name, "xid": "79"},
            "startsAt": "2026-11-29T11:59:30Z",
            "fingerprint": f"{number:016x}",
        }
        for number, name in enumerate(names)
    ]
    kept = narrow.keep([(one, "t") for one in parcels(json.dumps({"version": "4", "alerts": alerts}).encode())])
    records = narrow.open_some([row.inbox_id for row in kept], How(dict.fromkeys(names), DEFAULT_LABELS, Limits(), 0), lambda alert: True)
    asked = {one["id"]: (one["node"], f"node/{one['node']}/taint/x", {}) for one in records}
    granted = narrow.grant(asked, {"key": "x"})
    assert len(records) == len(granted) == len(narrow.all_applied(granted.values(), {})) == MANY
    narrow.detected(dict.fromkeys(asked, ({"fenced": True}, "because")))
    assert narrow.incident(records[-1]["id"])["stages"]["detect"]["data"]["fenced"]


def test_what_waits_is_not_read_at_once(ledger, monkeypatch):
    monkeypatch.setattr(chunks, "ANSWER_BYTES", 2**21)
    waiting(ledger, 24, b"{" + b" " * 2**20)
    tracemalloc.start()
    try:
        ledger.known_episodes(NOON, DEFAULT_LABELS)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 12 * 2**20


@pytest.mark.parametrize(
    ("sizes", "parts"),
    [
        ([], []),
        ([9, 9], [[0], [1]]),
        ([1, 3, 1], [[0, 1], [2]]),
        ([1] * 6, [[0, 1, 2], [3, 4, 5]]),
    ],
)
def test_as_many_as_fit(monkeypatch, sizes, parts):
    monkeypatch.setattr(chunks, "ANSWER_BYTES", 4)
    monkeypatch.setattr(chunks, "STATEMENT_VALUES", 3)
    assert list(chunks.chunks_by_size(enumerate(sizes))) == parts
