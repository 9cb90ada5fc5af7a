# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The calls of MIG. Each function has the name of its call; what is allowed is in mig.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Optional

from _gpusim_nvml import ffi  # the cffi module inside the shared library

from . import capabilities, mig
from .core import MODEL, NODE, STATE, device_index, fill_known, fill_list, gpu_of, make_handle, mig_device, mig_devices, serial_of
from .errors import CODES, NvmlError


def nvmlDeviceGetMigMode(handle: Any, current: Any, pending: Any) -> None:
    mode = gpu_of(handle)["mig"]
    current[0], pending[0] = mode["current"], mode["pending"]


def nvmlDeviceSetMigMode(handle: Any, mode: int, activation: Any) -> None:
    """The status tells what stood in the way, and the call succeeds all the same."""
    if mode > 1:
        raise NvmlError("INVALID_ARGUMENT")
    with STATE.update() as state:
        gpu = gpu_of(handle, state)
        obstacle = mig.set_mode(MODEL, state, gpu, mode)
        capabilities.update(NODE, gpu)
    activation[0] = CODES[obstacle] if obstacle else 0


def nvmlDeviceGetMaxMigDeviceCount(handle: Any, value: Any) -> None:
    value[0] = MODEL["mig"]["max_devices"] if gpu_of(handle)["mig"]["current"] else 0


# MIG devices: one for each compute instance, so that a GPU instance without one is not seen here.


def nvmlDeviceIsMigDeviceHandle(handle: Any, value: Any) -> None:
    gpu_of(handle)
    value[0] = bool(serial_of(handle))


def nvmlDeviceGetMigDeviceHandleByIndex(handle: Any, index: int, device: Any) -> None:
    gpu = gpu_of(handle)
    devices = mig_devices(gpu)
    if index >= len(devices):
        raise NvmlError("NOT_FOUND")
    device[0] = make_handle("nvmlDevice_t", gpu["index"], devices[index][1]["serial"])


def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle: Any, device: Any) -> None:
    mig_device(handle)
    device[0] = make_handle("nvmlDevice_t", device_index(handle))


def nvmlDeviceGetGpuInstanceId(handle: Any, value: Any) -> None:
    value[0] = mig_device(handle)[0]["id"]


def nvmlDeviceGetComputeInstanceId(handle: Any, value: Any) -> None:
    value[0] = mig_device(handle)[1]["id"]


def nvmlDeviceGetAttributes_v2(handle: Any, attributes: Any) -> None:
    if not serial_of(handle):
        gpu_of(handle)
        raise NvmlError("NOT_SUPPORTED")
    instance, compute = mig_device(handle)
    whole, part = mig.profile(MODEL, instance["profile"]), mig.compute_profile(MODEL, instance, compute["profile"])
    fill_known(attributes, {**part, "memorySizeMB": whole["memorySizeMB"]})
    attributes.gpuInstanceSliceCount, attributes.computeInstanceSliceCount = whole["sliceCount"], part["sliceCount"]


# Profiles. The query takes an enumerator, all else the profile's id.


def _fill_profile(info: Any, profiles: dict[str, dict[str, Any]], query: int, queries: int) -> None:
    if query >= queries:
        raise NvmlError("INVALID_ARGUMENT")
    if str(query) not in profiles:
        raise NvmlError("NOT_SUPPORTED")
    fill_known(info, profiles[str(query)])


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
        fill_list(count, room, placements, put)


def nvmlDeviceGetGpuInstanceProfileInfo(handle: Any, query: int, info: Any) -> None:
    gpu_of(handle)
    _fill_profile(info, MODEL["mig"]["profiles"], query, MODEL["mig"]["query_enums"])


def nvmlDeviceGetGpuInstanceProfileInfoV(handle: Any, query: int, info: Any) -> None:
    _fill_versioned(info, lambda: nvmlDeviceGetGpuInstanceProfileInfo(handle, query, info))


def nvmlDeviceGetGpuInstancePossiblePlacements_v2(handle: Any, profile: int, placements: Any, count: Any) -> None:
    """All there could ever be, in any mode, taken or not."""
    gpu_of(handle)
    _fill_placements(count, placements, mig.profile(MODEL, profile)["placements"])


def nvmlDeviceGetGpuInstanceRemainingCapacity(handle: Any, profile: int, count: Any) -> None:
    count[0] = mig.remaining_capacity(MODEL, gpu_of(handle), mig.profile(MODEL, profile))


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
    for instance in (gpu or gpu_of(handle))["mig"]["instances"]:
        if instance["serial"] == serial_of(handle):
            found: dict[str, Any] = instance
            return found
    raise NvmlError("INVALID_ARGUMENT")


def _place(placement: Any) -> list[int]:
    if placement == ffi.NULL:
        raise NvmlError("INVALID_ARGUMENT")
    return [placement.start, placement.size]


def _create_gpu_instance(handle: Any, profile: int, placement: Optional[list[int]], out: Any) -> None:
    with STATE.update() as state:
        gpu = gpu_of(handle, state)
        made = mig.create_gpu_instance(MODEL, state, gpu, profile, placement)
        capabilities.update(NODE, gpu)
    out[0] = make_handle("nvmlGpuInstance_t", gpu["index"], made["serial"])


def nvmlDeviceCreateGpuInstance(handle: Any, profile: int, out: Any) -> None:
    _create_gpu_instance(handle, profile, None, out)


def nvmlDeviceCreateGpuInstanceWithPlacement(handle: Any, profile: int, placement: Any, out: Any) -> None:
    _create_gpu_instance(handle, profile, _place(placement), out)


def nvmlGpuInstanceDestroy(handle: Any) -> None:
    with STATE.update() as state:
        gpu = gpu_of(handle, state)
        mig.destroy_gpu_instance(state, gpu, _instance(handle, gpu))
        capabilities.update(NODE, gpu)


def _list_instances(kind: str, index: int, profile: int, live: list[dict[str, Any]], out: Any, count: Any) -> None:
    """The room is not told: it must be enough for as many as the profile allows."""
    if out == ffi.NULL:
        raise NvmlError("INVALID_ARGUMENT")
    found = [one["serial"] for one in live if one["profile"] == profile]
    for position, serial in enumerate(found):
        out[position] = make_handle(kind, index, serial)
    count[0] = len(found)


def nvmlDeviceGetGpuInstances(handle: Any, profile: int, out: Any, count: Any) -> None:
    """None with MIG off, which a driver whose queries do not depend on the mode does not refuse."""
    gpu = gpu_of(handle)
    mig.profile(MODEL, profile)
    _list_instances("nvmlGpuInstance_t", gpu["index"], profile, gpu["mig"]["instances"], out, count)


def _by_id(kind: str, index: int, number: int, live: list[dict[str, Any]], out: Any) -> None:
    for one in live:
        if one["id"] == number:
            out[0] = make_handle(kind, index, one["serial"])
            return
    raise NvmlError("NOT_FOUND")


def nvmlDeviceGetGpuInstanceById(handle: Any, number: int, out: Any) -> None:
    gpu = gpu_of(handle)
    _by_id("nvmlGpuInstance_t", gpu["index"], number, gpu["mig"]["instances"], out)


def _fill_instance(info: Any, index: int, one: dict[str, Any]) -> None:
    info.device, info.id, info.profileId = make_handle("nvmlDevice_t", index), one["id"], one["profile"]
    info.placement.start, info.placement.size = one["start"], one["size"]


def nvmlGpuInstanceGetInfo(handle: Any, info: Any) -> None:
    _fill_instance(info, device_index(handle), _instance(handle))


def _create_compute_instance(handle: Any, profile: int, placement: Optional[list[int]], out: Any) -> None:
    with STATE.update() as state:
        gpu = gpu_of(handle, state)
        made = mig.create_compute_instance(MODEL, state, gpu, _instance(handle, gpu), profile, placement)
        capabilities.update(NODE, gpu)
    out[0] = make_handle("nvmlComputeInstance_t", gpu["index"], made["serial"])


def nvmlGpuInstanceCreateComputeInstance(handle: Any, profile: int, out: Any) -> None:
    _create_compute_instance(handle, profile, None, out)


def nvmlGpuInstanceCreateComputeInstanceWithPlacement(handle: Any, profile: int, placement: Any, out: Any) -> None:
    _create_compute_instance(handle, profile, _place(placement), out)


def nvmlComputeInstanceDestroy(handle: Any) -> None:
    with STATE.update() as state:
        gpu = gpu_of(handle, state)
        mig.destroy_compute_instance(state, gpu, *mig_device(handle, gpu))
        capabilities.update(NODE, gpu)


def nvmlGpuInstanceGetComputeInstances(handle: Any, profile: int, out: Any, count: Any) -> None:
    instance = _instance(handle)
    mig.compute_profile(MODEL, instance, profile)
    _list_instances("nvmlComputeInstance_t", device_index(handle), profile, instance["compute"], out, count)


def nvmlGpuInstanceGetComputeInstanceById(handle: Any, number: int, out: Any) -> None:
    _by_id("nvmlComputeInstance_t", device_index(handle), number, _instance(handle)["compute"], out)


def nvmlComputeInstanceGetInfo_v2(handle: Any, info: Any) -> None:
    instance, compute = mig_device(handle)
    _fill_instance(info, device_index(handle), compute)
    info.gpuInstance = make_handle("nvmlGpuInstance_t", device_index(handle), instance["serial"])


nvmlComputeInstanceGetInfo = nvmlComputeInstanceGetInfo_v2
