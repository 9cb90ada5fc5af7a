# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""The GPU or MIG device that a daemon serves, through NVML: its memory, who is on it, and the compute mode of its GPU."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.proof import is_mps, is_own_reader
from ansible_collections.gpuops.remediation.plugins.module_utils._gpu import info
from ansible_collections.gpuops.remediation.plugins.module_utils._gpu import nvml as gpu_nvml
from ansible_collections.gpuops.remediation.plugins.module_utils._mps.errors import BadValue, ComputeModeRefused, MpsError
from ansible_collections.gpuops.remediation.plugins.module_utils._mps.limits import MIB
from ansible_collections.gpuops.remediation.plugins.module_utils._node.node import Node
from ansible_collections.gpuops.remediation.plugins.module_utils._node.watchdog import Emit, Watchdog

MODES = {"default": 0, "exclusive_process": 3}
_UUID = re.compile(r"(GPU|MIG)-[0-9A-Za-z][0-9A-Za-z/-]*")
_SOURCE = "compute_mode"


@dataclass(frozen=True)
class Device:
    """`others` are the processes on it that are neither MPS's own nor its clients."""

    uuid: str
    gpu_uuid: str
    in_mig_mode: bool
    memory_mib: int
    others: Sequence[Mapping[str, Any]] = ()


def require_uuid(name: str) -> str:
    """It becomes a part of paths and of a unit's name."""
    if not _UUID.fullmatch(name) or "/" in name:
        raise BadValue(f"{name!r} is not the UUID of a GPU (GPU-…) or of a MIG device (MIG-…)")
    return name


def read(node: Node, uuid: str, timeout_seconds: float) -> Device:
    told = info.read(node, [], timeout_seconds=timeout_seconds, with_kernel_log=False, remember=False)
    for gpu in told["gpus"]:
        instances = [one for one in gpu["mig"]["instances"] or [] if one["uuid"] == uuid]
        if gpu["uuid"] != uuid and not instances:
            continue
        if gpu["uuid"] == uuid and gpu["mig"]["current"]:
            raise BadValue(f"{uuid} is in MIG mode: each of its MIG devices has a daemon of its own")
        size = (instances[0] if instances else gpu)["memory_total_bytes"]
        if size is None or gpu["processes_source"] != "nvml":
            raise MpsError(f"NVML does not say what {uuid} has and who is on it", missing=told["missing"], errors=gpu["errors"])
        others = [one for one in gpu["processes"] if one["type"] == "compute" and not is_mps(one) and not is_own_reader(one)]
        return Device(uuid, gpu["uuid"], bool(instances), size // MIB, others)
    raise MpsError(f"there is no {uuid} on this node", missing=told["missing"])


class ComputeMode:
    """Of the whole GPU, and gone with the driver: `persistent` is no word for it."""

    def __init__(self, node: Node, device: Device, timeout_seconds: float) -> None:
        self._node = node
        self._device = device
        self._timeout_seconds = timeout_seconds

    def refuse(self, wanted: str) -> None:
        if wanted == "exclusive_process" and self._device.in_mig_mode:
            raise ComputeModeRefused("EXCLUSIVE_PROCESS is not supported in MIG mode", compute_mode=wanted)

    def refuse_change(self, wanted: str) -> None:
        """Beside a process that does not go through MPS the server could not open the GPU."""
        if wanted == "exclusive_process" and self._device.others:
            names = ", ".join(f"{one['name']} ({one['pid']})" for one in self._device.others)
            raise ComputeModeRefused(f"processes outside MPS are on {self._device.gpu_uuid}: {names}", compute_mode=wanted)

    def read(self) -> str:
        number = self._call(None)
        return next((name for name, value in MODES.items() if value == number), str(number))

    def set(self, wanted: str) -> None:
        self._call(MODES[wanted])

    def _call(self, mode: Optional[int]) -> int:
        work = partial(_compute_mode, self._node.nvml_library, self._device.gpu_uuid, mode)
        answers, _abandoned = Watchdog(self._node.state, self._timeout_seconds).collect({_SOURCE: work})
        answer = answers[_SOURCE]
        found = [item["mode"] for item in answer.items if "mode" in item]
        if answer.why or not found:
            raise ComputeModeRefused(f"compute mode of {self._device.gpu_uuid}: {answer.why or 'no answer'}")
        return int(found[0])


def _compute_mode(library: str, uuid: str, mode: Optional[int], emit: Emit) -> None:
    nvml = gpu_nvml.start(library, emit)
    handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
    if mode is not None:
        nvml.nvmlDeviceSetComputeMode(handle, mode)
    emit({"mode": nvml.nvmlDeviceGetComputeMode(handle)})
