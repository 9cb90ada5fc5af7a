# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""mig_info with the unmodified nvidia-ml-py: layouts, room, and who holds what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from ansible_collections.gpuops.remediation.plugins.modules import mig_info
from gpusim import instances
from gpusim.node import MIB, Node
from run_module import run_module

GIB = 1 << 30


def read(node: Node, **options: Any) -> dict[str, Any]:
    names = ("proc_root", "state_dir", "dev_root", "kmsg_path", "cgroup_root", "nvml_library")
    places = {name: node.host_variables()[f"gpuops_{name}"] for name in names}
    told = run_module(mig_info.main, **{"timeout_seconds": 60, **places, **options})
    assert told["changed"] is False and not told.get("failed"), told.get("msg")
    return told


def people(gpu: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [(one["pid"], one["gi"], one["ci"], one["type"], one["source"]) for one in gpu["holders"]]


@pytest.fixture
def hopper(make_node: Callable[..., Node]) -> Node:
    return make_node(mig=True, gpus=2)


@pytest.mark.parametrize("check_mode", [False, True])
def test_a_layout_and_what_it_leaves(hopper: Node, check_mode: bool) -> None:
    half = instances.create(hopper, 0, "3g.71gb", 4, ("2c", "1c"))
    bare = instances.create(hopper, 0, "1g.35gb", 0, ())
    told = read(hopper, check_mode=check_mode)
    assert (told["missing"], told["abandoned"], told["driver_version"]) == ([], [], "580.159.04")
    gpu, other = told["gpus"]
    state = hopper.state()["gpus"][0]
    assert (gpu["uuid"], gpu["errors"], gpu["supported"], gpu["model"], gpu["evidence"]) == (
        state["uuid"],
        [],
        True,
        "h200-141",
        "measured",
    )
    assert (gpu["mig"], gpu["mode_change_needs_reset"]) == ({"current": True, "pending": True}, False)
    first, second = gpu["instances"]
    assert (first["name"], first["gi"], first["memory_bytes"], first["compute"]) == ("1g.35gb@0", bare, 33280 * MIB, [])
    assert (second["name"], second["gi"], second["start"], second["size"]) == ("3g.71gb@4", half, 4, 4)
    uuids = [part["uuid"] for one in state["mig"]["instances"] for part in one["compute"]]
    assert [(one["name"], one["ci"], one["uuid"]) for one in second["compute"]] == [
        ("3g.71gb@4/2c@0", 0, uuids[0]), ("3g.71gb@4/1c@2", 1, uuids[1]),
    ]  # fmt: skip
    assert gpu["without_compute"] == ["1g.35gb@0"]
    assert gpu["free"] == {"1g.18gb": [2, 3], "1g.18gb+me": [2, 3], "2g.35gb": [2], "1g.35gb": [2]}
    assert gpu["room"] == {"free_slices": 2, "stranded_slices": 0, "largest_slices": 2, "fragmentation": 0}
    assert gpu["drawing"].splitlines()[1:] == [
        "# # . . . . . .  1g.35gb@0     no compute instance",
        ". . . . # # # #  3g.71gb@4     2c@0 1c@2",
        ". . - - . . . .  free",
    ]
    assert (gpu["holders"], gpu["holders_complete"]) == ([], True)
    assert (other["instances"], other["room"]["largest_slices"]) == ([], 8)


@pytest.mark.parametrize(
    "model, limits, reset", [("a30-24", {"1g.6gb": 4, "2g.12gb": 2}, True), ("a100-80", {"3g.40gb": 2, "7g.80gb": 1}, True)]
)
def test_what_other_models_offer_with_mig_off(make_node: Callable[..., Node], model: str, limits: dict[str, int], reset: bool) -> None:
    node = make_node(model_name=model, gpus=1)
    [gpu] = read(node)["gpus"]
    assert (gpu["model"], gpu["mig"], gpu["mode_change_needs_reset"]) == (model, {"current": False, "pending": False}, reset)
    assert (gpu["instances"], gpu["free"], gpu["room"], gpu["drawing"]) == ([], {}, None, "MIG off\n")
    offered = {one["name"]: one for one in gpu["profiles"]}
    assert {name: offered[name]["limit"] for name in limits} == limits
    assert all(one["memory_bytes"] and one["starts"] and one["compute"] for one in offered.values())
    instances.set_mode(node, 0, True)
    assert read(node)["gpus"][0]["mig"] == {"current": False, "pending": True}


def test_who_holds_an_instance(hopper: Node) -> None:
    """A process that NVML lists, two monitors that it does not list, and one on the GPU itself: the driver says IN_USE for each."""
    half, quarter = instances.create(hopper, 0, "3g.71gb", 4, ("2c", "1c")), instances.create(hopper, 0, "2g.35gb", 0)
    worker = hopper.start([0], "train", GIB, gi=half, ci=1)
    whole = hopper.start([0], "dcgm", 0, kind="monitor", gi=half)
    part = hopper.start([0], "exporter", 0, kind="monitor", gi=quarter, ci=0)
    outside = hopper.start([0, 1], "persistenced", 0, kind="monitor")
    one, two = read(hopper)["gpus"]
    assert people(one) == [
        (outside, None, None, "client", "device_file"), (whole, half, None, "client", "device_file"),
        (worker, half, 1, "compute", "nvml"), (part, quarter, 0, "client", "device_file"),
    ]  # fmt: skip
    assert people(two) == [(outside, None, None, "client", "device_file")]
    held = {gi["name"]: (gi["holders"], [ci["holders"] for ci in gi["compute"]]) for gi in one["instances"]}
    assert held == {"2g.35gb@0": ([part], [[part]]), "3g.71gb@4": (sorted([worker, whole]), [[], [worker]])}
    found = {holder["pid"]: holder for holder in one["holders"]}
    assert (found[worker]["name"], found[worker]["unit"], found[worker]["memory_bytes"]) == ("train", "train.service", GIB)
    assert (found[whole]["name"], found[whole]["unit"], found[whole]["memory_bytes"]) == ("dcgm", "dcgm.service", None)


def test_a_gpu_that_hangs_hides_no_other_and_its_holders_are_known_all_the_same(hopper: Node) -> None:
    half = instances.create(hopper, 1, "3g.71gb", 4)
    worker = hopper.start([1], "train", GIB, gi=half, ci=0)
    instances.create(hopper, 0, "1g.18gb", 0)
    hopper.hang("nvmlDeviceGetMigMode", None, 1)
    hopper.hang("nvmlDeviceGetComputeRunningProcesses", None, 1)
    told = read(hopper, timeout_seconds=6, mig_parted="now")
    assert {one["source"] for one in told["missing"]} == {"mig", "nvml"}
    well, hung = told["gpus"]
    assert ([one["name"] for one in well["instances"]], well["errors"], well["holders_complete"]) == (["1g.18gb@0"], [], True)
    assert (hung["supported"], hung["mig"], hung["instances"]) == (None, {"current": None, "pending": None}, [])
    assert {one["call"] for one in hung["errors"]} == {"nvmlDeviceGetMigMode", "nvmlDeviceGetComputeRunningProcesses_v3"}
    assert (people(hung), hung["holders_complete"]) == ([(worker, half, 0, "client", "device_file")], False)
    assert told["mig_parted"] is None and hung["uuid"] in told["mig_parted_why"]


def test_a_lost_gpu_takes_no_other_s_layout(make_node: Callable[..., Node]) -> None:
    node = make_node(mig=True, gpus=2)
    instances.create(node, 1, "1g.18gb", 0)
    node.lost(0)
    lost, well = read(node)["gpus"]
    assert (lost["lost"], lost["instances"], lost["supported"]) == (True, [], None)
    assert [one["name"] for one in well["instances"]] == ["1g.18gb@0"]


def test_the_layouts_as_mig_parted_writes_them(hopper: Node) -> None:
    assert "mig_parted" not in read(hopper)
    instances.create(hopper, 0, "3g.71gb", 4, ("2c", "1c"))
    told = read(hopper, mig_parted="now")
    assert told["mig_parted_why"] is None
    assert told["mig_parted"] == {
        "version": "v1",
        "mig-configs": {
            "now": [
                {"devices": [0], "mig-enabled": True, "mig-devices": {"1c.3g.71gb": 1, "2c.3g.71gb": 1}},
                {"devices": [1], "mig-enabled": True, "mig-devices": {}},
            ]
        },
    }
    assert "not all GPUs" in read(hopper, mig_parted="now", gpus=[hopper.state()["gpus"][0]["uuid"]])["mig_parted_why"]
    instances.create(hopper, 1, "1g.35gb", 0, ())
    bare = read(hopper, mig_parted="now")
    assert bare["mig_parted"] is None and "1g.35gb@0" in bare["mig_parted_why"]


def test_selection(hopper: Node) -> None:
    uuid = hopper.state()["gpus"][1]["uuid"]
    told = read(hopper, gpus=[uuid, "GPU-nobody"])
    assert [gpu["uuid"] for gpu in told["gpus"]] == [uuid]
    assert told["missing"] == [{"source": "gpus", "why": "there is no GPU GPU-nobody"}]
