# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Samples -> the text that Prometheus reads."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

from ansible_collections.gpuops.remediation.plugins.module_utils._exporter.samples import Sample
from ansible_collections.gpuops.remediation.plugins.module_utils._names import EXPORTER_METRICS, PROBE_METRICS

with contextlib.suppress(ImportError):  # the program that serves it takes it along
    from prometheus_client.exposition import generate_latest
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily


def families(samples: Iterable[Sample]) -> Iterator[Any]:
    """prometheus_client's, in the order of the names' table."""
    by_metric: dict[str, list[Sample]] = {}
    for sample in samples:
        by_metric.setdefault(sample.metric, []).append(sample)
    for metric in (*EXPORTER_METRICS, *PROBE_METRICS):
        if metric.name in by_metric:
            kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            family = kind(metric.name, metric.help, labels=metric.labels)
            for sample in by_metric[metric.name]:
                family.add_metric(sample.labels, sample.value)
            yield family


class _Once:
    """What prometheus_client takes for a registry."""

    def __init__(self, samples: Iterable[Sample]) -> None:
        self._samples = samples

    def collect(self) -> Iterator[Any]:
        return families(self._samples)


def render(samples: Iterable[Sample]) -> bytes:
    text: bytes = generate_latest(_Once(samples))
    return text
