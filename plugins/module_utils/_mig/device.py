# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.
"""One GPU's MIG state changed through NVML, a step at a time. Whoever calls decides what; here it is done, or refused for a reason with a name."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from typing import Any, Callable, Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._mig import steps as step
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.calls import Calls
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.driver import compute_placements, compute_profiles, read
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.errors import Busy, Gone, Infeasible, Refused
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.layout import ComputeInstance, GpuInstance
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.planner import GPU
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.reading import Reading

# A client that has just ended is still one to the driver for a moment, and one that only reads (our own exporter too) is one for another
_LINGER_SECONDS = (0.1, 0.2, 0.4, 0.8, 1.5)


class Device:
    """`reset` resets the GPU of a PCI address; the driver must have no client here meanwhile."""

    def __init__(self, calls: Calls, uuid: str, reset: Callable[[str], None], sleep: Callable[[float], None] = time.sleep) -> None:
        self._nvml = calls
        self._uuid = uuid
        self._reset = reset
        self._sleep = sleep
        self._handle: Any = None

    def read(self) -> Reading:
        found: Reading = self._typed(lambda: read(self._nvml, self._gpu()))
        return found

    def do(self, todo: step.MigStep, there: Reading) -> None:
        """One step, from what is there now."""
        self._typed(lambda: self._do(todo, there))

    def _typed(self, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except self._nvml.NVMLError as error:
            raise self._nvml.error(error) from error

    def _gpu(self) -> Any:
        if self._handle is None:
            self._handle = self._nvml.nvmlDeviceGetHandleByUUID(self._uuid.encode())
        return self._handle

    def _do(self, todo: step.MigStep, there: Reading) -> None:
        if todo.instance is None:
            if todo.action == step.RESET:
                self._reset_gpu(there)
            else:
                self._set_mode(todo.action == step.ENABLE, there.resetless)
        elif todo.action == step.CREATE:
            self._create(todo.instance, there)
        elif todo.action == step.DESTROY:
            self._destroy(todo.target, self._nvml.nvmlGpuInstanceDestroy, self._instance(todo.instance, there))
        elif todo.compute is not None and todo.action == step.CREATE_COMPUTE:
            self._create_compute(self._instance(todo.instance, there), todo.compute)
        elif todo.compute is not None:
            self._destroy(todo.target, self._nvml.nvmlComputeInstanceDestroy, self._compute(todo.instance, todo.compute, there))

    # --- mode ---

    def _set_mode(self, on: bool, resetless: bool) -> None:
        """The call succeeds whatever stands in the way; that is in its status, and in the modes afterwards."""

        def attempt() -> bool:
            status = self._nvml.nvmlDeviceSetMigMode(self._gpu(), int(on))
            self._handle = None  # handles may be stale now
            try:
                current, pending = self._nvml.nvmlDeviceGetMigMode(self._gpu())
            except self._nvml.NVMLError:  # nothing was refused; whoever reads next finds out
                return True
            if (current if resetless else pending) == int(on):
                return True
            if status == self._nvml.NVML_ERROR_IN_USE:
                return False
            raise Refused(f"the mode did not change: {self._nvml.nvmlErrorString(status)}", call="nvmlDeviceSetMigMode", nvml_error=status)

        self._unless_in_use(attempt, Busy("the mode cannot change while the GPU is in use", instances=[GPU]))

    def _reset_gpu(self, there: Reading) -> None:
        self._handle = None
        self._nvml.nvmlShutdown()
        try:
            self._reset(there.pci_bus_id)
        finally:
            self._nvml.nvmlInit()

    # --- instances ---

    def _instance(self, instance: GpuInstance, there: Reading) -> Any:
        return self._nvml.nvmlDeviceGetGpuInstanceById(self._gpu(), _present(instance, there).id)

    def _compute(self, instance: GpuInstance, compute: ComputeInstance, there: Reading) -> Any:
        found = next((one for one in _present(instance, there).compute if one == compute), None)
        if found is None:
            raise Gone(f"{instance.compute_name(compute)} has gone", differs=[f"{instance.compute_name(compute)} is missing"])
        return self._nvml.nvmlGpuInstanceGetComputeInstanceById(self._instance(instance, there), found.id)

    def _create(self, instance: GpuInstance, there: Reading) -> None:
        profile = there.model.profile(instance.profile) if there.model else None
        if profile is None:
            raise Infeasible(f"{there.name} has no profile {instance.profile}", reason="profile", profile=instance.profile)
        place = self._nvml.c_nvmlGpuInstancePlacement_t(instance.placement.start, instance.placement.size)

        def attempt() -> bool:
            self._nvml.nvmlDeviceCreateGpuInstanceWithPlacement(self._gpu(), profile.profile_id, ctypes.byref(place))
            return True

        self._unless_in_use(attempt, Busy(f"{instance.name} cannot be the first instance while the GPU is in use", instances=[GPU]))

    def _create_compute(self, instance: Any, compute: ComputeInstance) -> None:
        """At its place where the driver takes one, else where it likes: reading again tells whether that is the place."""
        fitting = [info.id for info in compute_profiles(self._nvml, instance) if info.sliceCount == compute.slices]
        if not fitting:
            raise Infeasible(f"there is no compute instance of {compute.slices} slices", reason="compute")
        profile_id, size = self._place_of(instance, compute, fitting)
        if size is not None:
            place = self._nvml.c_nvmlComputeInstancePlacement_t(compute.start, size)
            try:
                self._nvml.nvmlGpuInstanceCreateComputeInstanceWithPlacement(instance, profile_id, ctypes.byref(place))
                return
            except self._nvml.NVMLError as error:
                if error.value not in (self._nvml.NVML_ERROR_NOT_SUPPORTED, self._nvml.NVML_ERROR_FUNCTION_NOT_FOUND):
                    raise
        self._nvml.nvmlGpuInstanceCreateComputeInstance(instance, profile_id)

    def _place_of(self, instance: Any, compute: ComputeInstance, profile_ids: Sequence[int]) -> tuple[int, Optional[int]]:
        """Which of the profiles can be there, and how many slots the driver counts for it; no slots where it does not tell."""
        for profile_id in profile_ids:
            places = compute_placements(self._nvml, instance, profile_id)
            if places is None:
                return profile_id, None
            for place in places:
                if place.start == compute.start:
                    return profile_id, place.size
        raise Infeasible(f"{compute.name} is no place that this GPU instance has", reason="compute")

    def _destroy(self, name: str, function: Callable[[Any], Any], handle: Any) -> None:

        def attempt() -> bool:
            function(handle)
            return True

        self._unless_in_use(attempt, Busy(f"{name} is in use", instances=[name]))

    def _unless_in_use(self, attempt: Callable[[], bool], busy: Busy) -> None:
        """`attempt` says, or the driver refuses it because, the GPU is in use: then it is made again for some seconds."""
        for seconds in (*_LINGER_SECONDS, None):
            try:
                if attempt():
                    return
            except self._nvml.NVMLError as error:
                if error.value != self._nvml.NVML_ERROR_IN_USE:
                    raise
            if seconds is None:
                raise busy
            self._sleep(seconds)


def _present(instance: GpuInstance, there: Reading) -> GpuInstance:
    """As the driver has it now, with its id: an id of an earlier reading may be another instance's."""
    found = next((one for one in there.layout.instances if one.name == instance.name), None) if there.layout else None
    if found is None:
        raise Gone(f"{instance.name} has gone", differs=[f"{instance.name} is missing"])
    return found
