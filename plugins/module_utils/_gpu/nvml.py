# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""NVML through the unmodified nvidia-ml-py. Runs in a watched child: every call here can hang for ever."""

from __future__ import annotations

import ctypes
import threading
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, Callable

from ansible_collections.gpuops.remediation.plugins.module_utils._errors import RemediationError
from ansible_collections.gpuops.remediation.plugins.module_utils._gpu.records import pci_bus_id, recovery_action, text
from ansible_collections.gpuops.remediation.plugins.module_utils._node.watchdog import Emit

try:
    import pynvml
except ImportError:
    pynvml = None
    IMPORT_ERROR: str | None = traceback.format_exc()
else:
    IMPORT_ERROR = None

Describe = Callable[[int], Mapping[str, Any]]
_NOT_MIG = 0xFFFFFFFF
_FIELD_RECOVERY_ACTION = 230  # by number: releases of nvidia-ml-py before 12.570 have no name for it
_PROCESS_LISTS = (
    ("compute", "nvmlDeviceGetComputeRunningProcesses_v3"),
    ("graphics", "nvmlDeviceGetGraphicsRunningProcesses_v3"),
    ("mps", "nvmlDeviceGetMPSComputeRunningProcesses_v3"),
)


class NvmlError(RemediationError):
    """NVML as a whole does not work: no library, no driver."""

    kind = "nvml"


def collect(library: str, wanted: Sequence[str], describe: Describe | None, emit: Emit, *, only_processes: bool = False) -> None:
    """Everything about the wanted GPUs (UUIDs or PCI addresses; none means all), or who they are and who is on them, emitted as it comes.

    Without `describe` nobody asks who is on them: whoever is not root is told of some only.
    """
    nvml = start(library, emit)
    each_gpu(nvml, lambda index: _Reader(index, emit, nvml).read(wanted, describe, only_processes))


def start(library: str, emit: Emit) -> Any:
    """pynvml, once it uses that library and the driver has told its version."""
    try:
        ctypes.CDLL(library, ctypes.RTLD_GLOBAL)  # pynvml's own load of the soname then finds this one
        pynvml.nvmlInit()
        emit({"driver_version": text(pynvml.nvmlSystemGetDriverVersion())})
    except OSError as error:
        raise NvmlError(f"cannot load {library}: {error}") from error
    except pynvml.NVMLError as error:
        raise NvmlError(f"NVML cannot be used: {error}") from error
    return pynvml


def each_gpu(nvml: Any, work: Callable[[int], None]) -> None:
    """Each GPU has its own thread (NVML is thread-safe, and a call that hangs releases Python's lock): one that hangs hides no other."""
    try:
        count = nvml.nvmlDeviceGetCount()
    except nvml.NVMLError as error:
        raise NvmlError(f"NVML cannot be used: {error}") from error
    threads = [threading.Thread(target=work, args=(index,), daemon=True) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class _Reader:
    """One GPU's answers. A call that NVML refuses becomes one of the GPU's errors and leaves its fields null."""

    def __init__(self, index: int, emit: Emit, nvml: Any) -> None:
        self._index = index
        self._emit = emit
        self._nvml = nvml
        self._lost = False

    def _call(self, name: str, *args: Any, unsupported: Any = None, new: bool = False) -> Any:
        """None when NVML refuses; NOT_SUPPORTED is this GPU's nature and no error, and so is it that an older driver lacks a `new` call."""
        self._emit({"gpu": self._index, "begins": name})
        try:
            value = getattr(self._nvml, name)(*args)
        except self._nvml.NVMLError as error:
            if error.value == self._nvml.NVML_ERROR_GPU_IS_LOST:
                self._lost = True
                self._tell(lost=True)
            lacking = (self._nvml.NVML_ERROR_FUNCTION_NOT_FOUND,) if new else ()
            if error.value in (self._nvml.NVML_ERROR_NOT_SUPPORTED, *lacking):
                self._tell()
                return unsupported
            self._emit({"gpu": self._index, "call": name, "error": str(error)})
            return None
        self._tell()
        return value

    def _tell(self, **fields: Any) -> None:
        self._emit({"gpu": self._index, "fields": fields})

    def read(self, wanted: Sequence[str], describe: Describe | None, only_processes: bool) -> None:
        try:
            handle = self._call("nvmlDeviceGetHandleByIndex", self._index)
            if handle is None or not self._identity(handle, wanted):
                return
            # What a decision needs most comes first: a call that hangs ends this GPU's reading.
            for part in () if only_processes else (self._recovery, self._rows, self._ecc, self._basics, self._mig):
                if not self._lost:
                    part(handle)
            if describe and not self._lost:
                self._processes(handle, describe)
        except Exception as error:  # a thread's exception would be lost, and the GPU would look complete
            self._emit({"gpu": self._index, "call": "read", "error": f"{type(error).__name__}: {error}"})

    def _identity(self, handle: Any, wanted: Sequence[str]) -> bool:
        uuid = self._call("nvmlDeviceGetUUID", handle)
        pci = self._call("nvmlDeviceGetPciInfo", handle)
        address = pci_bus_id(text(pci.busId)) if pci else None
        self._tell(uuid=text(uuid) if uuid else None, pci_bus_id=address)
        if wanted and uuid and address and not {text(uuid), address} & set(wanted):
            return False
        self._tell(minor=self._call("nvmlDeviceGetMinorNumber", handle))
        for field, name, args in (
            ("serial", "nvmlDeviceGetSerial", ()),
            ("name", "nvmlDeviceGetName", ()),
            ("slot", "nvmlDeviceGetModuleId", (ctypes.c_uint(),)),  # its default argument is shared between threads
        ):
            value = self._call(name, handle, *args)
            self._tell(**{field: text(value) if isinstance(value, (str, bytes)) else value})
        return True

    def _recovery(self, handle: Any) -> None:
        values = self._call("nvmlDeviceGetFieldValues", handle, [_FIELD_RECOVERY_ACTION])
        if not values:
            return
        refused = values[0].nvmlReturn
        if refused == self._nvml.NVML_SUCCESS:
            self._tell(recovery_action=recovery_action(values[0].value.uiVal))
        elif refused != self._nvml.NVML_ERROR_NOT_SUPPORTED:
            self._emit({"gpu": self._index, "call": "field 230, recovery action", "error": str(self._nvml.NVMLError(refused))})

    def _rows(self, handle: Any) -> None:
        rows = self._call("nvmlDeviceGetRemappedRows", handle)
        if rows is not None:
            correctable, uncorrectable, pending, failure = rows
            self._tell(
                remapped_rows={
                    "correctable": correctable,
                    "uncorrectable": uncorrectable,
                    "pending": bool(pending),
                    "failure": bool(failure),
                }
            )

    def _ecc(self, handle: Any) -> None:
        mode = self._call("nvmlDeviceGetEccMode", handle)
        if mode is None:
            return
        self._tell(ecc={"enabled": bool(mode[0]), "pending": bool(mode[1])})
        nvml = self._nvml
        for kind, kind_name in (
            (nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, "uncorrected"),
            (nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, "corrected"),
        ):
            for counter, counter_name in ((nvml.NVML_VOLATILE_ECC, "volatile"), (nvml.NVML_AGGREGATE_ECC, "aggregate")):
                self._tell(ecc={f"{kind_name}_{counter_name}": self._call("nvmlDeviceGetTotalEccErrors", handle, kind, counter)})

        self._sram(handle)

    def _sram(self, handle: Any) -> None:
        made = getattr(self._nvml, "c_nvmlEccSramErrorStatus_v1_t", None)  # older releases of nvidia-ml-py lack it
        status = made() if made else None
        if status and self._call("nvmlDeviceGetSramEccErrorStatus", handle, ctypes.byref(status), new=True) is not None:
            self._tell(ecc={"sram_threshold_exceeded": bool(status.bThresholdExceeded)})

    def _basics(self, handle: Any) -> None:
        memory = self._call("nvmlDeviceGetMemoryInfo", handle)
        if memory is not None:
            self._tell(memory_total_bytes=memory.total, memory_used_bytes=memory.used)
        self._tell(temperature_celsius=self._call("nvmlDeviceGetTemperature", handle, self._nvml.NVML_TEMPERATURE_GPU))
        persistence = self._call("nvmlDeviceGetPersistenceMode", handle)
        self._tell(persistence_mode=None if persistence is None else bool(persistence))

    def _mig(self, handle: Any) -> None:
        mode = self._call("nvmlDeviceGetMigMode", handle)
        if mode is None:
            return
        self._tell(mig={"current": bool(mode[0]), "pending": bool(mode[1])})
        if mode[0]:
            self._tell(mig={"instances": self._mig_devices(handle)})

    def _mig_devices(self, handle: Any) -> list[dict[str, Any]]:
        """Every compute instance, by its handle, and every GPU instance without one: those have no handle and are found by profile only."""
        found = []
        for number in range(self._call("nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
            try:
                device = self._nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
            except self._nvml.NVMLError:  # numbers have gaps
                continue
            uuid, name = self._call("nvmlDeviceGetUUID", device), self._call("nvmlDeviceGetName", device)
            memory = self._call("nvmlDeviceGetMemoryInfo", device)  # of its whole GPU instance
            found.append(
                {
                    "uuid": text(uuid) if uuid else None,
                    "gi": self._call("nvmlDeviceGetGpuInstanceId", device),
                    "ci": self._call("nvmlDeviceGetComputeInstanceId", device),
                    "profile": text(name).rsplit("MIG ", 1)[-1] if name else None,
                    "memory_total_bytes": memory.total if memory else None,
                    "memory_used_bytes": memory.used if memory else None,
                }
            )
        seen = {one["gi"] for one in found}
        return found + [
            {**dict.fromkeys(("uuid", "ci", "memory_total_bytes", "memory_used_bytes")), "gi": gi, "profile": profile}
            for gi, profile in self._gpu_instances(handle)
            if gi not in seen
        ]

    def _gpu_instances(self, handle: Any) -> list[tuple[int, str]]:
        found = []
        for profile in range(self._nvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
            try:
                info = self._nvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, profile)
                count, instances = ctypes.c_uint(), (self._nvml.c_nvmlGpuInstance_t * info.instanceCount)()
                self._nvml.nvmlDeviceGetGpuInstances(handle, info.id, instances, ctypes.byref(count))
                name = text(info.name).rsplit("MIG ", 1)[-1]
                found += [(self._nvml.nvmlGpuInstanceGetInfo(one).id, name) for one in instances[: count.value]]
            except self._nvml.NVMLError:  # most profiles are not this model's
                continue
        return found

    def _processes(self, handle: Any, describe: Describe) -> None:
        """All three lists or none: a holder that is missing must not look like one that has gone."""
        found: dict[tuple[int, int | None, int | None], dict[str, Any]] = {}
        for kind, name in _PROCESS_LISTS:
            listed = self._call(name, handle, unsupported=None if kind == "compute" else [])
            if listed is None:
                return
            for one in listed:
                gi, ci = (None if value == _NOT_MIG else value for value in (one.gpuInstanceId, one.computeInstanceId))
                record = {"pid": one.pid, "type": kind, "memory_bytes": one.usedGpuMemory, "gi": gi, "ci": ci, "source": "nvml"}
                found.setdefault((one.pid, gi, ci), {**record, **describe(one.pid)})
        self._tell(processes=list(found.values()), processes_source="nvml")
