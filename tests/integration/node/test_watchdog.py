# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""S20 with a child that really cannot be killed: SIGKILL does not act in a frozen cgroup of version 1."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._node.procfs import ProcFs
from ansible_collections.gpuops.remediation.plugins.module_utils._node.statedir import StateDir
from ansible_collections.gpuops.remediation.plugins.module_utils._node.watchdog import Watchdog


@pytest.fixture
def frozen(cgroup_v1):
    (cgroup_v1.folder / "freezer.state").write_text("FROZEN")
    return cgroup_v1


def thaw(cgroup):
    (cgroup.folder / "freezer.state").write_text("THAWED")


def gone(pid):
    deadline = time.monotonic() + 5
    while ProcFs("/proc").process(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not ProcFs("/proc").process(pid)


def test_s20_what_cannot_be_killed_is_counted_named_and_left(frozen, node):
    def stuck(emit):
        emit({"driver_version": "told before"})
        (frozen.folder / "cgroup.procs").write_text(str(os.getpid()))

    begin = time.monotonic()
    answers, abandoned = Watchdog(StateDir(str(node.state_dir)), 1.0).collect({"nvml": stuck})
    assert time.monotonic() - begin < 1.5
    assert answers["nvml"].items == [{"driver_version": "told before"}]
    [entry] = abandoned
    assert entry["source"] == "nvml" and ProcFs("/proc").alive(entry["pid"], entry["start_ticks"])

    told = node.info()
    assert [(one["source"], one["pid"]) for one in told["abandoned"]] == [("nvml", entry["pid"])]
    assert f"pid {entry['pid']}, hangs since" in told["missing"][0]["why"]
    assert len(told["gpus"]) == 3, "known from the driver"
    assert told["kernel_log"], "the other sources are read"

    thaw(frozen)
    os.waitpid(entry["pid"], 0)
    told = node.info()
    assert (told["abandoned"], told["missing"]) == ([], [])
    assert told["gpus"][0]["serial"]


def test_s20_the_task_ends_all_the_same(frozen, node):
    """The whole module, as Ansible runs it: its answer is there, and its output closed, while its child is stuck."""
    node.sim.hang("nvmlInit", None)
    arguments = json.dumps({"ANSIBLE_MODULE_ARGS": node.arguments("gpu_info", timeout_seconds=3)})
    module = subprocess.Popen(
        [sys.executable, "-m", "ansible_collections.gpuops.remediation.plugins.modules.gpu_info"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    module.stdin.write(arguments)
    module.stdin.close()
    proc = ProcFs("/proc")
    begin = time.monotonic()
    while time.monotonic() < begin + 2.5:  # the other sources end at once, so that one child is left
        children = [found.pid for found in map(proc.process, proc.pids()) if found and found.parent == module.pid and found.state != "Z"]
        if len(children) == 1 and time.monotonic() > begin + 1.5:
            break
        time.sleep(0.05)
    (frozen.folder / "cgroup.procs").write_text(str(children[0]))
    told = json.loads(module.stdout.read())
    assert module.wait(5) == 0
    assert time.monotonic() - begin < 5
    assert [one["pid"] for one in told["abandoned"]] == children
    assert len(told["gpus"]) == 3
    thaw(frozen)
    assert gone(children[0])
