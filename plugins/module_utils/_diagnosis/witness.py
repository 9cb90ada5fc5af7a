# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Prometheus as a second witness of what an alert says: one query for the nodes of a batch, and what its answer means for one alert.

The alert itself came from Prometheus a while ago, through a rule and an Alertmanager. What counts here is that the exporter on the node says
the same now: a sample older than 60 s confirms nothing (S3), and neither does a count that the exporter had from a kernel log that nobody reads.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol

from ansible_collections.gpuops.remediation.plugins.module_utils._names import (
    METRIC_NVML_UP,
    METRIC_SOURCE_AGE,
    METRIC_XID_EVENTS,
)
from ansible_collections.gpuops.remediation.plugins.module_utils._xid.lines import normalize_pci

FRESH_SECONDS = 60

KERNEL_LOG = "kernel_log"  # the source by which the exporter counts Xids

CONFIRMED, CONTRADICTED, MISSING = "confirmed", "contradicted", "missing"


class Sample(Protocol):
    """The newest value of a series, and when it was scraped."""

    @property
    def labels(self) -> Mapping[str, str]: ...

    @property
    def value(self) -> float: ...

    @property
    def time(self) -> datetime: ...


@dataclass(frozen=True)
class Word:
    """What the witness says of one alert."""

    says: str
    why: str


def query(nodes: Iterable[str]) -> str:
    """PromQL for all that the witness is asked about, as raw samples: an instant vector's time would be the query's own."""
    names = "|".join(node.replace(".", "[.]") for node in sorted(set(nodes)))
    metrics = "|".join((METRIC_XID_EVENTS, METRIC_NVML_UP, METRIC_SOURCE_AGE))
    wanted = {"__name__": metrics, "node": names, "source": "|" + KERNEL_LOG}
    return "{%s}[%ds]" % (",".join("%s=~%s" % (label, json.dumps(pattern)) for label, pattern in wanted.items()), FRESH_SECONDS)


def ask(alert: Mapping[str, Any], samples: Sequence[Sample], now: datetime) -> Word:
    """What fresh samples say of an alert about an Xid, an alert's record as `_incident.alerts.Alert` gives it."""
    since = now - timedelta(seconds=FRESH_SECONDS)
    fresh = [sample for sample in samples if sample.labels.get("node") == alert["node"] and sample.time >= since]
    if not fresh:
        return Word(MISSING, "Prometheus has no sample of node %s that is younger than %d s" % (alert["node"], FRESH_SECONDS))
    ages = [one.value for one in fresh if one.labels.get("__name__") == METRIC_SOURCE_AGE and one.labels.get("source") == KERNEL_LOG]
    if not ages or min(ages) > FRESH_SECONDS:
        return Word(MISSING, "the exporter of node %s has heard nothing of the kernel log for %d s" % (alert["node"], FRESH_SECONDS))
    counts = [one for one in fresh if one.labels.get("__name__") == METRIC_XID_EVENTS and one.labels.get("xid") == str(alert.get("xid"))]
    if any(sample.value > 0 and _same_gpu(alert, sample.labels) for sample in counts):
        return Word(CONFIRMED, "Prometheus has Xid %s of this GPU from the node's own exporter" % alert.get("xid"))
    if any(sample.labels.get("__name__") == METRIC_NVML_UP and sample.value == 0 for sample in fresh):
        return Word(MISSING, "the exporter of node %s cannot read its GPUs" % alert["node"])
    return Word(CONTRADICTED, "the exporter of node %s knows no Xid %s of this GPU" % (alert["node"], alert.get("xid")))


def _same_gpu(alert: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    if alert.get("gpu_uuid"):
        return bool(labels.get("gpu_uuid") == alert["gpu_uuid"])
    if alert.get("pci_bus_id"):
        return normalize_pci(labels.get("pci_bus_id")) == normalize_pci(alert["pci_bus_id"])
    return False  # an index moves when a GPU is lost
