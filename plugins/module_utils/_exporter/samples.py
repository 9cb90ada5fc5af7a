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
from ansible_collections.gpuops.remediation.plugins.module_utils._exporter.owners import bounded
from ansible_collections.gpuops.remediation.plugins.module_utils._exporter.pressure import level
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
    for gpu in known.gpus:
        if gpu.uuid or gpu.pci_bus_id:  # figures without a name could be any GPU's, and twice the same labels spoil the page
            yield from _of_gpu(gpu, (known.node, gpu.uuid or "", gpu.pci_bus_id or ""))
    if known.state:
        yield from _xids(known.node, known.state, known.gpus)
        if known.state_age_seconds < STALE_SECONDS:
            yield from _owners(known.node, known.state, max_owners)


def _of_gpu(gpu: Gpu, labels: tuple[str, str, str]) -> Iterator[Sample]:
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
    metrics = (names.METRIC_MEMORY_USED, names.METRIC_MEMORY_TOTAL, names.METRIC_PRESSURE)
    yield from _memory(metrics, labels, gpu.memory_used_bytes, gpu.memory_total_bytes)
    metrics = (names.METRIC_MIG_MEMORY_USED, names.METRIC_MIG_MEMORY_TOTAL, names.METRIC_MIG_PRESSURE)
    instances = {one["gi"]: one for one in gpu.mig["instances"] if one["gi"] is not None}
    for gi, one in instances.items():  # compute instances share their GPU instance's memory
        yield from _memory(metrics, (*labels, str(gi)), one["memory_used_bytes"], one["memory_total_bytes"])


def _memory(metrics: tuple[str, str, str], labels: tuple[str, ...], used: Optional[int], total: Optional[int]) -> Iterator[Sample]:
    if used is not None and total:  # integrated GPUs tell of none
        yield from (Sample(metric, labels, value) for metric, value in zip(metrics, (used, total, level(used, total))))


def _xids(node: str, state: Mapping[str, Any], gpus: Iterable[Gpu]) -> Iterator[Sample]:
    """A GPU that NVML has lost keeps the name that it had."""
    uuids = {one["pci_bus_id"]: one["uuid"] for one in state["gpus"]}
    uuids.update({gpu.pci_bus_id: gpu.uuid for gpu in gpus if gpu.uuid})
    for one in state["xids"]["counts"]:
        labels = (node, uuids.get(one["pci_bus_id"]) or "", one["pci_bus_id"], _instance(one["gi"]), str(one["code"]))
        yield Sample(names.METRIC_XID_EVENTS, labels, one["count"])
        yield Sample(names.METRIC_XID_LAST, labels, one["last_seconds"])


def _owners(node: str, state: Mapping[str, Any], limit: int) -> Iterator[Sample]:
    for one in bounded(state["owners"], limit):
        labels = (node, one["uuid"] or "", one["pci_bus_id"] or "", _instance(one["gi"]))
        owner = (one["container_id"] or "", one["pod_uid"] or "", one["unit"] or "")
        yield Sample(names.METRIC_CONTAINER_MEMORY, (*labels, *owner), one["memory_bytes"])


def _instance(gi: Optional[int]) -> str:
    return "" if gi is None else str(gi)
