# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""What the event source tells Prometheus."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, Optional

from ansible_collections.gpuops.remediation.plugins.module_utils import _names
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.figures import Figures
from ansible_collections.gpuops.remediation.plugins.plugin_utils._trigger.libraries import prometheus_client

REFUSALS = ("token", "not_json", "too_large", "too_slow", "ledger_unavailable")
FENCES = ("fenced", "not_confirmed", "failed")
KEPT_SECONDS = 2.0  # for as long the ledger is not read again
PATIENCE_SECONDS = 4.0  # a ledger that has not answered by then is shown as away; a scrape may take ten seconds by default


class LedgerMetrics:
    """What is read from the ledger when Prometheus asks. One that does not answer takes no other metric with it, and one thread at most."""

    def __init__(self, read: Callable[[], Figures]) -> None:
        self._read = read
        self._reading: Optional[asyncio.Task[Optional[Figures]]] = None
        self._since = 0.0

    async def refresh(self) -> None:
        now = asyncio.get_running_loop().time()
        if self._reading is None or (self._reading.done() and now - self._since >= KEPT_SECONDS):
            self._since, self._reading = now, asyncio.create_task(self._figures())
        await asyncio.wait([self._reading], timeout=PATIENCE_SECONDS)

    async def _figures(self) -> Optional[Figures]:
        try:
            return await asyncio.to_thread(self._read)
        except Exception:  # whatever it is, it is shown as gpuops_ledger_up
            return None

    def collect(self) -> Iterator[Any]:
        """As prometheus_client wants it."""
        Gauge = prometheus_client.metrics_core.GaugeMetricFamily
        figures = self._reading.result() if self._reading and self._reading.done() else None
        yield Gauge(
            "gpuops_ledger_up", "Whether the ledger could be read just now; what follows is left out where not", figures is not None
        )
        if figures is None:
            return
        mode = Gauge("gpuops_mode", "1 for the mode in force", labels=["mode"])
        mode.add_metric([figures.mode], 1)
        incidents = Gauge("gpuops_incidents_open", "Incidents that are open", labels=["state"])
        for state, count in figures.open_incidents.items():
            incidents.add_metric([state], count)
        seen, ended = (at.timestamp() if at else 0.0 for at in (figures.reconcile_seen_at, figures.reconciled_at))
        yield from (mode, incidents)
        yield Gauge(_names.METRIC_INCIDENTS_OVERDUE, "Incidents that run although their time is over", figures.overdue)
        yield Gauge(_names.METRIC_WAITING_OLDEST, "How long an incident has waited for room, the longest", _age(figures.waiting_since))
        yield Gauge("gpuops_breaker_tripped", "Whether the breaker has tripped", figures.breaker_tripped)
        yield Gauge("gpuops_outbox_oldest_seconds", "Age of the oldest notification that is due and not sent", _age(figures.outbox_since))
        yield Gauge(
            "gpuops_reconcile_last_timestamp_seconds",
            "When a reconcile last turned to the nodes or got to its end; 0 for never",
            seen,
        )
        yield Gauge("gpuops_reconcile_last_success_timestamp_seconds", "When a reconcile last got to its end; 0 for never", ended)


def _age(since: Optional[datetime]) -> float:
    return max(0.0, time.time() - since.timestamp()) if since else 0.0


class Metrics:
    def __init__(self, read: Callable[[], Figures]) -> None:
        registry = self._registry = prometheus_client.CollectorRegistry()
        Counter, Gauge = prometheus_client.Counter, prometheus_client.Gauge
        self.messages = Counter("gpuops_trigger_messages", "Messages answered with 200", registry=registry)
        self.accepted = Counter("gpuops_trigger_accepted", "Inbox rows committed", registry=registry)
        self.duplicates = Counter("gpuops_trigger_duplicates", "Deliveries of an inbox row that was there already", registry=registry)
        self.refused = Counter("gpuops_trigger_refused", "Messages that were not taken", ["why"], registry=registry)
        self.handed_over = Counter("gpuops_trigger_handed_over", "Inbox rows given to a run; one may be given again", registry=registry)
        self.fences = Counter("gpuops_trigger_fences", "Incidents that the source has weighed", ["outcome"], registry=registry)
        self.undecided = Gauge("gpuops_inbox_depth", "Inbox rows that the ledger has no decision about", registry=registry)
        age = Gauge("gpuops_inbox_oldest_seconds", "Age of the oldest inbox row without a decision", registry=registry)
        age.set_function(lambda: time.time() - self.oldest if self.oldest else 0.0)
        self.oldest: Optional[float] = None  # when it was received
        for why in REFUSALS:
            self.refused.labels(why)
        for outcome in FENCES:
            self.fences.labels(outcome)
        self._ledger = LedgerMetrics(read)
        registry.register(self._ledger)

    async def text(self) -> bytes:
        """The exposition format, version 0.0.4."""
        await self._ledger.refresh()
        text: bytes = prometheus_client.generate_latest(self._registry)
        return text
