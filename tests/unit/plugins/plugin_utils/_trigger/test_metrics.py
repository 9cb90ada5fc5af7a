# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils import _names
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.errors import LedgerUnavailable
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.figures import Figures
from ansible_collections.gpuops.remediation.plugins.plugin_utils._trigger import metrics

NOW = datetime.now(timezone.utc)
FIGURES = Figures("act", True, NOW, NOW, NOW - timedelta(seconds=60), {"contained": 2, "running": 0}, 1, None)


def shown(text):
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in text.decode().splitlines() if not line.startswith("#")}


def scrape(read):
    return shown(asyncio.run(metrics.Metrics(read).text()))


def test_what_the_ledger_says():
    since = datetime.now(timezone.utc) - timedelta(seconds=90)
    found = scrape(lambda: replace(FIGURES, outbox_since=since, waiting_since=since - timedelta(seconds=600)))
    assert 690 <= found.pop(_names.METRIC_WAITING_OLDEST) < 750
    assert 90 <= found.pop("gpuops_outbox_oldest_seconds") < 150
    assert found.pop("gpuops_reconcile_last_timestamp_seconds") == pytest.approx(NOW.timestamp())
    assert found.pop("gpuops_reconcile_last_success_timestamp_seconds") == pytest.approx(NOW.timestamp() - 60)
    ours = ("gpuops_ledger_up", "gpuops_mode", "gpuops_incidents", "gpuops_breaker")
    assert {name: value for name, value in found.items() if name.startswith(ours)} == {
        "gpuops_ledger_up": 1, 'gpuops_mode{mode="act"}': 1, "gpuops_breaker_tripped": 1,
        _names.METRIC_INCIDENTS_OVERDUE: 1, 'gpuops_incidents_open{state="contained"}': 2, 'gpuops_incidents_open{state="running"}': 0,
    }  # fmt: skip


@pytest.mark.parametrize("error", [LedgerUnavailable("away"), ValueError("something else")])
def test_a_ledger_that_is_away_takes_no_other_metric_with_it(error):
    def read():
        raise error

    found = scrape(read)
    assert (found["gpuops_ledger_up"], found["gpuops_inbox_depth"]) == (0, 0)
    assert not {
        name for name in found if name.startswith(("gpuops_mode", "gpuops_breaker", "gpuops_outbox", "gpuops_reconcile", "gpuops_waiting"))
    }


def test_a_ledger_that_hangs_holds_one_thread_and_no_scrape(monkeypatch):
    monkeypatch.setattr(metrics, "PATIENCE_SECONDS", 0.05)
    gate, calls = threading.Event(), []

    def read():
        calls.append(1)
        gate.wait(10)
        return FIGURES

    async def scrapes():
        endpoint = metrics.Metrics(read)
        during = [shown(await endpoint.text())["gpuops_ledger_up"] for _scrape in range(3)]
        gate.set()
        while (after := shown(await endpoint.text()))["gpuops_ledger_up"] == 0:
            pass
        return during, after["gpuops_breaker_tripped"]

    assert asyncio.run(scrapes()) == ([0, 0, 0], 1)
    assert len(calls) == 1


def test_scrapes_close_together_share_a_look():
    calls = []

    def read():
        calls.append(1)
        return FIGURES

    async def scrapes():
        endpoint = metrics.Metrics(read)
        return [await endpoint.text() for _scrape in range(3)]

    asyncio.run(scrapes())
    assert len(calls) == 1
