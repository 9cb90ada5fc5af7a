# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.
"""What a plan needs to know of a node's GPUs, read at one time: their MIG state and who holds what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._gpu import capabilities, nvml, records
from ansible_collections.gpuops.remediation.plugins.module_utils._mig import clients, watched
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.planner import GPU
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.reading import Reading
from ansible_collections.gpuops.remediation.plugins.module_utils._node.node import Node
from ansible_collections.gpuops.remediation.plugins.module_utils._node.watchdog import Collect, Watchdog


@dataclass(frozen=True)
class GpuState:
    """`unseen` says who could not be asked about holders; empty where everybody was."""

    answer: watched.GpuAnswer
    holders: clients.Holders = field(default_factory=dict)
    unseen: Sequence[str] = ()

    def held(self) -> dict[str, list[Mapping[str, Any]]]:
        """Holders by the names of what they hold; who holds the GPU outside of MIG is under that name."""
        reading = self.answer.reading
        found: dict[str, list[Mapping[str, Any]]] = {}
        for place, processes in self.holders.items():
            name = _name(reading, place)
            if name is not None:
                found.setdefault(name, []).extend(processes)
        return found

    def busy(self) -> set[str]:
        """Who only has the GPU's own device file open, a monitor for one, is in the way of some changes; the driver says of which."""
        return {name for name, processes in self.held().items() if name != GPU or any(one["source"] == "nvml" for one in processes)}

    def holders_of(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """For people. Of a GPU these are all that there are on it."""
        within = [one for name, some in self.held().items() if GPU in names or any(overlap(name, one) for one in names) for one in some]
        told = {one["pid"]: {key: one.get(key) for key in ("pid", "name", "cgroup", "start_ticks", "source")} for one in within}
        return [told[pid] for pid in sorted(told)]


@dataclass(frozen=True)
class Survey:
    driver_version: Optional[str]
    gpus: tuple[GpuState, ...]
    why: Optional[str]


def sources(node: Node, wanted: Sequence[str]) -> dict[str, Collect]:
    """The MIG state, NVML's processes, and whoever has a device file open."""
    return {
        watched.SOURCE: partial(watched.collect, node.nvml_library, wanted),
        "nvml": partial(nvml.collect, node.nvml_library, wanted, node.proc.describe, only_processes=True),
        "clients": partial(capabilities.collect, node.proc, node.dev_root),
    }


def survey(node: Node, wanted: Sequence[str], timeout_seconds: float) -> Survey:
    wanted = records.normalise(wanted)
    answers, _abandoned = Watchdog(node.state, timeout_seconds).collect(sources(node, wanted))
    mig = watched.join(answers[watched.SOURCE].items, answers[watched.SOURCE].why, wanted)
    _told, listed = records.from_nvml(answers["nvml"].items, answers["nvml"].why)
    gpus = {gpu.index: gpu for gpu in listed}
    seen = answers["clients"]
    states = []
    for answer in mig.gpus:
        gpu = gpus.get(answer.index, records.Gpu())
        unseen = [] if gpu.processes_source else [f"NVML: {answers['nvml'].why or '; '.join(one['error'] for one in gpu.errors)}"]
        unseen += [f"open files: {seen.why}"] if seen.why else []
        holding = [item for item in seen.items if "held" in item]
        minor = answer.reading.minor if answer.reading else None
        states.append(GpuState(answer, clients.join(minor, gpu.processes, holding), unseen))
    return Survey(mig.driver_version, tuple(states), mig.why)


def _name(reading: Optional[Reading], place: clients.Place) -> Optional[str]:
    """None for what is not in the layout, which was there only before or after it was read."""
    gi, ci = place
    if gi is None:
        return GPU
    instances = reading.layout.instances if reading and reading.layout else ()
    instance = next((one for one in instances if one.id == gi), None)
    if instance is None:
        return None
    compute = next((part for part in instance.compute if part.id == ci), None)
    return instance.compute_name(compute) if compute else instance.name


def overlap(name: str, other: str) -> bool:
    """Whether they are the same, or one of them is inside the other."""
    return name == other or name.startswith(f"{other}/") or other.startswith(f"{name}/")
