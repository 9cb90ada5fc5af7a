# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import sqlalchemy as sa
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.tables import OUTBOX


def test_once_an_incident_and_state(ledger):
    """S16"""
    assert ledger.notify("k", "contained", {"a": 1})
    assert not ledger.notify("k", "contained", {"a": 2})
    (one,) = ledger.claim_notifications()
    assert (one["topic"], one["payload"]) == ("contained", {"a": 1})


def test_a_claim_lasts_two_minutes(ledger, clock):
    ledger.notify("k", "contained", {})
    (one,) = ledger.claim_notifications()
    assert ledger.claim_notifications() == []
    clock.on(121)
    assert [again["id"] for again in ledger.claim_notifications()] == [one["id"]]
    assert ledger.notifications_sent([one["id"]]) == 1
    assert ledger.notifications_sent([one["id"]]) == 0
    clock.on(1000)
    assert ledger.claim_notifications() == []


def test_what_failed_comes_up_again_later_each_time(ledger, clock):
    ledger.notify("k", "contained", {})
    waits = []
    for _attempt in range(6):
        (one,) = ledger.claim_notifications()
        assert ledger.notifications_failed([one["id"]], "the pager is down") == 1
        waits.append((_due(ledger) - clock()).total_seconds())
        clock.now = _due(ledger)
    assert waits == [30, 60, 120, 300, 900, 900]
    assert ledger.overview()["unsent"][0]["error"] == "the pager is down"


def test_each_channel_is_told_once(ledger, clock):
    """One that fails does not make the other hear it again; what is configured since hears it too, what is no longer is not waited for."""
    ledger.notify("k", "contained", {})
    (one,) = ledger.claim_notifications(channels=["command", "alertmanager"])
    assert one["channels"] == ["alertmanager", "command"]
    assert ledger.notifications_sent([one["id"]], "command") == 1
    assert ledger.notifications_sent([one["id"]], "command") == 0
    assert ledger.notifications_failed([one["id"]], "the pager is down") == 1
    (unsent,) = ledger.overview()["unsent"]
    assert (unsent["channels"], unsent["error"]) == (["alertmanager"], "the pager is down")

    def due(*channels):
        clock.on(1000)
        return [again["channels"] for again in ledger.claim_notifications(channels=channels)]

    assert due("command", "alertmanager") == [["alertmanager"]]
    assert due("command", "alertmanager", "chat") == [["alertmanager", "chat"]]
    assert ledger.notifications_sent([one["id"]], "chat") == 1
    assert len(ledger.overview()["unsent"]) == 1
    assert ledger.notifications_sent([one["id"]], "alertmanager") == 1
    assert ledger.overview()["unsent"] == [] and due("mail") == []


def test_what_the_last_channel_had_is_sent(ledger, clock):
    """The one that failed is configured no longer."""
    ledger.notify("k", "contained", {})
    (one,) = ledger.claim_notifications(channels=["command", "alertmanager"])
    ledger.notifications_sent([one["id"]], "command")
    clock.on(1000)
    assert len(ledger.claim_notifications()) == 1, "who names no channel decides about none"
    clock.on(1000)
    assert ledger.claim_notifications(channels=["command"]) == []
    assert ledger.overview()["unsent"] == []


def _due(ledger):
    with ledger.read() as connection:
        return connection.execute(sa.select(OUTBOX.c.due_at)).scalar()


def test_a_limit(ledger):
    for number in range(5):
        ledger.notify(str(number), "contained", {})
    assert [one["key"] for one in ledger.claim_notifications(2)] == ["0", "1"]
    assert len(ledger.claim_notifications()) == 3
