# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""gpu_info with the unmodified pynvml, on simulated nodes."""

from __future__ import annotations

import time

import pytest
from gpusim import instances

POD = "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod12345678_9abc_def0_1234_56789abcdef0.slice"
GIB = 1 << 30


def test_a_healthy_node(node):
    told = node.info()
    assert told["changed"] is False
    assert (told["missing"], told["abandoned"], told["xids"]) == ([], [], [])
    assert [(gpu["uuid"], gpu["index"]) for gpu in told["gpus"]] == list(zip(node.uuids, range(3)))
    gpu = told["gpus"][0]
    assert (gpu["recovery_action"], gpu["lost"], gpu["errors"], gpu["processes"]) == ("none", False, [], [])
    assert gpu["device_path"] == f"{node.options['dev_root']}/nvidia0"
    assert told["node"]["driver_version"]


def test_a_pods_process_and_a_units(node):
    pod = node.sim.start([1], "train", GIB, cgroup=f"{POD}/cri-containerd-{'4f' * 32}.scope")
    unit = node.sim.start([1, 2], "serve", GIB)
    gpus = node.info()["gpus"]
    one, two = sorted(gpus[1]["processes"], key=lambda found: found["pid"] != pod)
    assert (one["pid"], one["container"]) == (
        pod,
        {"runtime": "containerd", "id": "4f" * 32, "pod_uid": "12345678-9abc-def0-1234-56789abcdef0"},
    )
    assert (two["pid"], two["unit"], two["container"], two["memory_bytes"], two["source"]) == (unit, "serve.service", None, GIB, "nvml")
    assert two["executable"].endswith("/bin/serve") and two["gi"] is None
    assert [found["pid"] for found in gpus[2]["processes"]] == [unit]


def test_mig_instances_and_who_is_in_them(node):
    """Also the GPU instance that has no compute instance, and so no handle and no UUID."""
    instances.set_mode(node.sim, 0, True)
    instances.create(node.sim, 0, "3g.71gb", 4, ("2c", "1c"))
    instances.create(node.sim, 0, "1g.35gb", 0, ())
    pid = node.sim.start([0], "train", GIB, gi=2, ci=1)
    gpu = node.info()["gpus"][0]
    assert gpu["errors"] == [] and gpu["mig"]["current"]
    assert [(one["gi"], one["ci"], one["profile"], bool(one["uuid"])) for one in gpu["mig"]["instances"]] == [
        (2, 0, "2c.3g.71gb", True), (2, 1, "1c.3g.71gb", True), (3, None, "1g.35gb", False),
    ]  # fmt: skip
    assert [(one["pid"], one["gi"], one["ci"], one["memory_bytes"]) for one in gpu["processes"]] == [(pid, 2, 1, GIB)]


def test_selection(node):
    assert [gpu["uuid"] for gpu in node.info(gpus=[node.uuids[1]])["gpus"]] == [node.uuids[1]]
    address = node.info()["gpus"][2]["pci_bus_id"]
    assert [gpu["uuid"] for gpu in node.info(gpus=[f"0000{address.upper()}"])["gpus"]] == [node.uuids[2]]
    told = node.info(gpus=["GPU-nobody"])
    assert (told["gpus"], told["missing"]) == ([], [{"source": "gpus", "why": "there is no GPU GPU-nobody"}])


def test_faults(node):
    node.sim.row_remap(0, uncorrectable=2, pending=True)
    node.sim.ecc(0, uncorrected=3, sram_threshold_exceeded=True)
    node.sim.recovery_action(0, "gpu_reset")
    node.sim.xid(0, 48)
    since = node.info()["xids"][-1]["time"]
    node.sim.xid(0, 79)
    told = node.info()
    gpu = told["gpus"][0]
    assert gpu["remapped_rows"] == {"correctable": 0, "uncorrectable": 2, "pending": True, "failure": False}
    assert (gpu["ecc"]["uncorrected_volatile"], gpu["recovery_action"]) == (3, "gpu_reset")
    assert {48, 79} <= {xid["code"] for xid in told["xids"]}
    assert {(xid["pci_bus_id"], xid["boot_id"]) for xid in told["xids"]} == {(gpu["pci_bus_id"], told["node"]["boot_id"])}
    assert [one["ecc"]["sram_threshold_exceeded"] for one in told["gpus"]] == [True, False, False]
    assert 48 not in {xid["code"] for xid in node.info(since=since)["xids"]}


def test_a_mode_that_waits_for_a_reset(node):
    assert {(one["ecc"]["enabled"], one["ecc"]["pending"]) for one in node.info()["gpus"]} == {(True, True)}
    with node.sim.change() as state:
        state["gpus"][1]["answers"]["nvmlDeviceGetEccMode"] = [1, 0]
    assert [one["ecc"]["pending"] for one in node.info()["gpus"]] == [True, False, True]


def test_one_gpu_hangs_for_ever_and_hides_no_other(node):
    pids = [node.sim.start([index], f"train{index}", GIB) for index in range(3)]
    node.sim.hang("nvmlDeviceGetFieldValues", None, 1)
    begin = time.monotonic()
    told = node.info(timeout_seconds=3)
    assert time.monotonic() - begin < 3.5
    assert told["missing"] == [{"source": "nvml", "why": "did not answer within 3 s"}]
    assert [gpu["uuid"] for gpu in told["gpus"]] == node.uuids
    assert [[one["pid"] for one in gpu["processes"]] for gpu in told["gpus"]] == [[pid] for pid in pids]
    assert [gpu["processes_source"] for gpu in told["gpus"]] == ["nvml", "device_file", "nvml"]
    assert told["gpus"][1]["errors"] == [{"call": "nvmlDeviceGetFieldValues", "error": "did not answer within 3 s"}]
    assert told["gpus"][0]["errors"] == told["gpus"][2]["errors"] == []


def test_nvml_hangs_as_a_whole(node):
    pid = node.sim.start([2], "train", GIB)
    node.sim.xid(2, 119)
    node.sim.hang("nvmlInit", None)
    told = node.info(timeout_seconds=2, gpus=[node.uuids[2]])
    [gpu] = told["gpus"]
    assert (gpu["uuid"], gpu["lost"], [one["pid"] for one in gpu["processes"]]) == (node.uuids[2], False, [pid])
    assert [xid["code"] for xid in told["xids"]] == [119]
    assert told["abandoned"] == [], "it could be killed"


def test_a_lost_gpu(node):
    pid = node.sim.start([1], "train", GIB)
    before = node.info()["gpus"][1]
    node.sim.lost(1)
    told = node.info()
    gpu = told["gpus"][1]
    assert gpu["lost"] is True
    assert {name: gpu[name] for name in ("uuid", "pci_bus_id", "minor", "serial", "slot")} == {
        name: before[name] for name in ("uuid", "pci_bus_id", "minor", "serial", "slot")
    }
    assert [(one["pid"], one["source"]) for one in gpu["processes"]] == [(pid, "device_file")]
    assert [one["lost"] for one in told["gpus"]] == [False, True, False]
    assert any("lost" in error["error"] for error in gpu["errors"])


def test_no_permission_and_no_driver(node):
    node.sim.no_permission("nvmlDeviceGetRemappedRows", 0)
    gpu = node.info()["gpus"][0]
    assert gpu["remapped_rows"]["failure"] is None and gpu["processes_source"] == "nvml"
    assert [error["call"] for error in gpu["errors"]] == ["nvmlDeviceGetRemappedRows"]
    node.sim.driver_not_loaded()
    told = node.info()
    assert told["missing"] == [{"source": "nvml", "why": "NVML cannot be used: Driver Not Loaded"}]
    assert [gpu["uuid"] for gpu in told["gpus"]] == node.uuids


def test_two_nodes_of_one_machine_do_not_see_each_other(make_node):
    one, two = make_node("one"), make_node("two", gpus=1)
    pid = one.sim.start([0], "train", GIB)
    one.sim.xid(0, 48)
    told = two.info()
    assert (len(told["gpus"]), told["xids"], told["gpus"][0]["processes"]) == (1, [], [])
    assert [process["pid"] for process in one.info()["gpus"][0]["processes"]] == [pid]


@pytest.mark.parametrize("check_mode", [True, False])
def test_s5_a_reader_under_the_lock_renews_it_or_stops(node, check_mode):
    token = node.run("node_lock", lock_holder="run-1")["token"]
    assert node.info(lock_token=token, lock_holder="run-1")["gpus"]
    node.run("node_lock", lock_holder="run-2", lock_token=token + 1)
    told = node.info(lock_token=token, lock_holder="run-1", check_mode=check_mode)
    assert told.get("error_kind") == (None if check_mode else "lock_lost")
