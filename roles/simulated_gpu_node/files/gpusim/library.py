# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""NVML's logic, compiled into libnvidia-ml.so.1 (see build.py). Standard library and the module's own ffi only, Python 3.9.

Every exported call passes `_entry`: injected faults first, then a function of this file named like the call, else the model's data.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, Optional

from _gpusim_nvml import ffi, lib  # the cffi module inside the shared library

from .state import StateFile, call_name, is_alive

CODES = {
    "UNINITIALIZED": 1, "INVALID_ARGUMENT": 2, "NOT_SUPPORTED": 3, "NO_PERMISSION": 4, "NOT_FOUND": 6, "INSUFFICIENT_SIZE": 7,
    "DRIVER_NOT_LOADED": 9, "TIMEOUT": 10, "FUNCTION_NOT_FOUND": 13, "GPU_IS_LOST": 15, "IN_USE": 19, "ARGUMENT_VERSION_MISMATCH": 25,
    "NOT_READY": 27, "UNKNOWN": 999,
}  # fmt: skip
RECOVERY_ACTIONS = ("none", "gpu_reset", "node_reboot", "drain_p2p", "drain_and_reset", "recover_imex_domain")
NO_INSTANCE = 0xFFFFFFFF  # how NVML writes "not under MIG"
PSTATE_UNKNOWN = 32
DRAM = 2  # NVML_MEMORY_LOCATION_DRAM; the simulated errors are all there
SRAM_STATUS_VERSION = 0x1000068  # nvmlEccSramErrorStatus_v1
POLL_SECONDS = 0.05

NODE = os.path.dirname(os.path.dirname(os.path.realpath(ffi.string(lib.gpusim_library_path()).decode())))
STATE = StateFile(os.path.join(NODE, "state.json"))
with open(os.path.join(NODE, "model.json"), encoding="utf-8") as _stream:
    MODEL = json.load(_stream)
initialised = 0
event_sets: dict[int, dict[int, list[int]]] = {}  # set -> GPU index -> [types, last event seen]


class NvmlError(Exception):
    """An NVML return code other than success."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.code = CODES[name]


# -- faults ------------------------------------------------------------------------------------------------------------


def _device_index(handle: Any) -> int:
    return int(ffi.cast("uintptr_t", handle)) - 1


def _gpu(handle: Any) -> dict[str, Any]:
    index, gpus = _device_index(handle), STATE.read()["gpus"]
    if not 0 <= index < len(gpus):
        raise NvmlError("INVALID_ARGUMENT")
    if gpus[index]["lost"]:
        raise NvmlError("GPU_IS_LOST")
    return gpus[index]


def _hang(name: str, scope: Callable[[], dict[str, Any]]) -> None:
    """Stay in the call for as long as the state says so; a fault that is cleared meanwhile lets go."""
    began = time.monotonic()
    while True:
        hangs = scope()["hang"]
        key = name if name in hangs else "all"
        if key not in hangs or (hangs[key] is not None and time.monotonic() - began >= hangs[key]):
            return
        time.sleep(POLL_SECONDS)


def _faults(name: str, scope: Callable[[], dict[str, Any]]) -> None:
    _hang(name, scope)
    if name in scope()["no_permission"]:
        raise NvmlError("NO_PERMISSION")


def _gpu_faults(name: str, index: int) -> None:
    if 0 <= index < len(STATE.read()["gpus"]):
        _faults(name, lambda: STATE.read()["gpus"][index]["faults"])


def _entry(symbol: str, answer: Callable[..., None], takes_device: bool) -> Callable[..., int]:
    name = call_name(symbol)

    def call(*args: Any) -> int:
        try:
            _faults(name, lambda: STATE.read()["faults"])
            if STATE.read()["faults"]["driver_not_loaded"]:
                raise NvmlError("DRIVER_NOT_LOADED")
            if not initialised and name != "nvmlInit":
                raise NvmlError("UNINITIALIZED")
            if takes_device:
                _gpu_faults(name, _device_index(args[0]))
            answer(*args)
            return 0
        except NvmlError as error:
            return error.code
        except Exception as error:  # a C caller cannot take an exception
            print("libnvidia-ml (simulated): %s: %r" % (name, error), file=sys.stderr)
            return CODES["UNKNOWN"]

    return call


# -- answers from the model's data -------------------------------------------------------------------------------------


def _fill_struct(struct: Any, values: dict[str, Any]) -> None:
    for field, value in values.items():
        if isinstance(value, dict):
            _fill_struct(getattr(struct, field), value)
        elif isinstance(value, list) and isinstance(value[0], dict):
            for position, item in enumerate(value):
                _fill_struct(getattr(struct, field)[position], item)
        else:
            setattr(struct, field, value.encode() if isinstance(value, str) else value)


def _fill_string(buffer: Any, text: str, length: Optional[int]) -> None:
    data = text.encode() + b"\0"
    if length is not None and len(data) > length:
        raise NvmlError("INSUFFICIENT_SIZE")
    ffi.memmove(buffer, data, len(data))


def _fill_list(count: Any, room: Any, values: list[Any], put: Callable[[Any, Any], None]) -> None:
    """NVML's way with lists: the caller says how much room there is, the library how many there are."""
    available, count[0] = count[0], len(values)
    if len(values) > available or (values and room == ffi.NULL):
        raise NvmlError("INSUFFICIENT_SIZE")
    for position, value in enumerate(values):
        put(position, value)


def _from_data(name: str, types: list[Any], takes_device: bool) -> Callable[..., None]:
    """A function that fills a call's out pointers, in order, with the answer of the GPU or of the model."""

    def answer(*args: Any) -> None:
        own = _gpu(args[0])["answers"] if takes_device else {}
        value = own.get(name, MODEL["answers"].get(name, {"error": "NOT_SUPPORTED"}))
        if isinstance(value, dict) and "error" in value:
            raise NvmlError(value["error"])
        scalars = iter(value if isinstance(value, list) else [value])
        for position, kind in enumerate(types):
            if kind.kind != "pointer" or kind.item.kind == "void" or (takes_device and position == 0):
                continue
            if kind.item.kind == "struct":
                _fill_struct(args[position], value)
            elif kind.item.cname == "char":
                _fill_string(args[position], value, args[position + 1] if len(args) > position + 1 else None)
            else:
                args[position][0] = next(scalars)

    return answer


# -- calls with a logic of their own: the name is the call's ---------------------------------------------------------


def nvmlInitWithFlags(flags: int) -> None:
    global initialised
    initialised += 1


def nvmlInit_v2() -> None:
    nvmlInitWithFlags(0)


nvmlInit = nvmlInit_v2


def nvmlShutdown() -> None:
    global initialised
    initialised -= 1


def nvmlSystemGetProcessName(pid: int, name: Any, length: int) -> None:
    for process in STATE.read()["processes"]:
        if process["pid"] == pid and is_alive(process):
            return _fill_string(name, process["executable"][: length - 1], length)
    raise NvmlError("NOT_FOUND")


def nvmlDeviceGetCount_v2(count: Any) -> None:
    count[0] = len(STATE.read()["gpus"])


nvmlDeviceGetCount = nvmlDeviceGetCount_v2


def _hand_out(device: Any, index: int, name: str) -> None:
    _gpu_faults(name, index)
    if STATE.read()["gpus"][index]["lost"]:
        raise NvmlError("GPU_IS_LOST")
    device[0] = ffi.cast("nvmlDevice_t", index + 1)


def nvmlDeviceGetHandleByIndex_v2(index: int, device: Any) -> None:
    if index >= len(STATE.read()["gpus"]):
        raise NvmlError("INVALID_ARGUMENT")
    _hand_out(device, index, "nvmlDeviceGetHandleByIndex")


nvmlDeviceGetHandleByIndex = nvmlDeviceGetHandleByIndex_v2


def _by(name: str, matches: Callable[[dict[str, Any]], bool], device: Any) -> None:
    for index, gpu in enumerate(STATE.read()["gpus"]):
        if matches(gpu):
            return _hand_out(device, index, name)
    raise NvmlError("NOT_FOUND")


def nvmlDeviceGetHandleByUUID(uuid: Any, device: Any) -> None:
    wanted = ffi.string(uuid).decode(errors="replace")
    _by("nvmlDeviceGetHandleByUUID", lambda gpu: gpu["uuid"] == wanted, device)


def nvmlDeviceGetHandleBySerial(serial: Any, device: Any) -> None:
    wanted = ffi.string(serial).decode(errors="replace")
    _by("nvmlDeviceGetHandleBySerial", lambda gpu: gpu["serial"] == wanted, device)


def nvmlDeviceGetHandleByPciBusId_v2(address: Any, device: Any) -> None:
    try:  # "0000:00:06.0", "00000000:00:06.0", "00:06.0", any case
        *domain, bus, slot = ffi.string(address).decode(errors="replace").split(":")
        wanted = "%04x:%02x:%s" % (int(domain[0], 16) if domain else 0, int(bus, 16), slot.lower())
    except (ValueError, IndexError):
        raise NvmlError("INVALID_ARGUMENT") from None
    _by("nvmlDeviceGetHandleByPciBusId", lambda gpu: gpu["pci_bus_id"] in (wanted, wanted + ".0"), device)


nvmlDeviceGetHandleByPciBusId = nvmlDeviceGetHandleByPciBusId_v2


def _processes(handle: Any, kind: Optional[str] = None) -> list[dict[str, Any]]:
    _gpu(handle)
    index = _device_index(handle)
    return [
        process for process in STATE.read()["processes"]
        if index in process["gpus"] and kind in (None, process["type"]) and is_alive(process)
    ]  # fmt: skip


def _list_processes(kind: str) -> Callable[[Any, Any, Any], None]:
    def call(handle: Any, count: Any, infos: Any) -> None:
        def put(position: int, process: dict[str, Any]) -> None:
            info = infos[position]
            info.pid, info.usedGpuMemory = process["pid"], process["memory_bytes"]
            info.gpuInstanceId = NO_INSTANCE if process["gi"] is None else process["gi"]
            info.computeInstanceId = NO_INSTANCE if process["ci"] is None else process["ci"]

        _fill_list(count, infos, _processes(handle, kind), put)

    return call


nvmlDeviceGetComputeRunningProcesses_v2 = nvmlDeviceGetComputeRunningProcesses_v3 = _list_processes("compute")
nvmlDeviceGetGraphicsRunningProcesses_v2 = nvmlDeviceGetGraphicsRunningProcesses_v3 = _list_processes("graphics")
nvmlDeviceGetMPSComputeRunningProcesses_v2 = nvmlDeviceGetMPSComputeRunningProcesses_v3 = _list_processes("mps")


def _memory(handle: Any) -> tuple[int, int, int]:
    """Total, reserved by the driver, used by processes."""
    used = sum(process["memory_bytes"] for process in _processes(handle))
    return MODEL["memory"]["total_bytes"], MODEL["memory"]["reserved_bytes"], used


def nvmlDeviceGetMemoryInfo(handle: Any, memory: Any) -> None:
    total, reserved, used = _memory(handle)
    memory.total, memory.used, memory.free = total, reserved + used, total - reserved - used


def nvmlDeviceGetMemoryInfo_v2(handle: Any, memory: Any) -> None:
    total, reserved, used = _memory(handle)
    memory.total, memory.reserved, memory.used, memory.free = total, reserved, used, total - reserved - used


def _ecc(handle: Any, error: int, counter: int) -> int:
    if error > 1 or counter > 1:
        raise NvmlError("INVALID_ARGUMENT")
    name = ("corrected", "uncorrected")[error] + ("_volatile", "_aggregate")[counter]
    return int(_gpu(handle)["ecc"][name])


def nvmlDeviceGetTotalEccErrors(handle: Any, error: int, counter: int, value: Any) -> None:
    value[0] = _ecc(handle, error, counter)


def nvmlDeviceGetMemoryErrorCounter(handle: Any, error: int, counter: int, location: int, value: Any) -> None:
    value[0] = _ecc(handle, error, counter) if location == DRAM else 0


def nvmlDeviceGetDetailedEccErrors(handle: Any, error: int, counter: int, counts: Any) -> None:
    counts.l1Cache = counts.l2Cache = counts.registerFile = 0
    counts.deviceMemory = _ecc(handle, error, counter)


def nvmlDeviceGetSramEccErrorStatus(handle: Any, status: Any) -> None:
    if status.version != SRAM_STATUS_VERSION:
        raise NvmlError("ARGUMENT_VERSION_MISMATCH")
    version = status.version
    ffi.memmove(status, bytes(ffi.sizeof("nvmlEccSramErrorStatus_v1_t")), ffi.sizeof("nvmlEccSramErrorStatus_v1_t"))
    status.version, status.bThresholdExceeded = version, _gpu(handle)["ecc"]["sram_threshold_exceeded"]


def nvmlDeviceGetRemappedRows(handle: Any, correctable: Any, uncorrectable: Any, pending: Any, failure: Any) -> None:
    rows = _gpu(handle)["remapped_rows"]
    correctable[0], uncorrectable[0] = rows["correctable"], rows["uncorrectable"]
    pending[0], failure[0] = rows["pending"], rows["failure"]


def nvmlDeviceGetRowRemapperHistogram(handle: Any, histogram: Any) -> None:
    rows = _gpu(handle)["remapped_rows"]
    used = min(rows["correctable"] + rows["uncorrectable"], MODEL["remap_banks"])
    # A bank has eight spare rows; the simulated errors fall into banks of their own, and a failure means an empty bank.
    histogram.high, histogram.partial, histogram.low, histogram.none = used, 0, 0, int(rows["failure"])
    histogram.max = MODEL["remap_banks"] - used - int(rows["failure"])


def nvmlDeviceGetFieldValues(handle: Any, count: int, values: Any) -> None:
    gpu = _gpu(handle)
    ecc, rows = gpu["ecc"], gpu["remapped_rows"]
    known = {
        1: 1, 2: 1, 3: ecc["corrected_volatile"], 4: ecc["uncorrected_volatile"], 5: ecc["corrected_aggregate"], 6: ecc["uncorrected_aggregate"],
        11: ecc["corrected_volatile"], 12: ecc["uncorrected_volatile"], 22: ecc["corrected_aggregate"], 23: ecc["uncorrected_aggregate"],
        142: rows["correctable"], 143: rows["uncorrectable"], 144: int(rows["pending"]), 145: int(rows["failure"]),
        230: RECOVERY_ACTIONS.index(gpu["recovery_action"]),
        **{int(field): value for field, value in MODEL["fields"].items()},
    }  # fmt: skip
    for position in range(count):
        field = values[position]
        field.timestamp, field.latencyUsec = int(time.time() * 1e6), 0
        field.nvmlReturn = 0 if field.fieldId in known else CODES["NOT_SUPPORTED"]
        field.valueType, field.value.ullVal = 1, known.get(field.fieldId, 0)  # an unsigned int, as the driver answers these


def nvmlDeviceGetTemperature(handle: Any, sensor: int, value: Any) -> None:
    if sensor != 0:
        raise NvmlError("INVALID_ARGUMENT")
    value[0] = _gpu(handle)["temperature_celsius"]


def nvmlDeviceGetTemperatureV(handle: Any, value: Any) -> None:
    if value.sensorType != 0:
        raise NvmlError("INVALID_ARGUMENT")
    value.temperature = _gpu(handle)["temperature_celsius"]


def nvmlDeviceGetMarginTemperature(handle: Any, value: Any) -> None:
    value.marginTemperature = MODEL["temperature_limit_celsius"] - _gpu(handle)["temperature_celsius"]


def _clock(handle: Any, which: str, kind: int, value: Any) -> None:
    _gpu(handle)
    if kind > 3:
        raise NvmlError("INVALID_ARGUMENT")
    value[0] = MODEL["clocks_mhz"][which][kind]


def nvmlDeviceGetClockInfo(handle: Any, kind: int, value: Any) -> None:
    _clock(handle, "current", kind, value)


def nvmlDeviceGetMaxClockInfo(handle: Any, kind: int, value: Any) -> None:
    _clock(handle, "max", kind, value)


def nvmlDeviceGetClock(handle: Any, kind: int, which: int, value: Any) -> None:
    if which not in (0, 3):
        raise NvmlError("NOT_SUPPORTED")
    _clock(handle, "current" if which == 0 else "max", kind, value)


def nvmlDeviceGetSupportedMemoryClocks(handle: Any, count: Any, values: Any) -> None:
    _gpu(handle)
    _fill_list(count, values, MODEL["answers"]["nvmlDeviceGetSupportedMemoryClocks"], values.__setitem__)


def nvmlDeviceGetSupportedPerformanceStates(handle: Any, values: Any, size: int) -> None:
    _gpu(handle)
    states = MODEL["answers"]["nvmlDeviceGetSupportedPerformanceStates"]
    for position in range(size // ffi.sizeof("unsigned int")):
        values[position] = states[position] if position < len(states) else PSTATE_UNKNOWN


def nvmlDeviceGetPersistenceMode(handle: Any, value: Any) -> None:
    value[0] = _gpu(handle)["persistence"]


def nvmlDeviceSetPersistenceMode(handle: Any, mode: int) -> None:
    _gpu(handle)
    with STATE.update() as state:
        state["gpus"][_device_index(handle)]["persistence"] = mode


# -- MIG ---------------------------------------------------------------------------------------------------------------


def nvmlDeviceGetMigMode(handle: Any, current: Any, pending: Any) -> None:
    mig = _gpu(handle)["mig"]
    current[0], pending[0] = mig["current"], mig["pending"]


def nvmlDeviceSetMigMode(handle: Any, mode: int, activation: Any) -> None:
    """At once where the GPU needs no reset for it; the status tells what stood in the way, and the call succeeds all the same."""
    if mode > 1:
        raise NvmlError("INVALID_ARGUMENT")
    busy = bool(_processes(handle))
    with STATE.update() as state:
        mig = state["gpus"][_device_index(handle)]["mig"]
        mig["pending"] = mode
        activation[0] = 0
        if mig["current"] != mode and busy:
            activation[0] = CODES["IN_USE"]
        elif mig["current"] != mode and not MODEL["mig"]["resetless"]:
            activation[0] = 16  # RESET_REQUIRED
        else:
            mig["current"] = mode


def nvmlDeviceGetMaxMigDeviceCount(handle: Any, value: Any) -> None:
    value[0] = MODEL["mig"]["max_devices"] if _gpu(handle)["mig"]["current"] else 0


def nvmlDeviceIsMigDeviceHandle(handle: Any, value: Any) -> None:
    _gpu(handle)
    value[0] = 0


def nvmlDeviceGetGpuInstances(handle: Any, profile: int, instances: Any, count: Any) -> None:
    if not _gpu(handle)["mig"]["current"]:
        raise NvmlError("NOT_SUPPORTED")
    _profile_by_id(profile)
    count[0] = 0


def _profile_by_id(profile: int) -> dict[str, Any]:
    for info in MODEL["mig"]["profiles"].values():
        if info["id"] == profile:
            return dict(info)
    raise NvmlError("INVALID_ARGUMENT")


def nvmlDeviceGetGpuInstanceProfileInfo(handle: Any, profile: int, info: Any) -> None:
    _gpu(handle)
    if profile >= MODEL["mig"]["query_enums"]:
        raise NvmlError("INVALID_ARGUMENT")
    if str(profile) not in MODEL["mig"]["profiles"]:
        raise NvmlError("NOT_SUPPORTED")
    known = dir(info)
    _fill_struct(info, {field: value for field, value in MODEL["mig"]["profiles"][str(profile)].items() if field in known})


def nvmlDeviceGetGpuInstanceProfileInfoV(handle: Any, profile: int, info: Any) -> None:
    if info.version >> 24 != 2:
        raise NvmlError("ARGUMENT_VERSION_MISMATCH")
    nvmlDeviceGetGpuInstanceProfileInfo(handle, profile, info)
    info.version = 0  # as the real driver leaves it


def nvmlDeviceGetGpuInstancePossiblePlacements_v2(handle: Any, profile: int, placements: Any, count: Any) -> None:
    _gpu(handle)

    def put(position: int, placement: list[int]) -> None:
        placements[position].start, placements[position].size = placement

    wanted = _profile_by_id(profile)["placements"]
    if placements == ffi.NULL:
        count[0] = len(wanted)
    else:
        _fill_list(count, placements, wanted, put)


def nvmlDeviceGetGpuInstanceRemainingCapacity(handle: Any, profile: int, count: Any) -> None:
    _gpu(handle)
    count[0] = _profile_by_id(profile)["instanceCount"]


# -- events ------------------------------------------------------------------------------------------------------------


def nvmlEventSetCreate(out: Any) -> None:
    number = max(event_sets, default=0) + 1
    event_sets[number] = {}
    out[0] = ffi.cast("nvmlEventSet_t", number)


def _event_set(handle: Any) -> dict[int, list[int]]:
    try:
        return event_sets[int(ffi.cast("uintptr_t", handle))]
    except KeyError:
        raise NvmlError("INVALID_ARGUMENT") from None


def nvmlEventSetFree(handle: Any) -> None:
    _event_set(handle)
    del event_sets[int(ffi.cast("uintptr_t", handle))]


def nvmlDeviceRegisterEvents(handle: Any, types: int, events: Any) -> None:
    _gpu(handle)
    if types & ~MODEL["answers"]["nvmlDeviceGetSupportedEventTypes"]:
        raise NvmlError("NOT_SUPPORTED")
    registered = _event_set(events).setdefault(_device_index(handle), [0, STATE.read()["event_sequence"]])
    registered[0] |= types


def nvmlEventSetWait_v2(events: Any, data: Any, timeout: int) -> None:
    registered = _event_set(events)
    until = time.monotonic() + timeout / 1000
    while True:
        state = STATE.read()
        waiting = [
            (event["sequence"], index, event)
            for index, (types, seen) in registered.items() for event in state["gpus"][index]["events"]
            if event["type"] & types and event["sequence"] > seen
        ]  # fmt: skip
        if waiting:
            sequence, index, event = min(waiting, key=lambda item: item[:2])
            registered[index][1] = sequence
            data.device, data.eventType, data.eventData = ffi.cast("nvmlDevice_t", index + 1), event["type"], event["data"]
            data.gpuInstanceId = NO_INSTANCE if event["gi"] is None else event["gi"]
            data.computeInstanceId = NO_INSTANCE if event["ci"] is None else event["ci"]
            return
        if time.monotonic() >= until:
            raise NvmlError("TIMEOUT")
        time.sleep(POLL_SECONDS)


nvmlEventSetWait = nvmlEventSetWait_v2


def export() -> None:
    """Give every call of nvml.h its function."""
    for name in dir(lib):
        if name.startswith("nvml"):
            types = ffi.typeof(getattr(lib, name)).args
            takes_device = bool(types) and types[0].cname == "struct nvmlDevice_st *"
            answer = globals().get(name) or _from_data(name, list(types), takes_device)
            ffi.def_extern(name=name, error=CODES["UNKNOWN"])(_entry(name, answer, takes_device))


export()
