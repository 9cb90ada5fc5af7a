# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.figures import Figures
from ledgers import by_hand, opened

NOBODY = {"contained": 0, "fenced_waiting": 0, "held_for_human": 0, "quarantined_overdue": 0, "running": 0}


def test_a_new_ledger(ledger):
    assert ledger.figures() == Figures("observe", False, None, None, None, NOBODY, 0, None)


def test_what_has_happened(ledger, clock):
    """An incident that is closed is not counted, a notification that is sent does not wait."""
    ledger.set_mode("act", "tests", "the test needs it")
    ledger.configure(None, {"nodes": 1, "percent": 0}, False, "tests", "the test needs it")
    for node in ("gpu-1", "gpu-2"):
        try:
            ledger.take_slot("i", node)
        except Exception as error:
            assert "breaker has tripped" in str(error)
    ledger.close_incident(opened(ledger, by_hand("1")), "no_action")
    opened(ledger, by_hand("2"))
    ledger.notifications_sent([one["id"] for one in ledger.claim_notifications()])
    clock.on(10)
    since = clock.now
    ledger.notify("first", "x", {})
    clock.on(10)
    ledger.notify("second", "x", {})
    figures = ledger.figures()
    assert (figures.mode, figures.breaker_tripped, figures.outbox_since) == ("act", True, since)
    assert figures.open_incidents == {**NOBODY, "running": 1}


def test_what_nobody_ends_and_who_waits(ledger, clock):
    """Waiting is counted from when it began, and what waits has all its time yet."""
    first = opened(ledger, by_hand(node="gpu-0", uid="uid-0"))
    clock.on(100)
    since = clock.now
    second = ledger.open_incident(by_hand(node="gpu-1", uid="uid-1", now=since), max_running=1).record["id"]
    clock.on(620)
    assert (ledger.figures().overdue, ledger.figures().waiting_since) == (1, since)
    clock.on(720)
    assert ledger.figures().overdue == 1, "the other one waits"
    ledger.close_incident(first, "held_for_human")
    ledger.begin([second], max_running=1)
    assert (ledger.figures().overdue, ledger.figures().waiting_since) == (0, None)


def test_only_the_last_reconcile_is_kept_and_it_is_no_setting(ledger, clock):
    ledger.set_mode("fence", "jane", "first week")
    settings = ledger.settings_history()
    for _timer in range(30):
        clock.on(300)
        ledger.reconciled()
    ended = clock.now
    clock.on(60)
    ledger.reconciling()
    figures = ledger.figures()
    assert (figures.reconcile_seen_at, figures.reconciled_at) == (clock.now, ended)
    assert ledger.settings_history() == settings
