# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What every call of the library goes through: whose handle it is, which fault is injected, and how answers are written.

Compiled into libnvidia-ml.so.1 (see build.py). Standard library and the module's own ffi only, Python 3.9.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, Optional

from _gpusim_nvml import ffi, lib  # the cffi module inside the shared library

from .errors import CODES, NvmlError
from .state import StateFile, call_name

POLL_SECONDS = 0.05
DEVICE = "struct nvmlDevice_st *"
HANDLES = (DEVICE, "struct nvmlGpuInstance_st *", "struct nvmlComputeInstance_st *")
INDEX_BITS = 16  # of a handle: the GPU's number, and above it which MIG instance, if one is meant
ON_MIG_DEVICES = {  # the calls that a MIG device's handle answers too
    "nvmlDeviceGetArchitecture", "nvmlDeviceGetAttributes", "nvmlDeviceGetComputeInstanceId", "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetCudaComputeCapability", "nvmlDeviceGetDeviceHandleFromMigDeviceHandle", "nvmlDeviceGetGpuInstanceId",
    "nvmlDeviceGetGraphicsRunningProcesses", "nvmlDeviceGetMPSComputeRunningProcesses", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetName",
    "nvmlDeviceGetUUID", "nvmlDeviceIsMigDeviceHandle",
}  # fmt: skip

NODE = os.path.dirname(os.path.dirname(os.path.realpath(ffi.string(lib.gpusim_library_path()).decode())))
STATE = StateFile(os.path.join(NODE, "state.json"))
with open(os.path.join(NODE, "model.json"), encoding="utf-8") as _stream:
    MODEL = json.load(_stream)
initialised = 0
initialised_by = 0  # the process that did: what it has open is of no use to a child, who is refused


# -- handles -----------------------------------------------------------------------------------------------------------


def device_index(handle: Any) -> int:
    return (int(ffi.cast("uintptr_t", handle)) & ((1 << INDEX_BITS) - 1)) - 1


def serial_of(handle: Any) -> int:
    return int(ffi.cast("uintptr_t", handle)) >> INDEX_BITS


def make_handle(kind: str, index: int, serial: int = 0) -> Any:
    return ffi.cast(kind, serial << INDEX_BITS | index + 1)


def gpu_of(handle: Any, state: Optional[dict[str, Any]] = None) -> dict[str, Any]:
    index = device_index(handle)
    gpus: list[dict[str, Any]] = (state or STATE.read())["gpus"]
    if not 0 <= index < len(gpus):
        raise NvmlError("INVALID_ARGUMENT")
    if gpus[index]["lost"]:
        raise NvmlError("GPU_IS_LOST")
    return gpus[index]


def mig_devices(gpu: dict[str, Any]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    return [(instance, compute) for instance in gpu["mig"]["instances"] for compute in instance["compute"]]


def mig_device(handle: Any, gpu: Optional[dict[str, Any]] = None) -> tuple[dict[str, Any], dict[str, Any]]:
    """The GPU instance and the compute instance of a handle; the handle of a GPU or of what is gone is an invalid argument."""
    for instance, compute in mig_devices(gpu or gpu_of(handle)):
        if compute["serial"] == serial_of(handle):
            return instance, compute
    raise NvmlError("INVALID_ARGUMENT")


# -- faults ------------------------------------------------------------------------------------------------------------

Scope = Callable[[dict[str, Any]], dict[str, Any]]  # of a state: the faults of the node, or of a GPU


def _hang(name: str, scope: Scope) -> None:
    """Stay in the call for as long as the state says so; a fault that is cleared meanwhile lets go."""
    began = time.monotonic()
    while True:
        hangs = scope(STATE.read())["hang"]
        key = name if name in hangs else "all"
        if key not in hangs or (hangs[key] is not None and time.monotonic() - began >= hangs[key]):
            return
        time.sleep(POLL_SECONDS)


def _fail(name: str, scope: Scope) -> None:
    """Count the call, whichever process makes it, and fail if it is one of those that were named."""
    with STATE.update() as state:
        fault = scope(state)["fail"].get(name)
        if fault is None:  # cleared meanwhile
            return
        fault["calls"] += 1
        fails = fault["calls"] >= fault["at"] and (fault["times"] is None or fault["calls"] < fault["at"] + fault["times"])
    if fails:
        raise NvmlError(fault["error"])


def _faults(name: str, scope: Scope) -> None:
    _hang(name, scope)
    if name in scope(STATE.read())["no_permission"]:
        raise NvmlError("NO_PERMISSION")
    if name in scope(STATE.read())["fail"]:
        _fail(name, scope)


def gpu_faults(name: str, index: int) -> None:
    if 0 <= index < len(STATE.read()["gpus"]):
        _faults(name, lambda state: state["gpus"][index]["faults"])


def entry(symbol: str, answer: Callable[..., None], takes: str) -> Callable[..., int]:
    """`takes` is the type of the first argument: the faults of a GPU are those of its instances' handles too."""
    name = call_name(symbol)

    def call(*args: Any) -> int:
        try:
            _faults(name, lambda state: state["faults"])
            if STATE.read()["faults"]["driver_not_loaded"]:
                raise NvmlError("DRIVER_NOT_LOADED")
            if not initialised and name != "nvmlInit":
                raise NvmlError("UNINITIALIZED")
            if takes in HANDLES:
                gpu_faults(name, device_index(args[0]))
            if takes == DEVICE and serial_of(args[0]):
                mig_device(args[0])
                if name not in ON_MIG_DEVICES:
                    raise NvmlError("NOT_SUPPORTED")
            answer(*args)
            return 0
        except NvmlError as error:
            return error.code
        except Exception as error:  # a C caller cannot take an exception
            print("libnvidia-ml (simulated): %s: %r" % (name, error), file=sys.stderr)
            return CODES["UNKNOWN"]

    return call


# -- answers from the model's data -------------------------------------------------------------------------------------


def fill_struct(struct: Any, values: dict[str, Any]) -> None:
    for field, value in values.items():
        if isinstance(value, dict):
            fill_struct(getattr(struct, field), value)
        elif isinstance(value, list) and isinstance(value[0], dict):
            for position, item in enumerate(value):
                fill_struct(getattr(struct, field)[position], item)
        else:
            setattr(struct, field, value.encode() if isinstance(value, str) else value)


def fill_known(struct: Any, values: dict[str, Any]) -> None:
    known = dir(struct)
    fill_struct(struct, {field: value for field, value in values.items() if field in known})


def fill_string(buffer: Any, text: str, length: Optional[int]) -> None:
    data = text.encode() + b"\0"
    if length is not None and len(data) > length:
        raise NvmlError("INSUFFICIENT_SIZE")
    ffi.memmove(buffer, data, len(data))


def fill_list(count: Any, room: Any, values: list[Any], put: Callable[[Any, Any], None]) -> None:
    """NVML's way with lists: the caller says how much room there is, the library how many there are."""
    available, count[0] = count[0], len(values)
    if len(values) > available or (values and room == ffi.NULL):
        raise NvmlError("INSUFFICIENT_SIZE")
    for position, value in enumerate(values):
        put(position, value)


def from_data(name: str, types: list[Any], takes_device: bool) -> Callable[..., None]:
    """A function that fills a call's out pointers, in order, with the answer of the GPU or of the model."""

    def answer(*args: Any) -> None:
        own = gpu_of(args[0])["answers"] if takes_device else {}
        value = own.get(name, MODEL["answers"].get(name, {"error": "NOT_SUPPORTED"}))
        if isinstance(value, dict) and "error" in value:
            raise NvmlError(value["error"])
        scalars = iter(value if isinstance(value, list) else [value])
        for position, kind in enumerate(types):
            if kind.kind != "pointer" or kind.item.kind == "void" or (takes_device and position == 0):
                continue
            if kind.item.kind == "struct":
                fill_struct(args[position], value)
            elif kind.item.cname == "char":
                fill_string(args[position], value, args[position + 1] if len(args) > position + 1 else None)
            else:
                args[position][0] = next(scalars)

    return answer
