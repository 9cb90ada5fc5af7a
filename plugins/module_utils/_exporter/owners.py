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
_OTHERS: Owned = {"container_id": OTHER_OWNERS, "pod_uid": None, "unit": None, "pid": None}


def owned(gpus: Iterable[Gpu]) -> list[Owned]:
    """By GPU, GPU instance and owner. A process whose memory nobody can tell adds nothing."""
    sums: dict[tuple[Any, ...], int] = {}
    for gpu in gpus:
        for process in gpu.processes:
            if process["memory_bytes"] is not None:
                key = (gpu.uuid, gpu.pci_bus_id, process["gi"], *owner_of(process))
                sums[key] = sums.get(key, 0) + process["memory_bytes"]
    return [dict(zip(("uuid", "pci_bus_id", "gi", *_OWNER, "memory_bytes"), (*key, total))) for key, total in sums.items()]


def owner_of(process: Mapping[str, Any]) -> tuple[Any, ...]:
    container = process.get("container")
    return (container["id"], container["pod_uid"], None) if container else (None, None, process.get("unit"))


def bounded(found: Sequence[Owned], limit: int, sums: Sequence[str] = ("memory_bytes",)) -> list[Owned]:
    """The largest by the first of `sums`; of each GPU and instance the rest together: churn of small containers makes no endless series."""
    ordered = sorted(found, key=lambda one: (-one[sums[0]], str(one["container_id"]), str(one["unit"])))
    return ordered[:limit] + summed(({**one, **_OTHERS} for one in ordered[limit:]), sums)


def summed(found: Iterable[Owned], sums: Sequence[str]) -> list[Owned]:
    """By GPU, GPU instance and owner. What one of them does not know is not in the sum, and what none knows has none."""
    together: dict[tuple[Any, ...], Owned] = {}
    for one in found:
        key = tuple(one[name] for name in ("uuid", "pci_bus_id", "gi", *_OWNER))
        if key not in together:
            together[key] = dict(one)
            continue
        for name in sums:
            known = [each[name] for each in (together[key], one) if each[name] is not None]
            together[key][name] = sum(known) if known else None
    return list(together.values())
