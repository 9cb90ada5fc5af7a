# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the collection reads of MIG through the unmodified nvidia-ml-py, against what was made on the simulated node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.layout import Layout
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.tables import MODELS, model_named
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.watched import NodeAnswer, read_node
from ansible_collections.gpuops.remediation.plugins.module_utils._node.node import Node as OurNode
from gpusim import instances
from gpusim.node import MODEL_NAMES, Node
from mig import layout


def ours(node: Node) -> OurNode:
    names = ("proc_root", "state_dir", "dev_root", "kmsg_path", "cgroup_root", "nvml_library")
    return OurNode.from_params({name: node.host_variables()[f"gpuops_{name}"] for name in names})


def read(node: Node, *wanted: str, seconds: float = 60) -> NodeAnswer:
    return read_node(ours(node), wanted, timeout_seconds=seconds)


@pytest.mark.parametrize("name", MODEL_NAMES)
def test_the_driver_s_profiles_are_those_of_the_tables(make_node: Callable[..., Node], name: str) -> None:
    """Two sources that were written apart. Figures that the tables leave out come from the driver."""
    node, known = make_node(model_name=name, gpus=1), model_named(name)
    found = read(node).gpus[0].reading
    assert found and known and found.model and found.layout == Layout(False)
    assert found.resetless == (name not in ("a30-24", "a100-40", "a100-80"))
    assert (found.model.name, found.model.memory_slices, found.model.evidence) == (known.name, known.memory_slices, known.evidence)

    def bare(profile: Any) -> Any:
        return replace(profile, memory_mib=None, multiprocessors=None, aliases=(), optical_flow=0)

    told, tables = {one.name: one for one in found.model.profiles}, {one.name: one for one in known.profiles}
    assert {one: bare(profile) for one, profile in told.items()} == {one: bare(profile) for one, profile in tables.items()}
    assert all(profile.memory_mib and profile.multiprocessors for profile in told.values())
    if known.evidence == "measured":
        figures = {one: (profile.memory_mib, profile.multiprocessors) for one, profile in tables.items()}
        assert {one: (profile.memory_mib, profile.multiprocessors) for one, profile in told.items()} == figures


@pytest.fixture
def hopper(make_node: Callable[..., Node]) -> Node:
    return make_node(mig=True, gpus=2)


def test_a_layout_with_its_ids_and_uuids(hopper: Node) -> None:
    """The compute instances with their places, and the GPU instance without any, which has no MIG device."""
    half = instances.create(hopper, 0, "3g.71gb", 4, ("2c", "1c"))
    empty = instances.create(hopper, 0, "1g.35gb", 0, ())
    one = instances.create(hopper, 0, "1g.18gb+me", 2)
    found = read(hopper).gpus[0].reading
    assert found and found.model and found.layout
    assert found.layout == layout(found.model, "3g.71gb@4 2c@0 1c@2", "1g.35gb@0 -", "1g.18gb+me@2")
    assert [(each.name, each.id, [part.id for part in each.compute]) for each in found.layout.instances] == [
        ("1g.35gb@0", empty, []),
        ("1g.18gb+me@2", one, [0]),
        ("3g.71gb@4", half, [0, 1]),
    ]
    there = {part["uuid"] for gi in hopper.state()["gpus"][0]["mig"]["instances"] for part in gi["compute"]}
    assert set(found.mig_uuids) == {"3g.71gb@4/2c@0", "3g.71gb@4/1c@2", "1g.18gb+me@2/1c@0"} and set(found.mig_uuids.values()) == there
    profile = found.model.profile("3g.71gb")
    assert profile and profile.driver_compute_starts == profile.compute_starts == ((1, (0, 1, 2)), (2, (0,)), (3, (0,)))


def test_a_mode_that_waits_for_a_reset(make_node: Callable[..., Node]) -> None:
    node = make_node(model_name="a100-80", gpus=1)
    instances.set_mode(node, 0, True)
    found = read(node).gpus[0].reading
    assert found and found.layout == Layout(False, (), True) and not found.resetless


def test_gpus_are_found_by_either_name_and_unknown_ones_named(hopper: Node) -> None:
    first, second = hopper.state()["gpus"]
    answer = read(hopper, first["uuid"], f"0000{second['pci_bus_id'].upper()}", "GPU-none")
    assert [gpu.uuid for gpu in answer.gpus] == [first["uuid"], second["uuid"]] and answer.unknown == ("GPU-none",)
    assert [gpu.uuid for gpu in read(hopper, second["pci_bus_id"]).gpus] == [second["uuid"]]


def test_a_gpu_that_hangs_hides_no_other(hopper: Node) -> None:
    """The answer says in which call it hangs."""
    hopper.hang("nvmlDeviceGetMigMode", None, 0)
    hung, fine = read(hopper, seconds=8).gpus
    assert hung.uuid and hung.reading is None and hung.error and "nvmlDeviceGetMigMode: did not answer" in hung.error["msg"]
    assert fine.reading and fine.error is None


@pytest.mark.parametrize(
    ("call", "error", "kind"),
    [
        ("nvmlDeviceGetGpuInstances", "NO_PERMISSION", "permission"),
        ("nvmlGpuInstanceGetInfo", "FUNCTION_NOT_FOUND", "driver_too_old"),
        ("nvmlDeviceGetName", "UNKNOWN", "nvml"),
    ],
)
def test_refusals_have_their_kinds(hopper: Node, call: str, error: str, kind: str) -> None:
    instances.create(hopper, 0, "7g.141gb")
    hopper.fail(call, error, times=None, index=0)
    refused, fine = read(hopper).gpus
    assert refused.error and (refused.error["error_kind"], refused.error["call"]) == (kind, call) and fine.reading


@pytest.mark.parametrize("error", ["FUNCTION_NOT_FOUND", "ARGUMENT_VERSION_MISMATCH"])
def test_a_driver_without_names_is_read_in_version_1(hopper: Node, error: str) -> None:
    hopper.fail("nvmlDeviceGetGpuInstanceProfileInfoV", error, times=None)
    hopper.fail("nvmlGpuInstanceGetComputeInstanceProfileInfoV", error, times=None)
    instances.create(hopper, 0, "3g.71gb", 4)
    found = read(hopper).gpus[0].reading
    assert found and found.model and found.layout == layout(found.model, "3g.71gb@4")


def test_places_that_the_driver_keeps_to_itself_are_the_tables(hopper: Node) -> None:
    hopper.no_permission("nvmlDeviceGetGpuInstancePossiblePlacements_v2")
    hopper.fail("nvmlGpuInstanceGetComputeInstancePossiblePlacements", "FUNCTION_NOT_FOUND", times=None)
    instances.create(hopper, 0, "3g.71gb", 4)
    found = read(hopper).gpus[0].reading
    known = next(one for one in MODELS if one.name == "h200-141")
    assert (
        found
        and found.model
        and [one.starts for one in found.model.profiles] == [one.starts for one in sorted(known.profiles, key=lambda one: one.query)]
    )
    profile = found.model.profile("3g.71gb")
    assert profile and profile.driver_compute_starts is None
