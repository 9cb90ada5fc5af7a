# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Records of GPUs and of the processes on them, and how they come from what the sources told. Nothing is read here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

RECOVERY_ACTIONS = {  # the driver's own verdict, NVML field 230
    0: "none",
    1: "gpu_reset",
    2: "node_reboot",
    3: "drain_p2p",
    4: "drain_and_reset",
    5: "recover_imex_domain",
    6: "bus_reset",
    7: "system_reboot",
}
IDENTITY = ("uuid", "pci_bus_id", "index", "minor", "serial", "slot", "name")
_ECC = (
    "enabled",
    "pending",
    "corrected_volatile",
    "uncorrected_volatile",
    "corrected_aggregate",
    "uncorrected_aggregate",
    "sram_threshold_exceeded",
)


def recovery_action(value: int) -> str:
    """A value of a newer driver is neither none nor unknown to us in silence: it keeps its number."""
    return RECOVERY_ACTIONS.get(value, f"unknown_{value}")


def recovery_number(action: str | None) -> int | None:
    """The value that it was made of."""
    if action is None:
        return None
    known = {word: value for value, word in RECOVERY_ACTIONS.items()}
    return known[action] if action in known else int(action.rpartition("_")[2])


def text(value: Any) -> str:
    """NVML's strings, which some releases of nvidia-ml-py leave as bytes."""
    return value.decode() if isinstance(value, bytes) else str(value)


def pci_bus_id(text: str) -> str:
    """NVML's 00000000:00:06.0 as the kernel writes it, 0000:00:06.0."""
    domain, rest = text.lower().split(":", 1)
    return f"{int(domain, 16):04x}:{rest if '.' in rest else rest + '.0'}"


@dataclass
class Gpu:
    """One GPU; a field is None when nobody could tell it."""

    uuid: str | None = None
    pci_bus_id: str | None = None
    index: int | None = None
    minor: int | None = None
    serial: str | None = None
    slot: int | None = None
    name: str | None = None
    device_path: str | None = None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    temperature_celsius: int | None = None
    persistence_mode: bool | None = None
    ecc: dict[str, Any] = field(default_factory=lambda: dict.fromkeys(_ECC))
    remapped_rows: dict[str, Any] = field(default_factory=lambda: dict.fromkeys(("correctable", "uncorrectable", "pending", "failure")))
    recovery_action: str | None = None
    mig: dict[str, Any] = field(default_factory=lambda: {"current": None, "pending": None, "instances": []})
    processes: list[dict[str, Any]] = field(default_factory=list)
    processes_source: str | None = None  # nvml, device_file; None: nobody could tell, and `processes` says nothing
    lost: bool = False
    errors: list[dict[str, str]] = field(default_factory=list)

    def take(self, fields: Mapping[str, Any]) -> None:
        for name, value in fields.items():
            if isinstance(value, dict):
                getattr(self, name).update(value)
            else:
                setattr(self, name, value)

    def complete(self, known: Mapping[str, Any]) -> None:
        """Fill in what another source or an earlier reading knows of this GPU's identity."""
        for name in IDENTITY:
            if getattr(self, name) is None:
                setattr(self, name, known.get(name))

    def is_one_of(self, wanted: Sequence[str]) -> bool:
        return not wanted or any(name in (self.uuid, self.pci_bus_id) for name in wanted)

    def identity(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in IDENTITY}


def normalise(names: Iterable[str]) -> list[str]:
    """GPU names as people give them: a UUID, or a PCI address with or without its long domain."""
    return [name if name.startswith("GPU-") else pci_bus_id(name) if ":" in name else name for name in names]


def from_nvml(items: Iterable[Mapping[str, Any]], why: str | None) -> tuple[dict[str, Any], list[Gpu]]:
    """NVML's stream as (what it says of the node, GPUs). The call that a GPU's reader last began and never ended is an error of that GPU."""
    node: dict[str, Any] = {}
    gpus: dict[int, Gpu] = {}
    pending: dict[int, str | None] = {}
    for item in items:
        if "gpu" not in item:
            node.update(item)
            continue
        gpu = gpus.setdefault(item["gpu"], Gpu(index=item["gpu"]))
        if "begins" in item:
            pending[item["gpu"]] = item["begins"]
            continue
        pending[item["gpu"]] = None
        gpu.take(item.get("fields", {}))
        if "error" in item:
            gpu.errors.append({"call": item["call"], "error": item["error"]})
    for index, call in pending.items():
        if call:
            gpus[index].errors.append({"call": call, "error": why or "did not answer"})
    for gpu in gpus.values():
        if gpu.processes_source is None:  # part of the three lists is no list
            gpu.processes = []
    return node, [gpus[index] for index in sorted(gpus)]


def merge_known(driver: Iterable[Mapping[str, Any]], seen: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The driver knows best which GPUs there are; an earlier reading knows serial, slot and index too."""
    merged: dict[Any, dict[str, Any]] = {}
    for one in (*seen, *driver):
        merged.setdefault(one.get("pci_bus_id"), {}).update({name: value for name, value in one.items() if value is not None})
    return [merged[address] for address in sorted(merged, key=str)]


def add_known(gpus: list[Gpu], known: Sequence[Mapping[str, Any]], nvml_complete: bool) -> list[Gpu]:
    """Join what is known without NVML: names for GPUs that NVML could not name, and GPUs that it does not list at all.

    A GPU that was there in this boot and is not in a complete NVML answer is lost.
    """
    spare = list(known)

    def adopt(gpu: Gpu, own: Mapping[str, Any] | None) -> None:
        if own:
            gpu.complete(own)
            spare.remove(own)

    def nameless() -> list[Gpu]:
        return [gpu for gpu in gpus if not gpu.uuid and not gpu.pci_bus_id]

    for gpu in gpus:
        names = {gpu.uuid, gpu.pci_bus_id} - {None}
        adopt(gpu, next((one for one in spare if names & {one.get("uuid"), one.get("pci_bus_id")}), None))
    for gpu in nameless():
        adopt(gpu, next((one for one in spare if one.get("index") == gpu.index), None))
    if len(nameless()) == len(spare):  # both in the order of PCI addresses
        for gpu, one in zip(nameless(), list(spare)):
            adopt(gpu, one)
    for one in spare:
        gpu = Gpu(lost=nvml_complete)
        gpu.complete(one)
        if nvml_complete:
            gpu.errors.append({"call": "nvmlDeviceGetCount", "error": "NVML does not list this GPU"})
        gpus.append(gpu)
    return gpus


def add_holders(gpus: list[Gpu], holders: Sequence[Mapping[str, Any]], minors: Sequence[int] | None, dev_root: str) -> None:
    """Who has the device file open, for each GPU whose process list NVML could not give. `minors` is None when /dev could not be read."""
    for gpu in gpus:
        gpu.device_path = f"{dev_root}/nvidia{gpu.minor}" if gpu.minor is not None else None
        if gpu.processes_source is None and minors is not None and gpu.minor in minors:
            gpu.processes = [dict(one["process"]) for one in holders if one["minor"] == gpu.minor]
            gpu.processes_source = "device_file"


def select(gpus: Sequence[Gpu], wanted: Sequence[str]) -> tuple[list[Gpu], list[str]]:
    """The GPUs asked for, and the names that nobody knows. A GPU that could not be named stays while such a name is left: it may be that one."""
    unknown = [name for name in wanted if not any(gpu.is_one_of([name]) for gpu in gpus)]
    chosen = [gpu for gpu in gpus if gpu.is_one_of(wanted) or (unknown and not gpu.uuid and not gpu.pci_bus_id)]
    return chosen, unknown


def show(gpu: Gpu) -> dict[str, Any]:
    return asdict(gpu)
