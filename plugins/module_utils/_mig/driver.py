# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.
"""A GPU's MIG state through the unmodified nvidia-ml-py. Every call here can hang: see watched.py for who calls it."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Callable, Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._gpu.records import pci_bus_id, text
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.device_id import DeviceId
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.errors import DriverTooOld
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.layout import ComputeInstance, GpuInstance, Layout, Placement
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.names import computed_name
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.profiles import Model, Profile, Starts
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.reading import Reading
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.tables import model_of

_FIELD_RESETLESS = 184  # by number: releases of nvidia-ml-py before 12.535 have no name for it
_ENGINES = 0  # shared, the only engine profile there is
_WRONG_LIMITS = ("a30-24",)  # of these models drivers tell a number of instances that is not so
_PREFIX = "MIG "


def read(nvml: Any, handle: Any) -> Reading:
    """`nvml` is pynvml, or what stands for it. What NVML refuses without which there is no answer is raised as its own error."""
    pci = nvml.nvmlDeviceGetPciInfo(handle)
    reading = Reading(
        index=nvml.nvmlDeviceGetIndex(handle),
        uuid=text(nvml.nvmlDeviceGetUUID(handle)),
        pci_bus_id=pci_bus_id(text(pci.busId)),
        minor=_unless_refused(nvml, nvml.nvmlDeviceGetMinorNumber, handle),
        name=text(nvml.nvmlDeviceGetName(handle)),
        device_id=DeviceId(pci.pciDeviceId, pci.pciSubSystemId),
    )
    mode = _unless_refused(nvml, nvml.nvmlDeviceGetMigMode, handle)
    if mode is None:
        return reading
    current, pending = map(bool, mode)
    model = _model(nvml, handle, pci.pciDeviceId >> 16, reading.name)
    instances, starts = _instances(nvml, handle, model) if current else ((), {})
    layout = Layout(current, instances, pending if pending != current else None)
    return replace(
        reading,
        resetless=_resetless(nvml, handle),
        model=replace(model, profiles=tuple(replace(one, driver_compute_starts=starts.get(one.name)) for one in model.profiles)),
        layout=layout,
        mig_uuids=_mig_uuids(nvml, handle, layout) if current else {},
    )


def compute_profiles(nvml: Any, instance: Any) -> Iterator[Any]:
    """What a GPU instance can be divided into, as the driver tells it."""
    for query in range(nvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        info = _info(nvml, nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo, instance, query, _ENGINES)
        if info is not None:
            yield info


def compute_placements(nvml: Any, instance: Any, profile_id: int) -> Optional[list[Placement]]:
    """Where a compute instance can ever be in this GPU instance; None where the driver does not tell."""
    return _placements(nvml, nvml.nvmlGpuInstanceGetComputeInstancePossiblePlacements, instance, profile_id)


def _unless_refused(nvml: Any, function: Callable[..., Any], *args: Any, more: tuple[int, ...] = ()) -> Any:
    """None where this GPU or this driver has no such thing."""
    try:
        return function(*args)
    except nvml.NVMLError as error:
        if error.value in (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_FUNCTION_NOT_FOUND, *more):
            return None
        raise


def _resetless(nvml: Any, handle: Any) -> bool:
    values = _unless_refused(nvml, nvml.nvmlDeviceGetFieldValues, handle, [_FIELD_RESETLESS])
    return bool(values and values[0].nvmlReturn == nvml.NVML_SUCCESS and values[0].value.uiVal)


# --- what it can be cut into ---


def _model(nvml: Any, handle: Any, device_id: int, name: str) -> Model:
    """The driver's profiles; what it does not tell is filled in from the tables, where they know the GPU."""
    known = model_of(device_id)
    profiles = [
        profile
        for query in range(nvml.NVML_GPU_INSTANCE_PROFILE_COUNT)
        for profile in [_profile(nvml, handle, query, known)]
        if profile is not None
    ]
    if not profiles and known is None:  # drivers that answer only in MIG mode
        raise DriverTooOld(f"the driver does not say what {name} can be cut into, and the tables do not know it")
    if known is not None:
        return replace(known, profiles=tuple(profiles)) if profiles else known
    slices = max(start + profile.memory_slices for profile in profiles for start in profile.starts)
    return Model(name, (device_id,), slices, tuple(profiles), "driver")


def _profile(nvml: Any, handle: Any, query: int, model: Optional[Model]) -> Optional[Profile]:
    info = _info(nvml, nvml.nvmlDeviceGetGpuInstanceProfileInfo, handle, query)
    if info is None:
        return None
    known = next((one for one in model.profiles if one.query == query), None) if model else None
    places = _placements(nvml, nvml.nvmlDeviceGetGpuInstancePossiblePlacements, handle, info.id)
    if places is None and known is not None:
        places = [Placement(start, known.memory_slices) for start in known.starts]
    if not places:
        raise DriverTooOld(f"the driver does not say where its GPU instance profile {info.id} can be")
    told = text(getattr(info, "name", "") or "")  # structures of version 1 have no name
    name = told.rsplit(_PREFIX, 1)[-1] or (known.name if known else _computed(nvml, handle, info, query))
    return Profile(
        name,
        query,
        info.id,
        known.limit if known and model and model.name in _WRONG_LIMITS else info.instanceCount,
        info.sliceCount,
        places[0].size,
        tuple(sorted(place.start for place in places)),
        info.memorySizeMB,
        info.multiprocessorCount,
        tuple(sorted({known.name, *known.aliases} - {name})) if known else (),
        optical_flow=info.ofaCount,
    )


def _computed(nvml: Any, handle: Any, info: Any, query: int) -> str:
    return computed_name(query, info.sliceCount, info.memorySizeMB, nvml.nvmlDeviceGetMemoryInfo(handle).total >> 20)


def _info(nvml: Any, function: Callable[..., Any], *args: Any) -> Any:
    """Of version 2, which has names, or else of version 1; None where there is no such profile."""
    for version in (2, 1):
        try:
            return function(*args, version)
        except nvml.NVMLError as error:
            if error.value in (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_INVALID_ARGUMENT):
                return None
            if error.value not in (nvml.NVML_ERROR_FUNCTION_NOT_FOUND, nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH):
                raise
    return None


def _placements(nvml: Any, function: Callable[..., Any], owner: Any, profile_id: int) -> Optional[list[Placement]]:
    """All there could ever be, taken or not. It takes privilege."""
    count = ctypes.c_uint()
    refusals = (nvml.NVML_ERROR_NO_PERMISSION, nvml.NVML_ERROR_INVALID_ARGUMENT)
    if _unless_refused(nvml, function, owner, profile_id, None, ctypes.byref(count), more=refusals) is None:
        return None
    room = (nvml.c_nvmlGpuInstancePlacement_t * count.value)()
    function(owner, profile_id, room, ctypes.byref(count))
    return [Placement(one.start, one.size) for one in room[: count.value]]


# --- what it is cut into ---


def _instances(nvml: Any, handle: Any, model: Model) -> tuple[tuple[GpuInstance, ...], dict[str, Starts]]:
    """By profile: a GPU instance without a compute instance has no MIG device and shows nowhere else."""
    found, starts = [], {}
    for profile in model.profiles:
        count = ctypes.c_uint()
        room = (nvml.c_nvmlGpuInstance_t * max(profile.limit, len(profile.starts)))()
        nvml.nvmlDeviceGetGpuInstances(handle, profile.profile_id, room, ctypes.byref(count))
        for one in room[: count.value]:
            info = nvml.nvmlGpuInstanceGetInfo(one)
            compute, told = _compute(nvml, one)
            if told is not None:
                starts[profile.name] = told
            found.append(GpuInstance(profile.name, Placement(info.placement.start, info.placement.size), compute, info.id))
    return tuple(found), starts


def _compute(nvml: Any, instance: Any) -> tuple[tuple[ComputeInstance, ...], Optional[Starts]]:
    found: list[ComputeInstance] = []
    starts: dict[int, tuple[int, ...]] = {}
    told = True
    for info in compute_profiles(nvml, instance):
        places = compute_placements(nvml, instance, info.id)
        told = told and places is not None
        starts.setdefault(info.sliceCount, tuple(sorted(place.start for place in places or ())))
        count = ctypes.c_uint()
        room = (nvml.c_nvmlComputeInstance_t * max(info.instanceCount, len(places or ())))()
        nvml.nvmlGpuInstanceGetComputeInstances(instance, info.id, room, ctypes.byref(count))
        for one in room[: count.value]:
            part = nvml.nvmlComputeInstanceGetInfo(one)
            found.append(ComputeInstance(part.placement.start, info.sliceCount, part.id))
    return tuple(found), tuple(sorted(starts.items())) if told and starts else None


def _mig_uuids(nvml: Any, handle: Any, layout: Layout) -> dict[str, str]:
    names = {(one.id, part.id): one.compute_name(part) for one in layout.instances for part in one.compute}
    found = {}
    for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        device = _unless_refused(
            nvml, nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, number, more=(nvml.NVML_ERROR_NOT_FOUND,)
        )  # numbers have gaps
        if device is not None:
            key = (nvml.nvmlDeviceGetGpuInstanceId(device), nvml.nvmlDeviceGetComputeInstanceId(device))
            if key in names:  # else made since the layout was read
                found[names[key]] = text(nvml.nvmlDeviceGetUUID(device))
    return found
