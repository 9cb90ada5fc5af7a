# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The H200 model answers as the recorded H200 did, through the unmodified nvidia-ml-py."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import nvml_child
import pytest
from gpusim.node import MODEL_NAMES, Node, load_model

RECORDED: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "fixtures" / "nvml" / "h200-580.159.04.json").read_text(encoding="utf-8")
)

IDENTITY = "every simulated GPU has its own; the recorded ones were replaced as well"
NOT_COMPARED = {
    "nvmlDeviceGetUUID": IDENTITY,
    "nvmlDeviceGetSerial": IDENTITY,
    "nvmlDeviceGetPdi": IDENTITY,
    "nvmlSystemGetProcessName": "the recorder passed a device handle; tested with a pid elsewhere",
    "nvmlSystemGetConfComputeSettings": "recorded as a return code, compared below",
    "nvmlSystemGetTopologyGpuSet": "the recorder passed a device handle for the CPU number, compared below",
    "mig_set_same": "not an answer: the recorder left the mode alone",
    "nvmlDeviceGetGpuInstances_x": "the recorder's own mistake in arguments",
    "gi_profiles": "compared below, profile by profile",
    "nvmlDeviceGetMigDeviceHandleByIndex_x": "takes an index, compared below",
    "nvmlDeviceGetEccMode_x": "a second recording of nvmlDeviceGetEccMode",
    "nvmlSystemGetCPER_v1": "takes a structure; the symbol is missing in both, compared below",
}

ASK_ALL = """
result = {}
for name in %r:
    function = getattr(n, name)
    result[name] = ask(function) if name.startswith("nvmlSystem") else ask(function, gpu())
"""
ASK_REST = """
result = {
    "settings": n.nvmlSystemGetConfComputeSettings(None),
    "topology": ask(n.nvmlSystemGetTopologyGpuSet, 0),
    "mig_by_index": ask(n.nvmlDeviceGetMigDeviceHandleByIndex, gpu(), 0),
    "cper": ask(n.nvmlSystemGetCPER_v1, ctypes.c_int()),
}
"""
ASK_PROFILES = """
def placements(profile):
    count = ctypes.c_uint()
    n.nvmlDeviceGetGpuInstancePossiblePlacements(gpu(), profile, None, ctypes.byref(count))
    found = (n.c_nvmlGpuInstancePlacement_t * count.value)()
    n.nvmlDeviceGetGpuInstancePossiblePlacements(gpu(), profile, found, ctypes.byref(count))
    return [0, 0, [[one.start, one.size] for one in found]]

result = {}
for enum in range(32):
    info = ask(n.nvmlDeviceGetGpuInstanceProfileInfo, gpu(), enum)
    if "error" not in info:
        info["remaining"] = n.nvmlDeviceGetGpuInstanceRemainingCapacity(gpu(), info["id"])
        info["placements"] = placements(info["id"])
    result[str(enum)] = info
"""
COMPARED = sorted(set(RECORDED) - set(NOT_COMPARED))


@pytest.fixture(scope="module")
def h200(tmp_path_factory: pytest.TempPathFactory) -> Any:
    node = Node(tmp_path_factory.mktemp("nodes"), "h200")
    node.create(gpus=1)
    yield node
    node.destroy()


def test_answers_are_those_of_the_recorded_gpu(h200: Node) -> None:
    answers = nvml_child.ask(h200.nvml_library, ASK_ALL % COMPARED)
    assert answers == {name: RECORDED[name] for name in COMPARED}


def test_answers_that_need_arguments(h200: Node) -> None:
    assert nvml_child.ask(h200.nvml_library, ASK_REST) == {
        "settings": RECORDED["nvmlSystemGetConfComputeSettings"],
        "topology": RECORDED["nvmlSystemGetTopologyGpuSet"],
        "mig_by_index": RECORDED["nvmlDeviceGetMigDeviceHandleByIndex_x"],
        "cper": RECORDED["nvmlSystemGetCPER_v1"],
    }


def test_mig_profiles_are_those_of_the_recorded_gpu(h200: Node) -> None:
    assert nvml_child.ask(h200.nvml_library, ASK_PROFILES) == RECORDED["gi_profiles"]


def test_nothing_recorded_is_left_out_without_a_reason() -> None:
    assert set(NOT_COMPARED) <= set(RECORDED)
    assert len(COMPARED) >= 150


def test_measured_fields(h200: Node) -> None:
    """Fields 184, 199 and 230 as measured; a field that the model does not have says so in its own return code."""
    body = "result = [(f.nvmlReturn, f.valueType, f.value.uiVal) for f in n.nvmlDeviceGetFieldValues(gpu(), [184, 199, 230, 90])]"
    assert nvml_child.ask(h200.nvml_library, body) == [[0, 1, 1], [0, 1, 1], [0, 1, 0], [3, 1, 0]]


@pytest.mark.parametrize(
    ("model", "name", "total_gib", "profile_mib", "resetless"),
    [
        ("h200-141", "NVIDIA H200", 140, [16384, 33280, 33280, 71424, 71424, 143360], 1),
        ("h100-80", "NVIDIA H100 80GB HBM3", 79, [9984, 20096, 20096, 40448, 40448, 81152], 1),
        ("a100-40", "NVIDIA A100-SXM4-40GB", 40, [4864, 9856, 9856, 19968, 19968, 40192], 0),
        ("a100-80", "NVIDIA A100-SXM4-80GB", 80, [9728, 19968, 19968, 40192, 40192, 80896], 0),
        ("b200-180", "NVIDIA B200", 179, [21504, 44544, 44544, 90112, 90112, 182272], 1),
    ],
)
def test_models(tmp_path: Path, model: str, name: str, total_gib: int, profile_mib: list[int], resetless: int) -> None:
    node = Node(tmp_path, "model")
    node.create(model, gpus=1)
    try:
        body = """
enums = (0, 9, 1, 2, 3, 4)
result = [n.nvmlDeviceGetName(gpu()), n.nvmlDeviceGetMemoryInfo(gpu()).total >> 30,
    [n.nvmlDeviceGetGpuInstanceProfileInfo(gpu(), enum).memorySizeMB for enum in enums], n.nvmlDeviceGetFieldValues(gpu(), [184])[0].value.uiVal]
"""
        assert nvml_child.ask(node.nvml_library, body) == [name, total_gib, profile_mib, resetless]
    finally:
        node.destroy()


def test_profiles_of_the_a30(tmp_path: Path) -> None:
    """Another family: ids that mean other sizes than on the larger GPUs, and half as many memory slices."""
    node = Node(tmp_path, "a30")
    node.create("a30-24", gpus=1)
    try:
        found = [one for one in nvml_child.ask(node.nvml_library, ASK_PROFILES).values() if "error" not in one]
    finally:
        node.destroy()
    everywhere, halves = [[0, 1], [1, 1], [2, 1], [3, 1]], [[0, 2], [2, 2]]
    assert [[one["id"], one["name"], one["remaining"], one["memorySizeMB"], one["placements"][2]] for one in found] == [
        [14, "MIG 1g.6gb", 4, 5952, everywhere], [5, "MIG 2g.12gb", 2, 11968, halves], [0, "MIG 4g.24gb", 1, 24000, [[0, 4]]],
        [21, "MIG 1g.6gb+me", 1, 5952, everywhere], [6, "MIG 2g.12gb+me", 1, 11968, halves],
    ]  # fmt: skip


@pytest.mark.parametrize("model", MODEL_NAMES)
def test_names_say_the_share_of_the_memory(model: str) -> None:
    """Eighths (quarters) of the memory, rounded up, of its whole gibibytes."""
    data = load_model(model)
    total_mib = data["memory"]["total_bytes"] >> 20
    for info in data["mig"]["profiles"].values():
        share = math.ceil(info["memorySizeMB"] / total_mib * 8) / 8
        gigabytes = math.floor(share * math.ceil(total_mib / 1024) + 0.5)
        assert info["name"].startswith(f"MIG {info['sliceCount']}g.{gigabytes}gb")


@pytest.mark.parametrize("model", MODEL_NAMES)
def test_what_is_not_measured_is_marked(model: str) -> None:
    assert load_model(model)["unverified"]
