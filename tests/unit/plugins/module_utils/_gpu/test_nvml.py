# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The reader against a fake of pynvml's functions; against the real pynvml it runs in the integration tests, on a simulated library."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._gpu import nvml, records

UUID = "GPU-00000000-0000-0000-0000-000000000001"
NOT_MIG = 0xFFFFFFFF


TEXTS = {
    3: "Not Supported",
    4: "Insufficient Permissions",
    6: "Not Found",
    9: "Driver Not Loaded",
    13: "Function Not Found",
    15: "GPU is lost",
}


class FakeError(Exception):
    def __init__(self, value):
        super().__init__(TEXTS[value])
        self.value = value


def process(pid, memory=1 << 30, gi=NOT_MIG, ci=NOT_MIG):
    return SimpleNamespace(pid=pid, usedGpuMemory=memory, gpuInstanceId=gi, computeInstanceId=ci)


def field(value, refused=0):
    return [SimpleNamespace(nvmlReturn=refused, value=SimpleNamespace(uiVal=value))]


class SramStatus(ctypes.Structure):
    _fields_ = (("bThresholdExceeded", ctypes.c_uint),)


def worn(handle, status):
    status._obj.bThresholdExceeded = 1  # as the driver fills what it is given
    return 0


HEALTHY = {
    "nvmlInit": None,
    "nvmlSystemGetDriverVersion": "580.159.04",
    "nvmlDeviceGetCount": 1,
    "nvmlDeviceGetHandleByIndex": "gpu",
    "nvmlDeviceGetUUID": UUID,
    "nvmlDeviceGetPciInfo": SimpleNamespace(busId=b"00000000:0A:00.0"),
    "nvmlDeviceGetMinorNumber": 0,
    "nvmlDeviceGetSerial": b"0000000000001",
    "nvmlDeviceGetName": "NVIDIA H200",
    "nvmlDeviceGetModuleId": 6,
    "nvmlDeviceGetFieldValues": field(0),
    "nvmlDeviceGetRemappedRows": (1, 2, 1, 0),
    "nvmlDeviceGetEccMode": (1, 0),
    "nvmlDeviceGetTotalEccErrors": lambda handle, kind, counter: 10 * kind + counter,
    "nvmlDeviceGetSramEccErrorStatus": 0,
    "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=150754820096, used=644939776),
    "nvmlDeviceGetTemperature": 31,
    "nvmlDeviceGetPersistenceMode": 1,
    "nvmlDeviceGetMigMode": (0, 0),
    "nvmlDeviceGetComputeRunningProcesses_v3": [],
    "nvmlDeviceGetGraphicsRunningProcesses_v3": [],
    "nvmlDeviceGetMPSComputeRunningProcesses_v3": [],
}
CONSTANTS = {
    "NVMLError": FakeError,
    "NVML_SUCCESS": 0,
    "NVML_ERROR_NOT_SUPPORTED": 3,
    "NVML_ERROR_GPU_IS_LOST": 15,
    "NVML_MEMORY_ERROR_TYPE_CORRECTED": 0,
    "NVML_MEMORY_ERROR_TYPE_UNCORRECTED": 1,
    "NVML_VOLATILE_ECC": 0,
    "NVML_AGGREGATE_ECC": 1,
    "NVML_TEMPERATURE_GPU": 0,
    "NVML_GPU_INSTANCE_PROFILE_COUNT": 3,
    "c_nvmlGpuInstance_t": ctypes.c_void_p,
    "NVML_ERROR_FUNCTION_NOT_FOUND": 13,
    "c_nvmlEccSramErrorStatus_v1_t": SramStatus,
}


def fake(**answers):
    def function(answer):
        def call(*args):
            value = answer(*args) if callable(answer) else answer
            if isinstance(value, Exception):
                raise value
            return value

        return call

    return SimpleNamespace(**CONSTANTS, **{name: function(answer) for name, answer in {**HEALTHY, **answers}.items()})


def read(monkeypatch, wanted=(), **answers):
    items = []
    monkeypatch.setattr(nvml, "pynvml", fake(**answers))
    nvml.collect("libc.so.6", wanted, lambda pid: {"name": f"process {pid}"}, items.append)
    node, gpus = records.from_nvml(items, None)
    return node, [records.show(gpu) for gpu in gpus]


def test_only_the_processes(monkeypatch):
    """And who the GPU is; no other call of it can hang or fail."""
    asked = []
    whole = fake(nvmlDeviceGetComputeRunningProcesses_v3=[process(4711)])
    watched = {
        name: (lambda *args, name=name, call=call: asked.append(name) or call(*args))
        for name, call in vars(whole).items()
        if name in HEALTHY
    }
    monkeypatch.setattr(nvml, "pynvml", SimpleNamespace(**{**vars(whole), **watched}))
    items = []
    nvml.collect("libc.so.6", [], lambda pid: {}, items.append, only_processes=True)
    [gpu] = records.from_nvml(items, None)[1]
    assert (gpu.uuid, [one["pid"] for one in gpu.processes], gpu.processes_source) == (UUID, [4711], "nvml")
    assert not {"nvmlDeviceGetEccMode", "nvmlDeviceGetMigMode", "nvmlDeviceGetFieldValues"} & set(asked)


def test_without_a_word_about_processes_nobody_asks_for_them(monkeypatch):
    """An empty list would say that nobody is there."""
    monkeypatch.setattr(nvml, "pynvml", fake(nvmlDeviceGetComputeRunningProcesses_v3=[process(4711)]))
    items = []
    nvml.collect("libc.so.6", [], None, items.append)
    [gpu] = records.from_nvml(items, None)[1]
    assert (gpu.memory_used_bytes, gpu.processes, gpu.processes_source) == (644939776, [], None)
    assert not [item for item in items if "Processes" in item.get("begins", "")]


def test_a_healthy_gpu(monkeypatch):
    node, [gpu] = read(monkeypatch)
    assert node == {"driver_version": "580.159.04"}
    assert gpu == {
        "uuid": UUID,
        "pci_bus_id": "0000:0a:00.0",
        "index": 0,
        "minor": 0,
        "serial": "0000000000001",
        "slot": 6,
        "name": "NVIDIA H200",
        "device_path": None,
        "memory_total_bytes": 150754820096,
        "memory_used_bytes": 644939776,
        "temperature_celsius": 31,
        "persistence_mode": True,
        "ecc": {
            "enabled": True,
            "pending": False,
            "corrected_volatile": 0,
            "corrected_aggregate": 1,
            "uncorrected_volatile": 10,
            "uncorrected_aggregate": 11,
            "sram_threshold_exceeded": False,
        },
        "remapped_rows": {"correctable": 1, "uncorrectable": 2, "pending": True, "failure": False},
        "recovery_action": "none",
        "mig": {"current": False, "pending": False, "instances": []},
        "processes": [],
        "processes_source": "nvml",
        "lost": False,
        "errors": [],
    }


@pytest.mark.parametrize(
    ("answer", "exceeded", "errors"),
    [
        pytest.param(0, False, 0, id="well"),
        pytest.param(worn, True, 0, id="worn out"),
        pytest.param(FakeError(3), None, 0, id="not this model"),
        pytest.param(FakeError(13), None, 0, id="an older driver"),
        pytest.param(FakeError(4), None, 1, id="refused"),
    ],
)
def test_sram(monkeypatch, answer, exceeded, errors):
    _node, [gpu] = read(monkeypatch, nvmlDeviceGetSramEccErrorStatus=answer)
    assert (gpu["ecc"]["sram_threshold_exceeded"], len(gpu["errors"])) == (exceeded, errors)
    assert gpu["ecc"]["uncorrected_aggregate"] == 11


def test_sram_and_an_older_binding(monkeypatch):
    monkeypatch.delitem(CONSTANTS, "c_nvmlEccSramErrorStatus_v1_t")
    _node, [gpu] = read(monkeypatch)
    assert (gpu["ecc"]["sram_threshold_exceeded"], gpu["errors"]) == (None, [])


@pytest.mark.parametrize(
    ("values", "action", "errors"),
    [
        (field(1), "gpu_reset", 0),
        (field(5), "recover_imex_domain", 0),
        (field(99), "unknown_99", 0),
        (field(0, refused=3), None, 0),
        (field(0, refused=4), None, 1),
        (FakeError(3), None, 0),
        (FakeError(4), None, 1),
    ],
)
def test_recovery_action(monkeypatch, values, action, errors):
    _node, [gpu] = read(monkeypatch, nvmlDeviceGetFieldValues=values)
    assert gpu["recovery_action"] == action
    assert len(gpu["errors"]) == errors


def test_a_refused_call_leaves_its_fields_null_and_the_rest_read(monkeypatch):
    _node, [gpu] = read(monkeypatch, nvmlDeviceGetRemappedRows=FakeError(4), nvmlDeviceGetPersistenceMode=FakeError(3))
    assert gpu["remapped_rows"]["failure"] is None
    assert gpu["persistence_mode"] is None
    assert gpu["memory_used_bytes"] == 644939776
    assert gpu["errors"] == [{"call": "nvmlDeviceGetRemappedRows", "error": "Insufficient Permissions"}]


def test_a_lost_gpu_keeps_its_name(monkeypatch):
    lost = FakeError(15)
    _node, [gpu] = read(
        monkeypatch, nvmlDeviceGetFieldValues=lost, nvmlDeviceGetRemappedRows=lost, nvmlDeviceGetComputeRunningProcesses_v3=lost
    )
    assert (gpu["lost"], gpu["uuid"], gpu["serial"]) == (True, UUID, "0000000000001")
    assert gpu["errors"] == [{"call": "nvmlDeviceGetFieldValues", "error": "GPU is lost"}]
    assert gpu["processes_source"] is None


def test_a_gpu_lost_before_it_can_be_named(monkeypatch):
    _node, [gpu] = read(monkeypatch, nvmlDeviceGetHandleByIndex=FakeError(15))
    assert (gpu["lost"], gpu["index"], gpu["uuid"]) == (True, 0, None)


def test_all_process_lists_or_none(monkeypatch):
    """A list that is refused must not make its processes look gone."""
    _node, [gpu] = read(
        monkeypatch, nvmlDeviceGetComputeRunningProcesses_v3=[process(7)], nvmlDeviceGetMPSComputeRunningProcesses_v3=FakeError(4)
    )
    assert (gpu["processes"], gpu["processes_source"]) == ([], None)


@pytest.mark.parametrize(("unsupported", "source"), [("Graphics", "nvml"), ("MPSCompute", "nvml"), ("Compute", None)])
def test_a_list_that_the_gpu_cannot_have_is_empty(monkeypatch, unsupported, source):
    _node, [gpu] = read(monkeypatch, **{f"nvmlDeviceGet{unsupported}RunningProcesses_v3": FakeError(3)})
    assert (gpu["processes_source"], gpu["errors"]) == (source, [])


def test_processes(monkeypatch):
    _node, [gpu] = read(
        monkeypatch,
        nvmlDeviceGetComputeRunningProcesses_v3=[process(7), process(8, gi=1, ci=0)],
        nvmlDeviceGetGraphicsRunningProcesses_v3=[process(7), process(9, memory=None)],
        nvmlDeviceGetMPSComputeRunningProcesses_v3=[process(10)],
    )
    assert [(one["pid"], one["type"], one["memory_bytes"], one["gi"], one["ci"]) for one in gpu["processes"]] == [
        (7, "compute", 1 << 30, None, None),
        (8, "compute", 1 << 30, 1, 0),
        (9, "graphics", None, None, None),
        (10, "mps", 1 << 30, None, None),
    ]
    assert gpu["processes"][0]["name"] == "process 7" and gpu["processes"][0]["source"] == "nvml"


def test_mig_instances_with_gaps_and_one_without_compute_instance(monkeypatch):
    def handle(_gpu, number):
        return FakeError(6) if number == 1 else f"mig {number}"

    def instances(_gpu, profile_id, array, count):
        if profile_id != 9:
            return FakeError(3)
        array[0], array[1], count._obj.value = 1, 2, 2
        return None

    profile = {2: SimpleNamespace(id=9, instanceCount=2, name=b"MIG 3g.71gb")}
    _node, [gpu] = read(
        monkeypatch,
        nvmlDeviceGetMigMode=(1, 1),
        nvmlDeviceGetMaxMigDeviceCount=3,
        nvmlDeviceGetMigDeviceHandleByIndex=handle,
        nvmlDeviceGetUUID=lambda one: {"gpu": UUID, "mig 0": "MIG-a", "mig 2": "MIG-b"}[one],
        nvmlDeviceGetName=lambda one: "NVIDIA H200" if one == "gpu" else b"NVIDIA H200 MIG 3g.71gb",
        nvmlDeviceGetGpuInstanceId=1,
        nvmlDeviceGetComputeInstanceId=lambda one: {"mig 0": 0, "mig 2": 1}[one],
        nvmlDeviceGetMemoryInfo=SimpleNamespace(total=100, used=7),
        nvmlDeviceGetGpuInstanceProfileInfo=lambda _gpu, number: profile.get(number, FakeError(3)),
        nvmlDeviceGetGpuInstances=instances,
        nvmlGpuInstanceGetInfo=lambda one: SimpleNamespace(id=one),
    )
    assert gpu["mig"]["instances"] == [
        {"uuid": "MIG-a", "gi": 1, "ci": 0, "profile": "3g.71gb", "memory_total_bytes": 100, "memory_used_bytes": 7},
        {"uuid": "MIG-b", "gi": 1, "ci": 1, "profile": "3g.71gb", "memory_total_bytes": 100, "memory_used_bytes": 7},
        {"uuid": None, "gi": 2, "ci": None, "profile": "3g.71gb", "memory_total_bytes": None, "memory_used_bytes": None},
    ]
    assert gpu["errors"] == []


def test_a_gpu_that_is_not_wanted_is_only_named(monkeypatch):
    _node, [gpu] = read(monkeypatch, wanted=["GPU-other"])
    assert (gpu["uuid"], gpu["minor"], gpu["processes_source"]) == (UUID, None, None)


def test_an_error_of_ours_is_not_lost_with_its_thread(monkeypatch):
    _node, [gpu] = read(monkeypatch, nvmlDeviceGetMemoryInfo=SimpleNamespace())
    assert gpu["errors"][0]["call"] == "read" and "AttributeError" in gpu["errors"][0]["error"]


@pytest.mark.parametrize(
    ("library", "answers", "text"),
    [
        ("/nowhere/libnvidia-ml.so.1", {}, "cannot load /nowhere/libnvidia-ml.so.1"),
        ("libc.so.6", {"nvmlInit": FakeError(9)}, "Driver Not Loaded"),
    ],
)
def test_nvml_as_a_whole_does_not_work(monkeypatch, library, answers, text):
    monkeypatch.setattr(nvml, "pynvml", fake(**answers))
    with pytest.raises(nvml.NvmlError, match=text):
        nvml.collect(library, [], dict, print)
