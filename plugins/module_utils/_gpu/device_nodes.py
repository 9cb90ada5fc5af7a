# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""The numbers of the driver's device files, by what the driver says of itself. Neither NVML nor the files are asked: either may be missing."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.devices import BadDevice, Device
from ansible_collections.gpuops.remediation.plugins.module_utils._errors import RemediationError
from ansible_collections.gpuops.remediation.plugins.module_utils._gpu.records import pci_bus_id
from ansible_collections.gpuops.remediation.plugins.module_utils._node.procfs import NodeUnreadable, ProcFs

_GPU_MAJOR, _CONTROL, _MODESET = 195, 255, 254
_UVM, _CAPABILITIES = "nvidia-uvm", "nvidia-caps"
_LINE = re.compile(r"^ *(\d+) (nvidia\S*)$", re.MULTILINE)
_CAPABILITY = re.compile(r"^(\S+) (\d+)$", re.MULTILINE)
_PCI = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?", re.IGNORECASE)


class NoDevice(RemediationError):
    """The driver has none of that name here."""

    kind = "no_device"


@dataclass(frozen=True)
class DeviceNodes:
    """`majors` are those of the driver's character devices, by name."""

    proc: ProcFs
    majors: Mapping[str, int]

    @classmethod
    def read(cls, proc: ProcFs) -> DeviceNodes:
        try:
            text = (proc.root / "devices").read_text()
        except OSError as error:
            raise NodeUnreadable(f"cannot read {proc.root / 'devices'}: {error}") from error
        return cls(proc, {name: int(major) for major, name in _LINE.findall(text.partition("Block devices:")[0])})

    @property
    def guarded(self) -> set[int]:
        """The number of the GPUs is the same on every machine, and theirs while the driver is not loaded too."""
        return {_GPU_MAJOR, *self.majors.values()}

    def wanted(self, params: Mapping[str, Any]) -> set[Device]:
        """What a tenant needs of these GPUs and MIG instances, and the devices that are named beside them."""
        minors = {self._minor(name) for name in params["gpus"] or ()}
        found: set[Device] = set()
        for instance in params["mig_instances"] or ():
            minor = self._minor(instance["gpu"])
            minors.add(minor)
            found |= {
                Device("c", self._major(_CAPABILITIES), number) for number in self._capabilities(minor, instance["gi"], instance["ci"])
            }
        if minors:
            control = (_CONTROL, _MODESET) if params["modeset"] else (_CONTROL,)
            found |= {Device("c", _GPU_MAJOR, minor) for minor in (*minors, *control)}
            found |= {Device("c", self._major(_UVM), minor) for minor in (0, 1)}  # nvidia-uvm and nvidia-uvm-tools
        return found | {_named(text) for text in params["devices"] or ()}

    def path(self, device: Device) -> str | None:
        """Where the driver's own tools make the device file."""
        if device.kind != "c" or device.minor is None:
            return None
        special = {_CONTROL: "nvidiactl", _MODESET: "nvidia-modeset"}
        if device.major == _GPU_MAJOR:
            return f"/dev/{special.get(device.minor, f'nvidia{device.minor}')}"
        if device.major == self.majors.get(_CAPABILITIES):
            return f"/dev/nvidia-caps/nvidia-cap{device.minor}"
        if device.major == self.majors.get(_UVM):
            return {0: "/dev/nvidia-uvm", 1: "/dev/nvidia-uvm-tools"}.get(device.minor)
        return None

    def _minor(self, name: str) -> int:
        gpus = self.proc.driver_gpus()
        address = pci_bus_id(name) if _PCI.fullmatch(name) else None
        for gpu in gpus:
            if gpu["minor"] is not None and (name in (gpu["uuid"], str(gpu["minor"])) or address == gpu["pci_bus_id"]):
                return int(gpu["minor"])
        known = ", ".join(f"{gpu['uuid'] or 'GPU without a UUID before its first use'} at {gpu['pci_bus_id']}" for gpu in gpus) or "none"
        raise NoDevice(f"the driver has no GPU {name} here; it has {known}")

    def _major(self, name: str) -> int:
        if name not in self.majors:
            raise NoDevice(f"{self.proc.root / 'devices'} has no {name}: that part of the driver is not loaded, and has no number before")
        return self.majors[name]

    def _capabilities(self, gpu: int, gi: int, ci: int | None) -> list[int]:
        """A GPU instance's and its compute instances': the driver has a number for each that there could be, and a folder for those that there are."""
        top = self.proc.root / "driver/nvidia/capabilities" / f"gpu{gpu}" / "mig" / f"gi{gi}"
        inside = [""] + ([f"ci{ci}/"] if ci is not None else sorted(f"{path.name}/" for path in top.glob("ci*")))
        listed = self.proc.root / "driver/nvidia-caps/mig-minors"
        try:
            numbers = dict(_CAPABILITY.findall(listed.read_text()))
        except OSError as error:
            raise NodeUnreadable(f"cannot read {listed}: {error}") from error
        found = []
        for below in inside:
            name = f"gpu{gpu}/gi{gi}/{below}access"
            if name not in numbers or not Path(top, below, "access").exists():
                raise NoDevice(f"there is no {name.rpartition('/')[0]} in {top.parent}")
            found.append(int(numbers[name]))
        return found


def device_of(found: os.stat_result) -> Device | None:
    """None for what is no device."""
    kind = "c" if stat.S_ISCHR(found.st_mode) else "b" if stat.S_ISBLK(found.st_mode) else None
    return Device(kind, os.major(found.st_rdev), os.minor(found.st_rdev)) if kind else None


def _named(text: str) -> Device:
    device = Device.parse(text)
    if device is None and text.startswith("/"):
        try:
            device = device_of(os.stat(text))
        except OSError as error:
            raise BadDevice(f"cannot find {text}: {error}") from error
    if device is None:
        raise BadDevice(f"{text!r} is neither the file of a device nor of the form c MAJOR:MINOR")
    return device
