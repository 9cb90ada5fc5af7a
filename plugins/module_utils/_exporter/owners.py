# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Whose memory it is: processes of GPUs, summed by container or unit. Nothing is read here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ansible_collections.gpuops.remediation.plugins.module_utils._gpu.records import Gpu
from ansible_collections.gpuops.remediation.plugins.module_utils._names import OTHER_OWNERS

Owned = dict[str, Any]
_OWNER = ("container_id", "pod_uid", "unit")


def owned(gpus: Iterable[Gpu]) -> list[Owned]:
    """By GPU, GPU instance and owner. A process whose memory nobody can tell adds nothing."""
    sums: dict[tuple[Any, ...], int] = {}
    for gpu in gpus:
        for process in gpu.processes:
            if process["memory_bytes"] is not None:
                key = (gpu.uuid, gpu.pci_bus_id, process["gi"], *_owner(process))
                sums[key] = sums.get(key, 0) + process["memory_bytes"]
    return [dict(zip(("uuid", "pci_bus_id", "gi", *_OWNER, "memory_bytes"), (*key, total))) for key, total in sums.items()]


def _owner(process: Mapping[str, Any]) -> tuple[Any, ...]:
    container = process.get("container")
    return (container["id"], container["pod_uid"], None) if container else (None, None, process.get("unit"))


def bounded(found: Sequence[Owned], limit: int) -> list[Owned]:
    """The largest; of each GPU and instance the rest together, so that churn of small containers makes no endless series."""
    ordered = sorted(found, key=lambda one: (-one["memory_bytes"], str(one["container_id"]), str(one["unit"])))
    rest: dict[tuple[Any, ...], Owned] = {}
    for one in ordered[limit:]:
        place = (one["uuid"], one["pci_bus_id"], one["gi"])
        other = rest.setdefault(place, {**one, **dict.fromkeys(_OWNER), "container_id": OTHER_OWNERS, "memory_bytes": 0})
        other["memory_bytes"] += one["memory_bytes"]
    return ordered[:limit] + list(rest.values())
