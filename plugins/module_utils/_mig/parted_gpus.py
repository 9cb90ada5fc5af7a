# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.
"""Between the entries of a nvidia-mig-parted configuration and the GPUs of a node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._mig.device_id import DeviceId
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.errors import Busy, Fragmented
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.layout import Layout
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.parted import Entry, PartedInvalid
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.planner import plan
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.profiles import Model
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.wants import Want, counts_of, want_counts


@dataclass(frozen=True)
class NodeGpu:
    index: int
    device_id: DeviceId
    layout: Layout


def entry_for(entries: Sequence[Entry], index: int, device_id: DeviceId) -> Optional[Entry]:
    """Of several entries that name a GPU the last one counts, as it is the last to be applied. None: the configuration leaves this GPU alone."""
    named = [
        entry
        for entry in entries
        if (entry.devices is None or index in entry.devices)
        and (not entry.device_filter or any(one.covers(device_id) for one in entry.device_filter))
    ]
    return named[-1] if named else None


def want_of(model: Model, entry: Entry) -> Want:
    return want_counts(model, entry.counts) if entry.mig else Want(False)


def holds(model: Model, layout: Layout, entry: Entry) -> bool:
    """Whether there is nothing to do on this GPU. Others do not matter, and a GPU instance without a compute instance does."""
    try:
        return not plan(model, layout, want_of(model, entry)).steps
    except (Busy, Fragmented):
        return False


def export(gpus: Sequence[NodeGpu]) -> tuple[Entry, ...]:
    """The entries that describe these GPUs, which are all of a node; those that are alike share one."""
    alike: dict[tuple[bool, tuple[tuple[str, int], ...]], list[NodeGpu]] = {}
    for gpu in gpus:
        bare = [instance.name for instance in gpu.layout.instances if not instance.compute]
        if bare:
            raise PartedInvalid(
                f"GPU {gpu.index}: the format has no words for a GPU instance without a compute instance: {', '.join(bare)}"
            )
        alike.setdefault((gpu.layout.mig, tuple(sorted(counts_of(gpu.layout).items()))), []).append(gpu)
    models = {gpu.device_id for gpu in gpus}
    entries = []
    for (mig, counts), members in alike.items():
        ids = tuple(sorted({gpu.device_id for gpu in members}, key=str))
        every_one = len(members) == sum(gpu.device_id in ids for gpu in gpus)
        indices = None if every_one else tuple(sorted(gpu.index for gpu in members))
        entries.append(Entry(mig, dict(counts), indices, () if len(alike) == 1 or len(models) == 1 else ids))
    return tuple(entries)
