# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""NVML's logic, compiled into libnvidia-ml.so.1 (see build.py). Standard library and the module's own ffi only, Python 3.9.

Every exported call passes `_entry`: injected faults first, then a function of this file named like the call, else the model's data.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Optional

from _gpusim_nvml import ffi, lib  # the cffi module inside the shared library

from . import capabilities, mig
from .errors import CODES, NvmlError
from .state import StateFile, call_name, is_alive

RECOVERY_ACTIONS = ("none", "gpu_reset", "node_reboot", "drain_p2p", "drain_and_reset", "recover_imex_domain")
NO_INSTANCE = 0xFFFFFFFF  # how NVML writes "not under MIG"
PSTATE_UNKNOWN = 32
DRAM = 2  # NVML_MEMORY_LOCATION_DRAM; the simulated errors are all there
SRAM_STATUS_VERSION = 0x1000068  # nvmlEccSramErrorStatus_v1
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
event_sets: dict[int, dict[int, list[int]]] = {}  # set -> GPU index -> [types, last event seen]


# -- faults ------------------------------------------------------------------------------------------------------------


def _device_index(handle: Any) -> int:
    return (int(ffi.cast("uintptr_t", handle)) & ((1 << INDEX_BITS) - 1)) - 1


def _serial(handle: Any) -> int:
    return int(ffi.cast("uintptr_t", handle)) >> INDEX_BITS


def _handle(kind: str, index: int, serial: int = 0) -> Any:
    return ffi.cast(kind, serial << INDEX_BITS | index + 1)


def _gpu(handle: Any, state: Optional[dict[str, Any]] = None) -> dict[str, Any]:
    index = _device_index(handle)
    gpus: list[dict[str, Any]] = (state or STATE.read())["gpus"]
    if not 0 <= index < len(gpus):
        raise NvmlError("INVALID_ARGUMENT")
    if gpus[index]["lost"]:
        raise NvmlError("GPU_IS_LOST")
    return gpus[index]


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


def _gpu_faults(name: str, index: int) -> None:
    if 0 <= index < len(STATE.read()["gpus"]):
        _faults(name, lambda state: state["gpus"][index]["faults"])


def _entry(symbol: str, answer: Callable[..., None], takes: str) -> Callable[..., int]:
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
                _gpu_faults(name, _device_index(args[0]))
            if takes == DEVICE and _serial(args[0]):
                _mig_device(args[0])
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


def _hand_out(device: Any, index: int, name: str, serial: int = 0) -> None:
    _gpu_faults(name, index)
    if STATE.read()["gpus"][index]["lost"]:
        raise NvmlError("GPU_IS_LOST")
    device[0] = _handle("nvmlDevice_t", index, serial)


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
    for gpu in STATE.read()["gpus"]:
        for _instance, compute in _mig_devices(gpu):
            if compute["uuid"] == wanted:
                return _hand_out(device, gpu["index"], "nvmlDeviceGetHandleByUUID", compute["serial"])
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
    """Of a GPU; of a MIG device those in its compute instance."""
    gpu = _gpu(handle)
    gi, ci = (one["id"] for one in _mig_device(handle)) if _serial(handle) else (None, None)
    return [process for process in mig.users(STATE.read(), gpu, gi, ci) if kind in (None, process["type"])]


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
    """Total, reserved by the driver, used by processes. Compute instances share the memory of their GPU instance."""
    gpu = _gpu(handle)
    if not _serial(handle):
        return MODEL["memory"]["total_bytes"], MODEL["memory"]["reserved_bytes"], mig.memory_used(STATE.read(), gpu)
    instance, _compute = _mig_device(handle)
    total = mig.profile(MODEL, instance["profile"])["memorySizeMB"] << 20
    return total, 0, mig.memory_used(STATE.read(), gpu, instance["id"])


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


@contextlib.contextmanager
def _change(handle: Any) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """The state and the GPU of a handle, both to be changed."""
    with STATE.update() as state:
        gpu = _gpu(handle, state)
        yield state, gpu
        capabilities.update(NODE, gpu)


def nvmlDeviceGetMigMode(handle: Any, current: Any, pending: Any) -> None:
    mode = _gpu(handle)["mig"]
    current[0], pending[0] = mode["current"], mode["pending"]


def nvmlDeviceSetMigMode(handle: Any, mode: int, activation: Any) -> None:
    """The status tells what stood in the way, and the call succeeds all the same."""
    if mode > 1:
        raise NvmlError("INVALID_ARGUMENT")
    with _change(handle) as (state, gpu):
        obstacle = mig.set_mode(MODEL, state, gpu, mode)
    activation[0] = CODES[obstacle] if obstacle else 0


def nvmlDeviceGetMaxMigDeviceCount(handle: Any, value: Any) -> None:
    value[0] = MODEL["mig"]["max_devices"] if _gpu(handle)["mig"]["current"] else 0


# MIG devices: one for each compute instance, so that a GPU instance without one is not seen here.


def _mig_devices(gpu: dict[str, Any]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    return [(instance, compute) for instance in gpu["mig"]["instances"] for compute in instance["compute"]]


def _mig_device(handle: Any, gpu: Optional[dict[str, Any]] = None) -> tuple[dict[str, Any], dict[str, Any]]:
    """The GPU instance and the compute instance of a handle; the handle of a GPU or of what is gone is an invalid argument."""
    for instance, compute in _mig_devices(gpu or _gpu(handle)):
        if compute["serial"] == _serial(handle):
            return instance, compute
    raise NvmlError("INVALID_ARGUMENT")


def nvmlDeviceIsMigDeviceHandle(handle: Any, value: Any) -> None:
    _gpu(handle)
    value[0] = bool(_serial(handle))


def nvmlDeviceGetMigDeviceHandleByIndex(handle: Any, index: int, device: Any) -> None:
    gpu = _gpu(handle)
    devices = _mig_devices(gpu)
    if index >= len(devices):
        raise NvmlError("NOT_FOUND")
    device[0] = _handle("nvmlDevice_t", gpu["index"], devices[index][1]["serial"])


def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle: Any, device: Any) -> None:
    _mig_device(handle)
    device[0] = _handle("nvmlDevice_t", _device_index(handle))


def nvmlDeviceGetGpuInstanceId(handle: Any, value: Any) -> None:
    value[0] = _mig_device(handle)[0]["id"]


def nvmlDeviceGetComputeInstanceId(handle: Any, value: Any) -> None:
    value[0] = _mig_device(handle)[1]["id"]


def nvmlDeviceGetUUID(handle: Any, buffer: Any, length: int) -> None:
    _fill_string(buffer, (_mig_device(handle)[1] if _serial(handle) else _gpu(handle))["uuid"], length)


def nvmlDeviceGetName(handle: Any, buffer: Any, length: int) -> None:
    _gpu(handle)
    name = MODEL["answers"]["nvmlDeviceGetName"]
    _fill_string(buffer, "%s %s" % (name, _mig_device(handle)[1]["name"]) if _serial(handle) else name, length)


def nvmlDeviceGetAttributes_v2(handle: Any, attributes: Any) -> None:
    if not _serial(handle):
        _gpu(handle)
        raise NvmlError("NOT_SUPPORTED")
    instance, compute = _mig_device(handle)
    whole, part = mig.profile(MODEL, instance["profile"]), mig.compute_profile(MODEL, instance, compute["profile"])
    _fill_known(attributes, {**part, "memorySizeMB": whole["memorySizeMB"]})
    attributes.gpuInstanceSliceCount, attributes.computeInstanceSliceCount = whole["sliceCount"], part["sliceCount"]


def nvmlDeviceGetUtilizationRates(handle: Any, rates: Any) -> None:
    if _gpu(handle)["mig"]["current"]:
        raise NvmlError("NOT_SUPPORTED")
    _fill_struct(rates, MODEL["answers"]["nvmlDeviceGetUtilizationRates"])


# Profiles. The query takes an enumerator, all else the profile's id.


def _fill_known(struct: Any, values: dict[str, Any]) -> None:
    known = dir(struct)
    _fill_struct(struct, {field: value for field, value in values.items() if field in known})


def _fill_profile(info: Any, profiles: dict[str, dict[str, Any]], query: int, queries: int) -> None:
    if query >= queries:
        raise NvmlError("INVALID_ARGUMENT")
    if str(query) not in profiles:
        raise NvmlError("NOT_SUPPORTED")
    _fill_known(info, profiles[str(query)])


def _fill_versioned(info: Any, fill: Callable[[], None]) -> None:
    if info.version >> 24 != 2:
        raise NvmlError("ARGUMENT_VERSION_MISMATCH")
    fill()
    info.version = 0  # as the real driver leaves it


def _fill_placements(count: Any, room: Any, placements: list[list[int]]) -> None:
    def put(position: int, placement: list[int]) -> None:
        room[position].start, room[position].size = placement

    if room == ffi.NULL:
        count[0] = len(placements)
    else:
        _fill_list(count, room, placements, put)


def nvmlDeviceGetGpuInstanceProfileInfo(handle: Any, query: int, info: Any) -> None:
    _gpu(handle)
    _fill_profile(info, MODEL["mig"]["profiles"], query, MODEL["mig"]["query_enums"])


def nvmlDeviceGetGpuInstanceProfileInfoV(handle: Any, query: int, info: Any) -> None:
    _fill_versioned(info, lambda: nvmlDeviceGetGpuInstanceProfileInfo(handle, query, info))


def nvmlDeviceGetGpuInstancePossiblePlacements_v2(handle: Any, profile: int, placements: Any, count: Any) -> None:
    """All there could ever be, in any mode, taken or not."""
    _gpu(handle)
    _fill_placements(count, placements, mig.profile(MODEL, profile)["placements"])


def nvmlDeviceGetGpuInstanceRemainingCapacity(handle: Any, profile: int, count: Any) -> None:
    count[0] = mig.remaining_capacity(MODEL, _gpu(handle), mig.profile(MODEL, profile))


def nvmlGpuInstanceGetComputeInstanceProfileInfo(handle: Any, query: int, engine: int, info: Any) -> None:
    instance = _instance(handle)
    if engine != 0:
        raise NvmlError("INVALID_ARGUMENT")
    profiles = mig.compute_profiles(MODEL, mig.profile(MODEL, instance["profile"]))
    _fill_profile(info, profiles, query, MODEL["mig"]["compute_query_enums"])


def nvmlGpuInstanceGetComputeInstanceProfileInfoV(handle: Any, query: int, engine: int, info: Any) -> None:
    _fill_versioned(info, lambda: nvmlGpuInstanceGetComputeInstanceProfileInfo(handle, query, engine, info))


def nvmlGpuInstanceGetComputeInstancePossiblePlacements(handle: Any, profile: int, placements: Any, count: Any) -> None:
    _fill_placements(count, placements, mig.compute_profile(MODEL, _instance(handle), profile)["placements"])


def nvmlGpuInstanceGetComputeInstanceRemainingCapacity(handle: Any, profile: int, count: Any) -> None:
    instance = _instance(handle)
    count[0] = mig.remaining_compute_capacity(instance, mig.compute_profile(MODEL, instance, profile))


# Instances


def _instance(handle: Any, gpu: Optional[dict[str, Any]] = None) -> dict[str, Any]:
    for instance in (gpu or _gpu(handle))["mig"]["instances"]:
        if instance["serial"] == _serial(handle):
            found: dict[str, Any] = instance
            return found
    raise NvmlError("INVALID_ARGUMENT")


def _place(placement: Any) -> list[int]:
    if placement == ffi.NULL:
        raise NvmlError("INVALID_ARGUMENT")
    return [placement.start, placement.size]


def _create_gpu_instance(handle: Any, profile: int, placement: Optional[list[int]], out: Any) -> None:
    with _change(handle) as (state, gpu):
        made = mig.create_gpu_instance(MODEL, state, gpu, profile, placement)
    out[0] = _handle("nvmlGpuInstance_t", gpu["index"], made["serial"])


def nvmlDeviceCreateGpuInstance(handle: Any, profile: int, out: Any) -> None:
    _create_gpu_instance(handle, profile, None, out)


def nvmlDeviceCreateGpuInstanceWithPlacement(handle: Any, profile: int, placement: Any, out: Any) -> None:
    _create_gpu_instance(handle, profile, _place(placement), out)


def nvmlGpuInstanceDestroy(handle: Any) -> None:
    with _change(handle) as (state, gpu):
        mig.destroy_gpu_instance(state, gpu, _instance(handle, gpu))


def _list_instances(kind: str, index: int, profile: int, live: list[dict[str, Any]], out: Any, count: Any) -> None:
    """The room is not told: it must be enough for as many as the profile allows."""
    if out == ffi.NULL:
        raise NvmlError("INVALID_ARGUMENT")
    found = [one["serial"] for one in live if one["profile"] == profile]
    for position, serial in enumerate(found):
        out[position] = _handle(kind, index, serial)
    count[0] = len(found)


def nvmlDeviceGetGpuInstances(handle: Any, profile: int, out: Any, count: Any) -> None:
    gpu = _gpu(handle)
    if not gpu["mig"]["current"]:
        raise NvmlError("NOT_SUPPORTED")
    mig.profile(MODEL, profile)
    _list_instances("nvmlGpuInstance_t", gpu["index"], profile, gpu["mig"]["instances"], out, count)


def _by_id(kind: str, index: int, number: int, live: list[dict[str, Any]], out: Any) -> None:
    for one in live:
        if one["id"] == number:
            out[0] = _handle(kind, index, one["serial"])
            return
    raise NvmlError("NOT_FOUND")


def nvmlDeviceGetGpuInstanceById(handle: Any, number: int, out: Any) -> None:
    gpu = _gpu(handle)
    if not gpu["mig"]["current"]:
        raise NvmlError("NOT_SUPPORTED")
    _by_id("nvmlGpuInstance_t", gpu["index"], number, gpu["mig"]["instances"], out)


def _fill_instance(info: Any, index: int, one: dict[str, Any]) -> None:
    info.device, info.id, info.profileId = _handle("nvmlDevice_t", index), one["id"], one["profile"]
    info.placement.start, info.placement.size = one["start"], one["size"]


def nvmlGpuInstanceGetInfo(handle: Any, info: Any) -> None:
    _fill_instance(info, _device_index(handle), _instance(handle))


def _create_compute_instance(handle: Any, profile: int, placement: Optional[list[int]], out: Any) -> None:
    with _change(handle) as (state, gpu):
        made = mig.create_compute_instance(MODEL, state, gpu, _instance(handle, gpu), profile, placement)
    out[0] = _handle("nvmlComputeInstance_t", gpu["index"], made["serial"])


def nvmlGpuInstanceCreateComputeInstance(handle: Any, profile: int, out: Any) -> None:
    _create_compute_instance(handle, profile, None, out)


def nvmlGpuInstanceCreateComputeInstanceWithPlacement(handle: Any, profile: int, placement: Any, out: Any) -> None:
    _create_compute_instance(handle, profile, _place(placement), out)


def nvmlComputeInstanceDestroy(handle: Any) -> None:
    with _change(handle) as (state, gpu):
        mig.destroy_compute_instance(state, gpu, *_mig_device(handle, gpu))


def nvmlGpuInstanceGetComputeInstances(handle: Any, profile: int, out: Any, count: Any) -> None:
    instance = _instance(handle)
    mig.compute_profile(MODEL, instance, profile)
    _list_instances("nvmlComputeInstance_t", _device_index(handle), profile, instance["compute"], out, count)


def nvmlGpuInstanceGetComputeInstanceById(handle: Any, number: int, out: Any) -> None:
    _by_id("nvmlComputeInstance_t", _device_index(handle), number, _instance(handle)["compute"], out)


def nvmlComputeInstanceGetInfo_v2(handle: Any, info: Any) -> None:
    instance, compute = _mig_device(handle)
    _fill_instance(info, _device_index(handle), compute)
    info.gpuInstance = _handle("nvmlGpuInstance_t", _device_index(handle), instance["serial"])


nvmlComputeInstanceGetInfo = nvmlComputeInstanceGetInfo_v2


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
            data.device, data.eventType, data.eventData = _handle("nvmlDevice_t", index), event["type"], event["data"]
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
            takes = types[0].cname if types else ""
            answer = globals().get(name) or _from_data(name, list(types), takes == DEVICE)
            ffi.def_extern(name=name, error=CODES["UNKNOWN"])(_entry(name, answer, takes))


export()
