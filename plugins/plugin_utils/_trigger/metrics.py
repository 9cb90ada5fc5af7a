# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""What the event source tells Prometheus."""

from __future__ import annotations

import time
from typing import Optional

from ansible_collections.gpuops.remediation.plugins.plugin_utils._trigger.libraries import prometheus_client

REFUSALS = ("token", "not_json", "too_large", "too_slow", "ledger_unavailable")
FENCES = ("fenced", "not_confirmed", "failed")


class Metrics:
    def __init__(self) -> None:
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

    def text(self) -> bytes:
        """The exposition format, version 0.0.4."""
        text: bytes = prometheus_client.generate_latest(self._registry)
        return text
