# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The calls that have a logic of their own, those of MIG aside. Each function has the name of its call."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, Optional

from _gpusim_nvml import ffi  # the cffi module inside the shared library

from . import core, mig
from .core import (
    MODEL,
    POLL_SECONDS,
    STATE,
    device_index,
    fill_list,
    fill_string,
    fill_struct,
    gpu_faults,
    gpu_of,
    make_handle,
    mig_device,
    mig_devices,
    serial_of,
)
from .errors import CODES, NvmlError
from .state import is_alive

RECOVERY_ACTIONS = ("none", "gpu_reset", "node_reboot", "drain_p2p", "drain_and_reset", "recover_imex_domain")
NO_INSTANCE = 0xFFFFFFFF  # how NVML writes "not under MIG"
PSTATE_UNKNOWN = 32
DRAM = 2  # NVML_MEMORY_LOCATION_DRAM; the simulated errors are all there
SRAM_STATUS_VERSION = 0x1000068  # nvmlEccSramErrorStatus_v1
event_sets: dict[int, dict[int, list[int]]] = {}  # set -> GPU index -> [types, last event seen]


def nvmlInitWithFlags(flags: int) -> None:
    if core.initialised and core.initialised_by != os.getpid():
        raise NvmlError("OPERATING_SYSTEM")
    core.initialised, core.initialised_by = core.initialised + 1, os.getpid()


def nvmlInit_v2() -> None:
    nvmlInitWithFlags(0)


nvmlInit = nvmlInit_v2


def nvmlShutdown() -> None:
    core.initialised -= 1


def nvmlSystemGetProcessName(pid: int, name: Any, length: int) -> None:
    for process in STATE.read()["processes"]:
        if process["pid"] == pid and is_alive(process):
            return fill_string(name, process["executable"][: length - 1], length)
    raise NvmlError("NOT_FOUND")


def nvmlDeviceGetCount_v2(count: Any) -> None:
    count[0] = len(STATE.read()["gpus"])


nvmlDeviceGetCount = nvmlDeviceGetCount_v2


def _hand_out(device: Any, index: int, name: str, serial: int = 0) -> None:
    gpu_faults(name, index)
    if STATE.read()["gpus"][index]["lost"]:
        raise NvmlError("GPU_IS_LOST")
    device[0] = make_handle("nvmlDevice_t", index, serial)


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
        for _instance, compute in mig_devices(gpu):
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


def nvmlDeviceGetUUID(handle: Any, buffer: Any, length: int) -> None:
    fill_string(buffer, (mig_device(handle)[1] if serial_of(handle) else gpu_of(handle))["uuid"], length)


def nvmlDeviceGetName(handle: Any, buffer: Any, length: int) -> None:
    gpu_of(handle)
    name = MODEL["answers"]["nvmlDeviceGetName"]
    fill_string(buffer, "%s %s" % (name, mig_device(handle)[1]["name"]) if serial_of(handle) else name, length)


def nvmlDeviceSetComputeMode(handle: Any, mode: int) -> None:
    """Exclusive to a thread (1) is no longer a mode."""
    if mode not in (0, 2, 3):
        raise NvmlError("INVALID_ARGUMENT")
    with STATE.update() as state:
        gpu_of(handle, state)["answers"]["nvmlDeviceGetComputeMode"] = mode


def nvmlDeviceGetUtilizationRates(handle: Any, rates: Any) -> None:
    if gpu_of(handle)["mig"]["current"]:
        raise NvmlError("NOT_SUPPORTED")
    fill_struct(rates, MODEL["answers"]["nvmlDeviceGetUtilizationRates"])


def _processes(handle: Any, kind: Optional[str] = None) -> list[dict[str, Any]]:
    """Of a GPU; of a MIG device those in its compute instance."""
    gpu = gpu_of(handle)
    gi, ci = (one["id"] for one in mig_device(handle)) if serial_of(handle) else (None, None)
    return [process for process in mig.users(STATE.read(), gpu, gi, ci) if kind in (None, process["type"])]


def _list_processes(kind: str) -> Callable[[Any, Any, Any], None]:
    def call(handle: Any, count: Any, infos: Any) -> None:
        def put(position: int, process: dict[str, Any]) -> None:
            info = infos[position]
            info.pid, info.usedGpuMemory = process["pid"], process["memory_bytes"]
            info.gpuInstanceId = NO_INSTANCE if process["gi"] is None else process["gi"]
            info.computeInstanceId = NO_INSTANCE if process["ci"] is None else process["ci"]

        fill_list(count, infos, _processes(handle, kind), put)

    return call


nvmlDeviceGetComputeRunningProcesses_v2 = nvmlDeviceGetComputeRunningProcesses_v3 = _list_processes("compute")
nvmlDeviceGetGraphicsRunningProcesses_v2 = nvmlDeviceGetGraphicsRunningProcesses_v3 = _list_processes("graphics")
nvmlDeviceGetMPSComputeRunningProcesses_v2 = nvmlDeviceGetMPSComputeRunningProcesses_v3 = _list_processes("mps")


def _memory(handle: Any) -> tuple[int, int, int]:
    """Total, reserved by the driver, used by processes. Compute instances share the memory of their GPU instance."""
    gpu = gpu_of(handle)
    if not serial_of(handle):
        return MODEL["memory"]["total_bytes"], MODEL["memory"]["reserved_bytes"], mig.memory_used(STATE.read(), gpu)
    instance, _compute = mig_device(handle)
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
    return int(gpu_of(handle)["ecc"][name])


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
    status.version, status.bThresholdExceeded = version, gpu_of(handle)["ecc"]["sram_threshold_exceeded"]


def nvmlDeviceGetRemappedRows(handle: Any, correctable: Any, uncorrectable: Any, pending: Any, failure: Any) -> None:
    rows = gpu_of(handle)["remapped_rows"]
    correctable[0], uncorrectable[0] = rows["correctable"], rows["uncorrectable"]
    pending[0], failure[0] = rows["pending"], rows["failure"]


def nvmlDeviceGetRowRemapperHistogram(handle: Any, histogram: Any) -> None:
    rows = gpu_of(handle)["remapped_rows"]
    used = min(rows["correctable"] + rows["uncorrectable"], MODEL["remap_banks"])
    # A bank has eight spare rows; the simulated errors fall into banks of their own, and a failure means an empty bank.
    histogram.high, histogram.partial, histogram.low, histogram.none = used, 0, 0, int(rows["failure"])
    histogram.max = MODEL["remap_banks"] - used - int(rows["failure"])


def nvmlDeviceGetFieldValues(handle: Any, count: int, values: Any) -> None:
    gpu = gpu_of(handle)
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
    value[0] = gpu_of(handle)["temperature_celsius"]


def nvmlDeviceGetTemperatureV(handle: Any, value: Any) -> None:
    if value.sensorType != 0:
        raise NvmlError("INVALID_ARGUMENT")
    value.temperature = gpu_of(handle)["temperature_celsius"]


def nvmlDeviceGetMarginTemperature(handle: Any, value: Any) -> None:
    value.marginTemperature = MODEL["temperature_limit_celsius"] - gpu_of(handle)["temperature_celsius"]


def _clock(handle: Any, which: str, kind: int, value: Any) -> None:
    gpu_of(handle)
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
    gpu_of(handle)
    fill_list(count, values, MODEL["answers"]["nvmlDeviceGetSupportedMemoryClocks"], values.__setitem__)


def nvmlDeviceGetSupportedPerformanceStates(handle: Any, values: Any, size: int) -> None:
    gpu_of(handle)
    states = MODEL["answers"]["nvmlDeviceGetSupportedPerformanceStates"]
    for position in range(size // ffi.sizeof("unsigned int")):
        values[position] = states[position] if position < len(states) else PSTATE_UNKNOWN


def nvmlDeviceGetPersistenceMode(handle: Any, value: Any) -> None:
    value[0] = gpu_of(handle)["persistence"]


def nvmlDeviceSetPersistenceMode(handle: Any, mode: int) -> None:
    gpu_of(handle)
    with STATE.update() as state:
        state["gpus"][device_index(handle)]["persistence"] = mode


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
    gpu_of(handle)
    if types & ~MODEL["answers"]["nvmlDeviceGetSupportedEventTypes"]:
        raise NvmlError("NOT_SUPPORTED")
    registered = _event_set(events).setdefault(device_index(handle), [0, STATE.read()["event_sequence"]])
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
            data.device, data.eventType, data.eventData = make_handle("nvmlDevice_t", index), event["type"], event["data"]
            data.gpuInstanceId = NO_INSTANCE if event["gi"] is None else event["gi"]
            data.computeInstanceId = NO_INSTANCE if event["ci"] is None else event["ci"]
            return
        if time.monotonic() >= until:
            raise NvmlError("TIMEOUT")
        time.sleep(POLL_SECONDS)


nvmlEventSetWait = nvmlEventSetWait_v2
