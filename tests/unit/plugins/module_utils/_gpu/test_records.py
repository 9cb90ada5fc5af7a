# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._gpu import records
from ansible_collections.gpuops.remediation.plugins.module_utils._gpu.records import (
    Gpu,
    add_holders,
    add_known,
    from_nvml,
    merge_known,
    select,
)

A = {"uuid": "GPU-a", "pci_bus_id": "0000:01:00.0", "index": 0, "minor": 0, "serial": "1", "slot": 1, "name": "NVIDIA H200"}
B = {"uuid": "GPU-b", "pci_bus_id": "0000:02:00.0", "index": 1, "minor": 1, "serial": "2", "slot": 2, "name": "NVIDIA H200"}
C = {"uuid": "GPU-c", "pci_bus_id": "0000:03:00.0", "index": 2, "minor": 2, "serial": "3", "slot": 3, "name": "NVIDIA H200"}


def without(known, *names):
    return {name: value for name, value in known.items() if name not in names}


@pytest.mark.parametrize(
    ("text", "address"),
    [("00000000:0A:00.0", "0000:0a:00.0"), ("0000:0a:00", "0000:0a:00.0"), ("00010000:01:00.0", "10000:01:00.0")],
)
def test_pci_addresses(text, address):
    assert records.pci_bus_id(text) == address


def test_names_that_people_give():
    assert records.normalise(["GPU-X", "00000000:0A:00.0", "3"]) == ["GPU-X", "0000:0a:00.0", "3"]


def test_a_call_that_hangs_is_an_error_of_its_gpu_only():
    items = [
        {"driver_version": "580"},
        {"gpu": 1, "fields": {"uuid": "GPU-b"}},
        {"gpu": 0, "begins": "nvmlDeviceGetUUID"},
        {"gpu": 0, "fields": {"uuid": "GPU-a"}},
        {"gpu": 0, "begins": "nvmlDeviceGetFieldValues"},
    ]
    node, gpus = from_nvml(items, "did not answer within 20 s")
    assert node == {"driver_version": "580"}
    assert [(gpu.uuid, gpu.errors) for gpu in gpus] == [
        ("GPU-a", [{"call": "nvmlDeviceGetFieldValues", "error": "did not answer within 20 s"}]),
        ("GPU-b", []),
    ]


def test_what_is_known_is_merged_by_address():
    seen = [A, B]
    driver = [{**without(A, "serial", "slot", "index"), "minor": 7}, {"uuid": None, "pci_bus_id": "0000:02:00.0"}]
    assert merge_known(driver, seen) == [{**A, "minor": 7}, B]


@pytest.mark.parametrize(
    ("gpus", "known", "complete", "expected"),
    [
        pytest.param([], [A, B], False, [("GPU-a", False), ("GPU-b", False)], id="NVML hangs: the GPUs are known all the same"),
        pytest.param([Gpu(**A)], [A, B], True, [("GPU-a", False), ("GPU-b", True)], id="NVML lists one less: it is lost"),
        pytest.param(
            [Gpu(**A), Gpu(index=1, lost=True)], [A, B], True, [("GPU-a", False), ("GPU-b", True)], id="lost and nameless, found by index"
        ),
        pytest.param(
            [Gpu(index=0, lost=True), Gpu(**A)],
            [without(A, "index"), without(B, "index")],
            True,
            [("GPU-b", True), ("GPU-a", False)],
            id="the only one left",
        ),
        pytest.param(
            [Gpu(index=0, lost=True), Gpu(index=2, lost=True), Gpu(**B)],
            [without(one, "index") for one in (A, B, C)],
            True,
            [("GPU-a", True), ("GPU-c", True), ("GPU-b", False)],
            id="several left, in the order of their addresses",
        ),
        pytest.param([Gpu(index=1, lost=True)], [], True, [(None, True)], id="nothing known"),
        pytest.param([Gpu(uuid="GPU-a", index=0)], [A], True, [("GPU-a", False)], id="joined by UUID"),
    ],
)
def test_known_gpus_are_joined(gpus, known, complete, expected):
    assert [(gpu.uuid, gpu.lost) for gpu in add_known(gpus, known, complete)] == expected


def test_an_unlisted_gpu_says_why_it_counts_as_lost():
    [gpu] = add_known([], [A], True)
    assert gpu.errors == [{"call": "nvmlDeviceGetCount", "error": "NVML does not list this GPU"}]
    assert gpu.identity() == A


def test_holders_by_device_file_only_where_nvml_has_no_list():
    listed = Gpu(**A, processes=[{"pid": 1}], processes_source="nvml")
    lost, unknown = Gpu(**B, lost=True), Gpu(index=5)
    add_holders([listed, lost, unknown], [{"minor": 0, "process": {"pid": 9}}, {"minor": 1, "process": {"pid": 2}}], [0, 1], "/dev")
    assert [(gpu.processes, gpu.processes_source) for gpu in (listed, lost, unknown)] == [
        ([{"pid": 1}], "nvml"),
        ([{"pid": 2}], "device_file"),
        ([], None),
    ]
    assert [gpu.device_path for gpu in (listed, lost, unknown)] == ["/dev/nvidia0", "/dev/nvidia1", None]


def test_nobody_could_say_who_uses_the_gpu():
    gpu = Gpu(**A)
    add_holders([gpu], [], None, "/dev")
    assert (gpu.processes, gpu.processes_source) == ([], None)


@pytest.mark.parametrize(
    ("wanted", "chosen", "unknown"),
    [
        ([], ["GPU-a", "GPU-b", None], []),
        (["GPU-a"], ["GPU-a"], []),
        (["0000:02:00.0"], ["GPU-b"], []),
        (["GPU-a", "GPU-x"], ["GPU-a", None], ["GPU-x"]),
    ],
)
def test_selection(wanted, chosen, unknown):
    found, left = select([Gpu(**A), Gpu(**B), Gpu(index=2, lost=True)], wanted)
    assert ([gpu.uuid for gpu in found], left) == (chosen, unknown)
