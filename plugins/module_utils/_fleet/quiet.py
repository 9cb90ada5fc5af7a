# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Whether the fleet has been quiet about a GPU for long enough (S17). Absence proves something only where somebody was watching."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Optional, Protocol

from ansible_collections.gpuops.remediation.plugins.module_utils._diagnosis.witness import KERNEL_LOG
from ansible_collections.gpuops.remediation.plugins.module_utils._errors import RemediationError
from ansible_collections.gpuops.remediation.plugins.module_utils._fleet.episodes import FRESH_SECONDS
from ansible_collections.gpuops.remediation.plugins.module_utils._fleet.prometheus import Series
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.alerts import Alert, HeldAlert, LabelMap, is_own, judge
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.release import SHARED, Case, concerned
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.times import iso
from ansible_collections.gpuops.remediation.plugins.module_utils._names import METRIC_NVML_UP, METRIC_SOURCE_AGE


class Prometheus(Protocol):
    def raw(self, query: str) -> list[Series]: ...


@dataclass(frozen=True)
class Subject:
    """What is to be released: a GPU by all the names that it has, or had; `wide` where the whole node is meant.

    alert_name: of the alert that opened the incident; it counts even where it names no GPU.
    """

    node: str
    uuids: frozenset[str] = frozenset()
    pci_bus_ids: frozenset[str] = frozenset()
    indexes: frozenset[int] = frozenset()
    wide: bool = False
    alert_name: Optional[str] = None


def subject_of(case: Case, incident: Mapping[str, Any]) -> Subject:
    """A GPU has the names that it had when it was diagnosed and those of what sits in its slot now."""
    gpus = [gpu for info in (case.then, case.now) for gpu in concerned(case, info)]
    return Subject(
        node=incident["node"],
        uuids=_known(case.gpu_uuid, *(gpu.get("uuid") for gpu in gpus)),
        pci_bus_ids=_known(case.pci_bus_id, *(gpu.get("pci_bus_id") for gpu in gpus)),
        indexes=_known(*(gpu.get("index") for gpu in gpus)),
        wide=case.scope == "node" or case.domain in SHARED or not (case.gpu_uuid or case.pci_bus_id),
        alert_name=(incident.get("alert") or {}).get("name"),
    )


def _known(*names: Any) -> frozenset[Any]:
    return frozenset(name for name in names if name is not None)


def faults(prometheus: Prometheus, subject: Subject, quiet_seconds: int, now: datetime, labels: LabelMap) -> list[str]:
    """Why the fleet does not agree; a Prometheus that does not answer does not."""
    node = json.dumps(subject.node)
    try:
        up = prometheus.raw("%s{node=%s}[%ds]" % (METRIC_NVML_UP, node, quiet_seconds))
        ages = prometheus.raw("%s{node=%s,source=%s}[%ds]" % (METRIC_SOURCE_AGE, node, json.dumps(KERNEL_LOG), quiet_seconds))
        alerts = prometheus.raw('ALERTS{alertstate="firing"}[%ds]' % quiet_seconds)
    except RemediationError as error:
        return [str(error)]
    watched = _exporter(up, subject, quiet_seconds, now) or _kernel_log(ages, subject, quiet_seconds, now)
    return [*watched, *_alerts(alerts, subject, now, labels)]


def _exporter(up: Sequence[Series], subject: Subject, quiet_seconds: int, now: datetime) -> list[str]:
    points = sorted(point for _labels, series in up for point in series)
    if not points:
        return ["Prometheus knows no exporter of node %s" % subject.node]
    newest, value = points[-1]
    age, watched = (now - newest).total_seconds(), (now - points[0][0]).total_seconds()
    if age > FRESH_SECONDS:
        return ["the exporter of node %s was last read %d s ago" % (subject.node, age)]
    if value != 1:
        return ["the exporter of node %s cannot read its GPUs" % subject.node]
    if watched < quiet_seconds - FRESH_SECONDS:
        return ["the exporter of node %s has been watched for %d s, and %d are asked for" % (subject.node, watched, quiet_seconds)]
    return []


def _kernel_log(ages: Sequence[Series], subject: Subject, quiet_seconds: int, now: datetime) -> list[str]:
    """An exporter answers, with the Xids that it had, also where root's reader is dead."""
    points = sorted(point for _labels, series in ages for point in series)
    if not points or (now - points[-1][0]).total_seconds() > FRESH_SECONDS:
        return ["the exporter of node %s has no kernel log" % subject.node]
    longest, watched = max(age for _time, age in points), (now - points[0][0]).total_seconds()
    if longest > FRESH_SECONDS:
        return ["the exporter of node %s heard nothing of the kernel log for %d s" % (subject.node, longest)]
    if watched < quiet_seconds - FRESH_SECONDS:
        return ["the kernel log of node %s has been read for %d s, and %d are asked for" % (subject.node, watched, quiet_seconds)]
    return []


def _alerts(alerts: Iterable[Series], subject: Subject, now: datetime, labels: LabelMap) -> list[str]:
    found = []
    for series, points in alerts:
        alert = _judged(series, now, labels)
        if alert and _concerns(alert, subject):
            found.append("the alert %s was last seen firing %d s ago" % (alert.name, (now - points[-1][0]).total_seconds()))
    return sorted(set(found))


def _judged(series: object, now: datetime, labels: LabelMap) -> Optional[Alert]:
    """The labels of others' alerts are anything; what names no node of ours is not about it."""
    raw = {"status": "firing", "startsAt": iso(now), "labels": series, "annotations": {}}
    try:
        return None if is_own(raw) else judge(raw, "", labels)
    except HeldAlert:
        return None


def _concerns(alert: Alert, subject: Subject) -> bool:
    if alert.node != subject.node:
        return False
    if subject.wide:
        return True
    if alert.gpu_uuid or alert.pci_bus_id:
        return alert.gpu_uuid in subject.uuids or alert.pci_bus_id in subject.pci_bus_ids
    if alert.gpu_index is not None:
        return alert.gpu_index in subject.indexes
    return alert.name == subject.alert_name
