# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Any layout to any other through the simulated driver: what is busy or fits is left alone, and a failure anywhere is taken back or told."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._errors import RemediationError
from ansible_collections.gpuops.remediation.plugins.module_utils._mig import device
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.layout import Layout
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.planner import plan
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.reading import Reading
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.requests import Request, as_it_is, request_of
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.steps import differences
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.task import LayoutTask, Options
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.wants import Want, want_counts
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.watched import read_node
from ansible_collections.gpuops.remediation.plugins.module_utils._node.journal import Journal
from ansible_collections.gpuops.remediation.plugins.module_utils._node.node import Node as OurNode
from gpusim import instances, mig
from gpusim.node import Node
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from mig import random_busy, random_layout, random_want

MODELS = ("h200-141", "a30-24")
PATHS = ("proc_root", "state_dir", "dev_root", "kmsg_path", "cgroup_root", "nvml_library")
CALLS = (
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    "nvmlGpuInstanceCreateComputeInstanceWithPlacement",
    "nvmlGpuInstanceDestroy",
    "nvmlComputeInstanceDestroy",
    "nvmlDeviceGetGpuInstances",
    "nvmlGpuInstanceGetComputeInstances",
)
seeds = st.integers(min_value=0, max_value=1 << 32)


class Gpu:
    """The first GPU of a simulated node, with any layout and anybody in it."""

    def __init__(self, node: Node) -> None:
        self.node = node
        variables = node.host_variables()
        self.ours = OurNode.from_params({name: variables[f"gpuops_{name}"] for name in PATHS})
        instances.set_mode(node, 0, True)
        node.reset(0)
        node.start([1], "train", 1)
        self._holder = node.state()["processes"][0]
        self.uuid = node.state()["gpus"][0]["uuid"]
        self._smi, self._modprobe = variables["gpuops_nvidia_smi"], variables["gpuops_nvidia_modprobe"]
        self.reading = self.read()
        assert self.reading.model is not None
        self.model = self.reading.model

    def read(self) -> Reading:
        reading = read_node(self.ours, [self.uuid], timeout_seconds=60).gpus[0].reading
        assert reading is not None
        return reading

    def become(self, layout: Layout, busy: set[str]) -> None:
        """With the holder in each busy compute instance."""
        model = self.node.model
        self.node.clear()
        with self.node.change() as state:
            gpu = state["gpus"][0]
            gpu["mig"]["instances"], state["processes"] = [], [self._holder]
            for one in layout.instances:
                profile = self.model.profile(one.profile)
                assert profile is not None
                made = mig.create_gpu_instance(model, state, gpu, profile.profile_id, [one.placement.start, one.placement.size])
                parts = {
                    info["sliceCount"]: info["id"] for info in mig.compute_profiles(model, mig.profile(model, profile.profile_id)).values()
                }
                for part in one.compute:
                    ci = mig.create_compute_instance(model, state, gpu, made, parts[part.slices], [part.start, part.slices])
                    if {one.name, one.compute_name(part)} & busy:
                        state["processes"].append({**self._holder, "gpus": [0], "gi": made["id"], "ci": ci["id"]})

    def serials(self, layout: Layout) -> dict[str, int]:
        """Numbers that nothing has again, of what of that layout is there."""
        there = {one["start"]: one for one in self.node.state()["gpus"][0]["mig"]["instances"]}
        found: dict[str, int] = {}
        for one in layout.instances:
            raw = there.get(one.placement.start)
            if raw is not None and raw["size"] == one.placement.size:
                found[one.name] = raw["serial"]
                parts = {(part["start"], part["size"]): part["serial"] for part in raw["compute"]}
                found.update(
                    {one.compute_name(part): parts[part.start, part.slices] for part in one.compute if (part.start, part.slices) in parts}
                )
        return found

    def change(self, want: Want) -> dict[str, Any]:
        gpu: dict[str, Any] = self.run(lambda _reading: want, gpus=[self.uuid])["gpus"][0]
        return gpu

    def run(self, request: Request, check_mode: bool = False, **more: Any) -> dict[str, Any]:
        how: dict[str, Any] = {"busy": "fail", "busy_timeout_seconds": 1, "grace_seconds": 1, "protect": [], "given": [], "may_move": True}
        how.update(allow_reset=False, timeout_seconds=60, nvidia_smi=self._smi, nvidia_modprobe=self._modprobe)
        options = Options(**{**how, **more})
        journal = Journal(self.ours.state, "boot", "tests", "a test")
        result, _warnings = LayoutTask(self.ours, request, options, journal, lambda: None).run(check_mode=check_mode)
        return result


@pytest.fixture(scope="module", params=MODELS)
def gpu(request: pytest.FixtureRequest) -> Iterator[Gpu]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(device, "_LINGER_SECONDS", (0.01,))
        node = Node(Path(memory), "gpu-1")
        node.create(request.param, 2)
        yield Gpu(node)
        node.destroy()


def situation(gpu: Gpu, seed: int) -> tuple[random.Random, Layout, Want, set[str]]:
    rng = random.Random(seed)
    layout, want = random_layout(gpu.model, rng), random_want(gpu.model, rng)
    assume(sum("+me" in one.profile for one in layout.instances) < 2)  # of two sizes on an A30, which has the engine once
    names = {one.compute_name(part) for one in layout.instances for part in one.compute}
    busy = {part for one in random_busy(layout, rng) for part in names if part == one or part.startswith(f"{one}/")}
    gpu.become(layout, busy)
    return rng, layout, want, busy


@given(seeds)
@settings(max_examples=10, deadline=None, derandomize=True)
def test_what_can_be_reached_is_and_what_cannot_says_why(gpu: Gpu, seed: int) -> None:
    _rng, layout, want, busy = situation(gpu, seed)
    before = gpu.serials(layout)
    assert len(before) == sum(1 + len(one.compute) for one in layout.instances)
    done = gpu.change(want)
    after = gpu.read().layout
    try:
        expected = plan(gpu.model, layout, want, busy, resetless=gpu.reading.resetless)
    except RemediationError as error:
        assert (done["error"]["kind"], done["error"].get("instances")) == (error.kind, error.details.get("instances"))
        assert after == layout and gpu.serials(layout) == before
        return
    assert done["error"] is None and after == expected.layout and not plan(gpu.model, after, want).steps
    kept = gpu.serials(layout)
    assert all(kept[name] == before[name] for name in (*busy, *(one.name for one in expected.keep)))


@given(seeds)
@settings(max_examples=12, deadline=None, derandomize=True)
def test_a_failure_at_any_call_is_taken_back_or_told(gpu: Gpu, seed: int) -> None:
    rng, layout, want, busy = situation(gpu, seed)
    before = gpu.serials(layout)
    error = rng.choice(["UNKNOWN", "IN_USE", "INSUFFICIENT_RESOURCES"])
    times = rng.choice([1, 2, None])
    gpu.node.fail(rng.choice(CALLS), error, at=rng.randrange(1, 12), times=times, index=0)
    done = gpu.change(want)
    gpu.node.clear()
    after = gpu.read().layout
    assert after is not None
    if done["error"] is None:
        assert not plan(gpu.model, after, want).steps
    else:
        differs = done["error"].get("differs", [])
        unread = any("cannot be read" in one for one in differs)
        assert unread or differs == differences(layout, after), "the error says all that is not as it was"
        assert unread or times != 1 or after == layout, "what fails once is not in the way of taking back"
    kept = gpu.serials(layout)
    assert all(kept.get(name) == before[name] for name in busy), "what is busy is as it was"


def test_entries_that_overlap_converge(gpu: Gpu) -> None:
    """The second GPU is in both; a name that no GPU has is told, though the other entry is of all of them."""
    second = gpu.node.state()["gpus"][1]["uuid"]
    gpu.become(Layout(True), set())
    entry: dict[str, Any] = dict.fromkeys(("counts", "instances", "mig_parted", "mig_parted_config"))
    wanted = [{**entry, "gpus": [], "mig_enabled": True}, {**entry, "gpus": [second, "GPU-none"], "mig_enabled": False}]
    whom = {"gpus": [second, "GPU-none"], "every_gpu": True}
    for _run in range(2):
        result = gpu.run(request_of({"layouts": wanted}), **whom)
        assert [(one["uuid"], one["changed"], one["error"] and one["error"]["kind"]) for one in result["gpus"]] == [
            (gpu.uuid, False, None),
            (second, False, None),
            (None, False, "unknown_gpu"),
        ]


def test_a_reset_has_its_time_however_short_that_of_the_rest_is(gpu: Gpu) -> None:
    """A minute, before which it is not ended."""
    gpu.become(Layout(True), set())
    for on in (False, True):
        [done] = gpu.run(lambda _reading, on=on: Want(on), gpus=[gpu.uuid], allow_reset=True, timeout_seconds=15)["gpus"]
        assert done["error"] is None and done["after"]["mig"] is on


def test_a_device_file_that_is_missing_is_due_though_the_layout_is_as_wanted(gpu: Gpu) -> None:
    profile = gpu.model.profiles[0]
    gpu.become(Layout(True), set())
    instances.create(gpu.node, 0, profile.name, profile.starts[0], ())
    have = gpu.read().layout
    assert have is not None
    for file in (gpu.node.path / "dev/nvidia-caps").iterdir():
        file.unlink()

    def run(*, check_mode: bool = False, **more: Any) -> tuple[bool, list[str]]:
        [done] = gpu.run(lambda _reading: as_it_is(have, mig=True), gpus=[gpu.uuid], check_mode=check_mode, **more)["gpus"]
        assert done["steps"] == [] and done["error"] is None
        return done["changed"], done["device_files"]

    changed, files = run(check_mode=True)
    assert changed and len(files) == 1 and files[0].endswith("/access")
    assert run(nvidia_modprobe="/nonexistent") == (False, []) and run(check_mode=True) == run() == (True, files)
    assert run(check_mode=True) == run() == (False, [])


def test_who_has_the_gpu_open_whose_mode_is_to_change_is_named_before(gpu: Gpu) -> None:
    """And of no other change: instances come and go beside a monitor."""
    gpu.become(Layout(True), set())
    pid = gpu.node.start([0], "dcgm", 0, kind="monitor")
    try:
        [off] = gpu.run(lambda _reading: Want(False), gpus=[gpu.uuid], check_mode=True)["gpus"]
        [more] = gpu.run(lambda _reading: want_counts(gpu.model, {gpu.model.profiles[0].name: 1}), gpus=[gpu.uuid], check_mode=True)["gpus"]
    finally:
        gpu.node.exit(pid)
    assert off["error"] is None and [(one["pid"], one["name"]) for one in off["clients"]] == [(pid, "dcgm")]
    assert more["steps"] and more["clients"] == []
