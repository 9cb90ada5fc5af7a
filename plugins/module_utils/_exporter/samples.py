# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""What is known of a node -> samples under the names of `_names`. Nothing is read here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Optional

from ansible_collections.gpuops.remediation.plugins.module_utils import _names as names
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.layout import HELD
from ansible_collections.gpuops.remediation.plugins.module_utils._exporter.owners import bounded, summed
from ansible_collections.gpuops.remediation.plugins.module_utils._exporter.pressure import level, oom_score
from ansible_collections.gpuops.remediation.plugins.module_utils._exporter.requests import last_minute
from ansible_collections.gpuops.remediation.plugins.module_utils._gpu.records import Gpu, recovery_number

STALE_SECONDS = 60.0  # what is older is no evidence


class Sample(NamedTuple):
    """`labels` are the values, in the metric's order."""

    metric: str
    labels: tuple[str, ...]
    value: float


@dataclass(frozen=True)
class Known:
    """Of one node at one moment. `state` is what root's reader wrote in this boot; None where there is nothing of it."""

    node: str
    gpus: Sequence[Gpu] = ()
    nvml_up: bool = False
    state: Optional[Mapping[str, Any]] = None
    state_age_seconds: float = 0.0
    abandoned: int = 0
    costs: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # by part: processor seconds, resident bytes


def samples(known: Known, max_owners: int) -> Iterator[Sample]:
    yield Sample(names.METRIC_NVML_UP, (known.node,), known.nvml_up)
    yield Sample(names.METRIC_ABANDONED, (known.node,), known.abandoned)
    for part, (cpu_seconds, resident_bytes) in known.costs.items():
        yield Sample(names.METRIC_CPU, (known.node, part), cpu_seconds)
        yield Sample(names.METRIC_RESIDENT, (known.node, part), resident_bytes)
    fresh = known.state if known.state and known.state_age_seconds < STALE_SECONDS else None
    busy = last_minute(fresh["probes"]) if fresh else {}
    for gpu in known.gpus:
        if gpu.uuid or gpu.pci_bus_id:  # figures without a name could be any GPU's, and twice the same labels spoil the page
            yield from _of_gpu(gpu, (known.node, gpu.uuid or "", gpu.pci_bus_id or ""), busy)
    if known.state:
        yield from _xids(known.node, known.state, known.gpus)
        yield from _probes(known.node, known.state, known.gpus)
    if fresh:
        yield from _owners(known.node, fresh, max_owners)
        yield from _held(known.node, fresh["probes"]["held"], max_owners)


def _of_gpu(gpu: Gpu, labels: tuple[str, str, str], busy: Mapping[str, int]) -> Iterator[Sample]:
    """What NVML did not tell has no sample: 0 would be an answer."""
    told = {
        names.METRIC_RECOVERY_ACTION: recovery_number(gpu.recovery_action),
        names.METRIC_ROW_REMAP_PENDING: gpu.remapped_rows["pending"],
        names.METRIC_ROW_REMAP_FAILED: gpu.remapped_rows["failure"],
        names.METRIC_PERSISTENCE: gpu.persistence_mode,
    }
    yield from (Sample(metric, labels, value) for metric, value in told.items() if value is not None)
    for error in ("corrected", "uncorrected"):
        count = gpu.ecc[f"{error}_volatile"]
        if count is not None:
            yield Sample(names.METRIC_ECC_ERRORS, (*labels, error), count)
    metrics = (names.METRIC_MEMORY_USED, names.METRIC_MEMORY_TOTAL, names.METRIC_PRESSURE, names.METRIC_OOM_SCORE)
    allocations = {place.rpartition("/")[2]: count for place, count in busy.items() if place.startswith(f"{gpu.uuid}/")}
    yield from _memory(metrics, labels, gpu.memory_used_bytes, gpu.memory_total_bytes, sum(allocations.values()))
    metrics = (names.METRIC_MIG_MEMORY_USED, names.METRIC_MIG_MEMORY_TOTAL, names.METRIC_MIG_PRESSURE, names.METRIC_MIG_OOM_SCORE)
    instances = {one["gi"]: one for one in gpu.mig["instances"] if one["gi"] is not None}
    for gi, one in instances.items():  # compute instances share their GPU instance's memory
        yield from _memory(metrics, (*labels, str(gi)), one["memory_used_bytes"], one["memory_total_bytes"], allocations.get(str(gi), 0))


def _memory(
    metrics: tuple[str, ...], labels: tuple[str, ...], used: Optional[int], total: Optional[int], allocations_last_minute: int
) -> Iterator[Sample]:
    if used is not None and total:  # integrated GPUs tell of none
        values = (used, total, level(used, total), oom_score(used, total, allocations_last_minute))
        yield from (Sample(metric, labels, value) for metric, value in zip(metrics, values))


def _xids(node: str, state: Mapping[str, Any], gpus: Iterable[Gpu]) -> Iterator[Sample]:
    """A GPU that NVML has lost keeps the name that it had."""
    uuids = _uuids(state, gpus)
    for one in state["xids"]["counts"]:
        labels = (node, uuids.get(one["pci_bus_id"]) or "", one["pci_bus_id"], _instance(one["gi"]), str(one["code"]))
        yield Sample(names.METRIC_XID_EVENTS, labels, one["count"])
        yield Sample(names.METRIC_XID_LAST, labels, one["last_seconds"])


def _uuids(state: Mapping[str, Any], gpus: Iterable[Gpu]) -> dict[Optional[str], Optional[str]]:
    uuids = {one["pci_bus_id"]: one["uuid"] for one in state["gpus"]}
    uuids.update({gpu.pci_bus_id: gpu.uuid for gpu in gpus if gpu.uuid})
    return uuids


def _probes(node: str, state: Mapping[str, Any], gpus: Iterable[Gpu]) -> Iterator[Sample]:
    """What is counted goes on while root's reader is silent, as Xids do."""
    told, uuids = state["probes"], _uuids(state, gpus)
    yield from (Sample(names.METRIC_PROBE_ATTACHED, (node, probe), attached) for probe, attached in told["attached"].items())
    own = {"calls": names.METRIC_PROBE_CALLS, "untracked_bytes": names.METRIC_PROBE_UNTRACKED}
    for reason, count in told["counters"].items():
        yield Sample(own.get(reason, names.METRIC_PROBE_UNCOUNTED), (node,) if reason in own else (node, reason), count)
    for key, (allocations, frees) in told["calls"]:
        labels = (node, *(one or "" for one in key))
        yield Sample(names.METRIC_ALLOCATIONS, labels, allocations)
        yield Sample(names.METRIC_FREES, labels, frees)
    for key, (count,) in told["failures"]:
        yield Sample(names.METRIC_ALLOCATION_FAILURES, (node, *(one or "" for one in key)), count)
    for one in told["xids"]:
        labels = (node, uuids.get(one["pci_bus_id"]) or "", one["pci_bus_id"], str(one["xid"]))
        yield Sample(names.METRIC_PROBE_XIDS, labels, one["count"])
        for source, reports in (("kernel_log", one["lines"]), ("tracepoint", one["traces"])):
            yield Sample(names.METRIC_PROBE_XID_REPORTS, (*labels, source), reports)


def _held(node: str, held: Sequence[Mapping[str, Any]], limit: int) -> Iterator[Sample]:
    figures = ("requested_bytes", "context_bytes", *HELD)
    for one in bounded(summed(map(dict, held), figures), limit, figures):
        labels = _owned(node, one)
        yield from (Sample(names.METRIC_CONTAINER_REQUESTED, (*labels, kind), one[kind]) for kind in HELD)
        if one["context_bytes"] is not None:
            yield Sample(names.METRIC_CONTAINER_CONTEXT, labels, one["context_bytes"])
    for one in bounded(list(map(dict, held)), limit, figures):
        labels = (*_owned(node, one), "" if one["pid"] is None else str(one["pid"]))
        yield Sample(names.METRIC_PROCESS_REQUESTED, labels, one["requested_bytes"])
        if one["context_bytes"] is not None:
            yield Sample(names.METRIC_PROCESS_CONTEXT, labels, one["context_bytes"])


def _owners(node: str, state: Mapping[str, Any], limit: int) -> Iterator[Sample]:
    for one in bounded(state["owners"], limit):
        yield Sample(names.METRIC_CONTAINER_MEMORY, _owned(node, one), one["memory_bytes"])


def _owned(node: str, one: Mapping[str, Any]) -> tuple[str, ...]:
    place = (one["uuid"] or "", one["pci_bus_id"] or "", _instance(one["gi"]))
    return (node, *place, *(one[name] or "" for name in names.LABELS_OWNER))


def _instance(gi: Optional[int]) -> str:
    return "" if gi is None else str(gi)
