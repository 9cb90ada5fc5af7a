# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Processes of simulated nodes: real, in cgroups of ours, in NVML for exactly as long as they live."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import nvml_child
import pytest
from gpusim import process
from gpusim.node import MIB, Node, SimulatorError
from gpusim.state import start_ticks

LISTED = """
result = [[[p.pid, p.usedGpuMemory >> 20, p.gpuInstanceId, p.computeInstanceId] for p in f(gpu(1))] for f in
          (n.nvmlDeviceGetComputeRunningProcesses_v3, n.nvmlDeviceGetGraphicsRunningProcesses_v3, n.nvmlDeviceGetMPSComputeRunningProcesses_v3)]
"""
NONE = 0xFFFFFFFF


def listed(node: Node) -> list[int]:
    body = "result = [p.pid for p in n.nvmlDeviceGetComputeRunningProcesses(gpu(1))]"
    found: list[int] = nvml_child.ask(node.nvml_library, body)
    return found


def gone(pid: int, seconds: float = 5) -> bool:
    until = time.monotonic() + seconds
    while start_ticks(pid) is not None:
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def test_a_process_is_what_the_node_tools_look_for(node: Node) -> None:
    pid = node.start([1], "train", 1024 * MIB)
    mine = Path(f"/proc/{pid}")
    held = {os.readlink(fd) for fd in (mine / "fd").iterdir()}
    assert {str(node.path / "dev/nvidia1"), str(node.path / "dev/nvidiactl")} <= held
    assert os.readlink(mine / "exe") == str(node.path / "bin/train")
    assert (mine / "comm").read_text(encoding="utf-8") == "train\n"
    own = (mine / "cgroup").read_text(encoding="utf-8").splitlines()[-1].partition("::")[2]
    assert process.cgroup_root() / own.strip("/") == node.cgroups / "system.slice/train.service"
    assert os.readlink(node.path / "proc" / str(pid)) == str(mine)
    assert nvml_child.ask(node.nvml_library, f"result = n.nvmlSystemGetProcessName({pid})") == str(node.path / "bin/train")


def test_lists_by_kind(node: Node) -> None:
    compute, graphics, mps = (node.start([1], kind, 100 * MIB, kind=kind) for kind in ("compute", "graphics", "mps"))
    assert nvml_child.ask(node.nvml_library, LISTED) == [[[pid, 100, NONE, NONE]] for pid in (compute, graphics, mps)]
    assert nvml_child.ask(
        node.nvml_library, "m = n.nvmlDeviceGetMemoryInfo(gpu(1))\nresult = [m.used >> 20, m.total - m.used - m.free]"
    ) == [
        915,
        0,
    ]


def test_grows_and_exits(node: Node) -> None:
    pid = node.start([0, 1], "train", 100 * MIB)
    node.grow(pid, 50 * MIB)
    assert nvml_child.ask(node.nvml_library, LISTED)[0] == [[pid, 150, NONE, NONE]]
    with pytest.raises(SimulatorError, match="MiB free"):
        node.grow(pid, 200_000 * MIB)
    node.exit(pid)
    assert gone(pid) and listed(node) == []
    assert not node.cgroups.joinpath("system.slice").exists()


def test_the_dead_vanish_from_nvml_by_themselves(node: Node) -> None:
    pid = node.start([1], "train", MIB)
    os.kill(pid, signal.SIGKILL)
    assert gone(pid) and listed(node) == []
    node.log("any change sweeps the rest up")
    assert node.state()["processes"] == [] and not (node.path / "proc" / str(pid)).is_symlink()


def test_another_process_under_the_same_number_is_not_taken_for_it(node: Node) -> None:
    pid = node.start([1], "train", MIB)
    with node.change() as state:
        state["processes"][0]["start_ticks"] -= 1
    try:
        assert listed(node) == []
    finally:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGKILL])
def test_normal_ends_at_once(node: Node, stop: signal.Signals) -> None:
    pid = node.start([1], "train", MIB)
    os.kill(pid, stop)
    assert gone(pid, 1)


def test_late_takes_its_time_but_not_against_sigkill(node: Node) -> None:
    slow, stubborn = node.start([1], "slow", MIB, ends="late:2"), node.start([1], "stubborn", MIB, ends="late:3600")
    began = time.monotonic()
    for _attempt in range(2):  # a second SIGTERM does not put it off
        node.terminate(slow)
        node.terminate(stubborn)
        time.sleep(0.3)
    assert sorted(listed(node)) == sorted([slow, stubborn])
    assert gone(slow) and time.monotonic() - began > 1.9
    os.kill(stubborn, signal.SIGKILL)
    assert gone(stubborn, 1)


def test_never_survives_sigkill_until_the_node_reboots(node: Node) -> None:
    """As a client that the driver cannot tear down: killed, still there, device file open, cgroup populated."""
    pid = node.start([1], "stuck", MIB, ends="never")
    leaf = node.cgroups / "system.slice/stuck.service"
    node.terminate(pid)
    (leaf / "cgroup.freeze").write_text("1", encoding="ascii")
    time.sleep(0.2)
    assert "frozen 1" in (leaf / "cgroup.events").read_text(encoding="utf-8"), "it can be frozen like any other"
    (leaf / "cgroup.freeze").write_text("0", encoding="ascii")
    (leaf / "cgroup.kill").write_text("1", encoding="ascii")
    time.sleep(0.3)
    assert listed(node) == [pid]
    assert str(node.path / "dev/nvidia1") in {os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir()}
    assert "populated 1" in (leaf / "cgroup.events").read_text(encoding="utf-8")
    with pytest.raises(SimulatorError, match=r"in use by another client: stuck \("):
        node.reset(1)
    node.reboot()
    assert gone(pid, 0) and not leaf.exists()


def test_never_can_be_ended_by_its_owner(node: Node) -> None:
    pid = node.start([1], "stuck", MIB, ends="never")
    node.exit(pid)
    assert gone(pid, 0) and listed(node) == []


def test_a_frozen_process_does_not_stop_destroy(make_node: Callable[..., Node]) -> None:
    node = make_node("frozen", gpus=1)
    pid = node.start([0], "train", MIB)
    (node.cgroups / "system.slice/train.service/cgroup.freeze").write_text("1", encoding="ascii")
    node.destroy()
    assert gone(pid, 0)


def test_destroy_leaves_nothing_behind(make_node: Callable[..., Node]) -> None:
    node, other = make_node("one", gpus=1), make_node("two", gpus=1)
    pids = [node.start([0], f"train-{ends[0]}", MIB, ends=ends) for ends in ("normal", "late:60", "never")]
    kept = other.start([0], "train", MIB)
    node.destroy()
    assert all(gone(pid, 0) for pid in pids) and not node.path.exists() and not node.cgroups.exists()
    assert start_ticks(kept) is not None
    other.destroy()
    assert not other.cgroups.parent.exists()
    other.destroy()  # of what is not there: fine


@pytest.mark.parametrize("cgroup", ["../elsewhere.scope", "a/../../b"])
def test_no_cgroup_outside_the_node(node: Node, cgroup: str) -> None:
    with pytest.raises(SimulatorError):
        node.start([0], "train", MIB, cgroup=cgroup)


def test_a_process_that_cannot_start_says_why(node: Node) -> None:
    (node.path / "dev/nvidia0").unlink()
    for ends in ("normal", "never"):
        with pytest.raises(RuntimeError, match=r"nvidia0: No such file"):
            node.start([0], "train", MIB, ends=ends)
    assert node.state()["processes"] == [] and not node.cgroups.joinpath("system.slice").exists()
