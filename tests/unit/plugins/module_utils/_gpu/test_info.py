# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import threading

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._gpu import info
from ansible_collections.gpuops.remediation.plugins.module_utils._node.node import Node

UUID, ADDRESS = "GPU-00000000-0000-0000-0000-000000000001", "0000:0a:00.0"
NAMES = {"uuid": UUID, "pci_bus_id": ADDRESS, "minor": 0, "serial": "1", "slot": 6, "name": "NVIDIA H200"}
XID = "3,3,1000000,-;NVRM: Xid (PCI:0000:0a:00): 79, GPU has fallen off the bus."


@pytest.fixture
def node(tmp_path):
    for name in ("proc/sys/kernel/random", "dev", "state"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/random/boot_id").write_text("boot-1\n")
    (tmp_path / "proc/stat").write_text("btime 1000\n")
    (tmp_path / "dev/nvidia0").touch()
    (tmp_path / "kmsg").write_text(XID + "\n")
    places = {"proc_root": "proc", "dev_root": "dev", "state_dir": "state", "kmsg_path": "kmsg", "cgroup_root": "cgroup"}
    return Node.from_params({"nvml_library": "unused", **{option: str(tmp_path / name) for option, name in places.items()}})


def nvml(*items):
    """What NVML's child would tell; the last item may be `hang`."""

    def collect(_library, _wanted, _describe, emit):
        for item in items:
            emit(item) if item != "hang" else threading.Event().wait()

    return collect


def read(node, monkeypatch, *items, wanted=(), **options):
    monkeypatch.setattr(info.nvml, "collect", nvml(*items))
    return info.read(node, wanted, **{"timeout_seconds": 2.0, **options})


def test_all_sources_answer(node, monkeypatch):
    told = read(node, monkeypatch, {"driver_version": "580"}, {"gpu": 0, "fields": {**NAMES, "processes_source": "nvml"}})
    assert told["node"].pop("collected_at")
    assert told["node"] == {"boot_id": "boot-1", "boot_time": "1970-01-01T00:16:40.000000+00:00", "driver_version": "580"}
    assert [gpu["uuid"] for gpu in told["gpus"]] == [UUID]
    assert [(xid["code"], xid["time"]) for xid in told["xids"]] == [(79, "1970-01-01T00:16:41.000000+00:00")]
    assert told["kernel_log"] == [XID]
    assert (told["abandoned"], told["missing"]) == ([], [])
    json.dumps(told)


def test_nvml_hangs_and_nobody_knows_the_gpus_yet(node, monkeypatch):
    told = read(node, monkeypatch, "hang", wanted=[UUID])
    [gpu] = told["gpus"]
    assert (gpu["uuid"], gpu["minor"], gpu["lost"], gpu["processes_source"]) == (None, 0, False, "device_file")
    assert [one["source"] for one in told["missing"]] == ["nvml", "gpus"]
    assert told["missing"][1]["why"] == f"there is no GPU {UUID}"
    assert told["xids"], "the kernel log is read all the same"


@pytest.mark.parametrize("same_boot", [True, False])
def test_a_gpu_keeps_its_name_within_one_boot(node, monkeypatch, same_boot):
    read(node, monkeypatch, {"gpu": 0, "fields": {**NAMES, "processes_source": "nvml"}})
    if not same_boot:
        (node.proc.root / "sys/kernel/random/boot_id").write_text("boot-2\n")
    [gpu] = read(node, monkeypatch, {"gpu": 0, "fields": {"lost": True}})["gpus"]
    assert (gpu["uuid"], gpu["lost"], gpu["processes_source"]) == ((UUID, True, "device_file") if same_boot else (None, True, None))


def test_one_gpu_hangs_and_the_other_does_not(node, monkeypatch):
    other = {**NAMES, "uuid": "GPU-b", "pci_bus_id": "0000:0b:00.0", "minor": 1, "serial": "2"}
    told = read(
        node,
        monkeypatch,
        {"gpu": 0, "fields": NAMES},
        {"gpu": 1, "fields": {**other, "recovery_action": "none", "processes_source": "nvml"}},
        {"gpu": 0, "begins": "nvmlDeviceGetFieldValues"},
        "hang",
    )
    hung, well = told["gpus"]
    assert hung["errors"] == [{"call": "nvmlDeviceGetFieldValues", "error": "did not answer within 2 s"}]
    assert (hung["processes_source"], well["processes_source"]) == ("device_file", "nvml")
    assert (hung["recovery_action"], well["recovery_action"]) == (None, "none")


def test_check_mode_remembers_nothing(node, monkeypatch):
    read(node, monkeypatch, {"gpu": 0, "fields": NAMES}, remember=False)
    assert list(node.state.path.iterdir()) == []


def test_a_state_folder_that_cannot_be_written_is_missing_and_no_failure(node, monkeypatch):
    (node.state.path / "gpus.json").mkdir()
    told = read(node, monkeypatch, {"gpu": 0, "fields": {**NAMES, "processes_source": "nvml"}})
    assert told["gpus"][0]["uuid"] == UUID
    assert [one["source"] for one in told["missing"]] == ["state_dir"]


def test_without_the_kernel_log(node, monkeypatch):
    told = read(node, monkeypatch, with_kernel_log=False)
    assert (told["xids"], told["kernel_log"], told["gpus"]) == ([], [], [])
