# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What is found, written and refused, on a folder that looks like cgroupfs. With a real kernel and systemd: tests/integration/vm."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from dataclasses import replace

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup import limit_task
from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.find import NoCgroup, slice_path
from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.limit_files import NoController
from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.limit_task import LimitTask
from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.limits import BadLimit, LimitBelowUse, State
from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.proof import NotProven
from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.state import CgroupError
from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.systemd import Unit
from ansible_collections.gpuops.remediation.plugins.module_utils._converge import converge
from ansible_collections.gpuops.remediation.plugins.module_utils._node.journal import Journal
from ansible_collections.gpuops.remediation.plugins.module_utils._node.procfs import ProcFs
from ansible_collections.gpuops.remediation.plugins.module_utils._node.statedir import StateDir

MIB = 1 << 20
CONTAINER = f"/kubepods.slice/kubepods-pod12345678_9abc_def0_1234_56789abcdef0.slice/cri-containerd-{'4f' * 32}.scope"
UNIT = "/system.slice/train.service"
FILES = {
    "cgroup.procs": "",
    "cgroup.subtree_control": "",
    "memory.max": "max",
    "memory.high": "max",
    "memory.low": "0",
    "memory.swap.max": "max",
    "memory.oom.group": "0",
    "memory.current": str(64 * MIB),
    "cpu.max": "max 100000",
    "cpu.weight": "100",
    "pids.max": "max",
    "pids.current": "3",
}


class Tree:
    """cgroupfs as far as it is files, and a systemd that writes them; `reclaims` is what memory in use sinks to below a soft limit."""

    def __init__(self, root):
        self.root = root
        self.units = {}
        self.told = []
        self.held = set()
        self.transient = False
        self.proc = ProcFs("/proc")
        self.cgroup_root = str(root)
        (root / "cgroup.controllers").write_text("cpu io memory pids")
        self.make("")
        for path in (UNIT, CONTAINER):
            self.make(path)

    def make(self, path):
        folder = self.root / path.strip("/")
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in FILES.items():
            (folder / name).write_text(text)

    def file(self, name, path=UNIT):
        return (self.root / path.strip("/") / name).read_text()

    def write(self, name, text, path=UNIT):
        (self.root / path.strip("/") / name).write_text(text)

    # --- as Systemd ---

    def add_unit(self, path, delegates=False):
        name = path.rsplit("/", 1)[1]
        self.units[name] = Unit(name, path, delegates, {"memory_max": "max", "memory_high": "max", "pids_max": "max"})

    def read(self, name):
        return self.units.get(name, Unit(name, "", False, {}))

    def persistent(self, name):
        return self.held

    def set(self, name, values, persistent):
        self.told.append((name, dict(values), persistent))
        unit = self.units[name]
        self.units[name] = Unit(name, unit.cgroup, unit.delegates, {**unit.limits, **values})
        self.held = self.held | set(values) if persistent and not self.transient else self.held
        for key, value in values.items():
            self.write(key.replace("_", "."), str(value), unit.cgroup)
        self.write("memory.oom.group", "0", unit.cgroup)

    def start(self, name):
        self.add_unit(slice_path(name))
        self.make(slice_path(name))

    def stop(self, name):
        folder = self.root / slice_path(name).strip("/")
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()


@pytest.fixture
def tree(tmp_path):
    (tmp_path / "cgroup").mkdir()
    return Tree(tmp_path / "cgroup")


@pytest.fixture
def run(tree, tmp_path):
    def run(systemd=False, check_mode=False, guard=lambda: None, **params):
        names = ("cgroup", "unit", "container", "pid", "start_ticks")
        options = {
            **dict.fromkeys(names),
            "state": "existing",
            "limits": {},
            "persistent": False,
            "force": False,
            "step_down": False,
            "protect": [],
            "timeout_seconds": 0.3,
            **params,
        }
        journal = Journal(StateDir(str(tmp_path / "state")), "boot-1", "run-1", "why")
        task = LimitTask(tree, options, tree if systemd else None, journal, guard)
        return converge(task.read, task.plan, task.predict, task.apply, check_mode=check_mode).result(State.show)

    (tmp_path / "state").mkdir()
    return run


def test_the_kernels_files_are_written(tree, run, tmp_path):
    wanted = {"memory_max": "128M", "memory_oom_group": True, "cpu_max": "50%", "pids_max": "9", "cpu_weight": None}
    predicted = run(cgroup="system.slice/../system.slice/train.service/", limits=wanted, check_mode=True)
    assert tree.file("pids.max") == "max" and not (tmp_path / "state" / "journal.jsonl").exists()
    assert run(cgroup=UNIT, limits=wanted) == predicted
    assert [tree.file(name) for name in ("memory.max", "memory.oom.group", "cpu.max", "pids.max")] == [
        str(128 * MIB),
        "1",
        "50000 100000",
        "9",
    ]
    assert run(cgroup=UNIT, limits=wanted)["changed"] is False
    lines = [json.loads(line) for line in (tmp_path / "state" / "journal.jsonl").read_text().splitlines()]
    assert [(line["status"], line["before"]["pids_max"], line["after"]["pids_max"]) for line in lines] == [
        ("intended", "max", 9),
        ("applied", "max", 9),
    ]


def test_systemd_is_told_what_it_manages(tree, run):
    tree.add_unit(UNIT)
    done = run(systemd=True, unit="train.service", limits={"memory_max": "128M", "pids_max": "9"}, persistent=True)
    assert tree.told == [("train.service", {"memory_max": 128 * MIB, "pids_max": 9}, True)]
    assert (done["before"]["kept"], done["after"]["kept"]) == ({}, {"memory_max": "persistent", "pids_max": "persistent"})
    run(systemd=True, unit="train.service", limits={"pids_max": "8"})
    assert tree.told[1:] == [("train.service", {"pids_max": 8}, True)], "a file in /run would lose to the one in /etc"


def test_systemd_clears_oom_group_and_gets_it_back(tree, run):
    tree.add_unit(UNIT)
    tree.write("memory.oom.group", "1")
    done = run(systemd=True, cgroup=UNIT, limits={"memory_max": "128M"})
    assert tree.file("memory.oom.group") == "1" and done["after"]["limits"]["memory_oom_group"] is True
    tree.write("memory.oom.group", "0")
    run(systemd=True, cgroup=UNIT, limits={"memory_max": "256M", "memory_oom_group": True})
    assert tree.file("memory.oom.group") == "1"


def test_below_a_unit_that_delegates_systemd_is_not_told(tree, run):
    tree.add_unit(UNIT, delegates=True)
    tree.make(f"{UNIT}/inner")
    assert run(systemd=True, cgroup=f"{UNIT}/inner", limits={"pids_max": "9"})["after"]["managed_by"] == "cgroupfs"
    assert tree.told == []


@pytest.mark.parametrize(
    ("path", "delegates"),
    [
        pytest.param(f"{UNIT}/inner", False, id="systemd takes its controllers away again"),
        pytest.param(f"{UNIT}/train.service", True, id="another systemd's"),
    ],
)
def test_what_is_not_delegated_is_not_limited(tree, run, path, delegates):
    tree.add_unit(UNIT, delegates)
    tree.make(path)
    with pytest.raises(CgroupError, match="is not delegated"):
        run(systemd=True, cgroup=path, limits={"pids_max": "9"}, check_mode=True)


def test_the_limits_of_what_ends_with_the_boot_end_with_it(tree, run):
    tree.add_unit(UNIT)
    tree.transient = True
    tree.units["train.service"] = replace(tree.units["train.service"], transient=True)
    assert run(systemd=True, unit="train.service", limits={"pids_max": "9"}, persistent=True)["after"]["kept"] == {"pids_max": "runtime"}


def test_what_systemd_cannot_keep_is_refused_in_check_mode_too(tree, run):
    tree.add_unit(UNIT)
    with pytest.raises(BadLimit, match="no whole percentage"):
        run(systemd=True, unit="train.service", limits={"cpu_max": "33333 100000"}, check_mode=True)


def test_a_unit_without_a_memory_controller_gets_oom_group_once_it_has_one(tree, run, monkeypatch):
    tree.add_unit(UNIT)
    gone = {name: tree.root / UNIT[1:] / name for name in FILES if name.startswith("memory")}
    for file in gone.values():
        file.unlink()
    tells = tree.set
    monkeypatch.setattr(tree, "set", lambda *told: tree.make(UNIT) or tells(*told))
    done = run(systemd=True, unit="train.service", limits={"memory_max": "128M", "memory_oom_group": True})
    assert done["after"]["limits"]["memory_oom_group"] is True


def test_a_container_and_a_process_are_found(tree, run):
    assert run(container="4f4f4f4f4f4f", limits={})["before"]["cgroup"] == CONTAINER
    tree.make(CONTAINER.replace("4f" * 32, "4f" * 31 + "aa"))
    with pytest.raises(NoCgroup, match="2 containers"):
        run(container="4f4f4f4f4f4f", limits={})
    with pytest.raises(NoCgroup, match="0 containers"):
        run(container="ab" * 6, limits={})
    with pytest.raises(NoCgroup, match="fewer than 12"):
        run(container="", limits={})
    ended = subprocess.Popen(["true"])
    ended.wait()
    for pid, ticks in ((os.getpid(), 1), (ended.pid, None)):
        with pytest.raises(NoCgroup):
            run(pid=pid, start_ticks=ticks)


@pytest.mark.parametrize(
    ("params", "why"),
    [
        ({"cgroup": "/nowhere.slice"}, "there is no cgroup"),
        ({"unit": "train.service"}, "systemd does not run here"),
        ({"unit": "train", "systemd": True}, "whole name"),
        ({"unit": "nowhere.service", "systemd": True}, "does not run here"),
    ],
)
def test_what_is_not_there(run, params, why):
    with pytest.raises(NoCgroup, match=why):
        run(**params)


def test_a_slice_is_made_by_systemd_and_removed_when_it_is_empty(tree, run):
    made = run(systemd=True, cgroup="/a.slice/a-b.slice", state="present", limits={"pids_max": "9"})
    assert [step["action"] for step in made["actions"]] == ["create", "set"]
    (tree.root / "a.slice/a-b.slice/below").mkdir()
    with pytest.raises(CgroupError, match="is not empty"):
        run(systemd=True, cgroup="/a.slice/a-b.slice", state="absent")
    (tree.root / "a.slice/a-b.slice/below").rmdir()
    assert run(systemd=True, cgroup="/a.slice/a-b.slice", state="absent")["after"]["exists"] is False


def test_a_cgroup_is_made_with_the_controllers_that_it_needs(tree, run, monkeypatch):
    monkeypatch.setattr(
        limit_task.LimitFiles, "write", lambda self, path, name, value: tree.make(path) or tree.write("pids.max", "9", path)
    )
    tree.add_unit(UNIT, delegates=True)
    run(systemd=True, cgroup=f"{UNIT}/work", state="present", limits={"pids_max": "9"})
    assert tree.file("cgroup.subtree_control") == "+pids"
    with pytest.raises(CgroupError, match="there is no"):
        run(systemd=True, cgroup=f"{UNIT}/no/work", state="present", limits={"pids_max": "9"})


@pytest.mark.parametrize("delegates", [None, False])
def test_nothing_is_made_beside_what_systemd_manages(tree, run, delegates):
    if delegates is not None:
        tree.add_unit(UNIT, delegates)
    with pytest.raises(CgroupError, match="systemd manages what is above it"):
        run(systemd=True, cgroup="/beside" if delegates is None else f"{UNIT}/below", state="present", limits={})


def test_removing_ends_no_unit(tree, run):
    tree.add_unit(UNIT)
    with pytest.raises(CgroupError, match="ends with its unit"):
        run(systemd=True, cgroup=UNIT, state="absent")


def reclaiming(tree, then):
    """The kernel's part: what is in use sinks once the soft limit is there."""

    def watch():
        ends = time.monotonic() + 10
        while tree.file("memory.high") in ("max", "") and time.monotonic() < ends:
            time.sleep(0.01)
        tree.write("memory.current", str(then))

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


@pytest.mark.parametrize("systemd", [False, True])
def test_s15_stepping_down(tree, run, systemd):
    tree.add_unit(UNIT)
    kernel = reclaiming(tree, 30 * MIB)
    done = run(systemd=systemd, cgroup=UNIT, limits={"memory_max": "32M"}, step_down=True, persistent=True, timeout_seconds=10)
    kernel.join()
    assert [step["action"] for step in done["actions"]] == ["step_down", "set"]
    assert (tree.file("memory.max"), tree.file("memory.high")) == (str(32 * MIB), "max")
    if systemd:
        asked = [(values, persistent) for _name, values, persistent in tree.told]
        assert asked == [({"memory_max": 32 * MIB}, True)], "while the kernel reclaims, systemd would wait with it"


def test_s15_stepping_down_goes_by_strides_so_that_no_write_takes_long(tree, run, monkeypatch):
    monkeypatch.setattr(limit_task, "_STRIDE_BYTES", 10 * MIB)
    highs = []

    def guard():
        highs.append(tree.file("memory.high"))
        if highs[-1] != "max":
            tree.write("memory.current", highs[-1])

    run(cgroup=UNIT, limits={"memory_max": "32M"}, step_down=True, timeout_seconds=20, guard=guard)
    assert highs[2:6] == [str(size * MIB) for size in (54, 44, 34, 30)]


def test_s15_stepping_down_in_vain_leaves_everything_as_it_was(tree, run):
    tree.write("memory.high", str(200 * MIB))
    with pytest.raises(LimitBelowUse, match="did not sink") as failed:
        run(cgroup=UNIT, limits={"memory_max": "32M"}, step_down=True)
    assert failed.value.details["usage"]["memory_current"] == 64 * MIB
    assert (tree.file("memory.max"), tree.file("memory.high")) == ("max", str(200 * MIB))


def test_s15_what_grows_meanwhile_is_seen_before_the_write(tree, run):
    calls = iter(range(100))

    def guard():
        if next(calls) == 1:  # before the write
            tree.write("memory.current", str(200 * MIB))

    with pytest.raises(LimitBelowUse):
        run(cgroup=UNIT, limits={"memory_max": "128M"}, guard=guard)
    assert tree.file("memory.max") == "max"


@pytest.mark.parametrize("when", [pytest.param(4, id="while it waits"), pytest.param(3, id="before the limit itself")])
def test_s5_a_lock_that_is_lost_leaves_no_soft_limit(tree, run, monkeypatch, when):
    monkeypatch.setattr(limit_task, "_RENEW_SECONDS", 0.05)
    calls = iter(range(100))

    class Lost(Exception):
        pass

    def guard():
        call = next(calls)
        if call == 2 and when == 3:
            tree.write("memory.current", str(MIB))
        if call == when:  # calls are: read, step down, its one stride, then while it waits or for the set
            assert tree.file("memory.high") != "max"
            raise Lost

    with pytest.raises(Lost):
        run(cgroup=UNIT, limits={"memory_max": "32M"}, step_down=True, timeout_seconds=20, guard=guard)
    assert (tree.file("memory.max"), tree.file("memory.high")) == ("max", "max")


def test_s10_the_task_itself_is_not_limited(tree, run):
    tree.write("cgroup.procs", f"{os.getpid()}\n")
    for check_mode in (True, False):
        with pytest.raises(NotProven, match="this very task"):
            run(cgroup=UNIT, limits={"pids_max": "9"}, check_mode=check_mode)
    assert tree.file("pids.max") == "max"


@pytest.mark.parametrize(
    ("controllers", "why"),
    [
        ("cpu io", "has no controller memory"),
        (None, r"is cgroup v1: .* systemd.unified_cgroup_hierarchy=1"),
        ("hybrid", "v1 with v2 beside it"),
    ],
)
def test_version_1_and_missing_controllers(tree, run, controllers, why):
    listed = tree.root / "cgroup.controllers"
    listed.unlink()
    if controllers == "hybrid":
        (tree.root / "unified").mkdir()
        (tree.root / "unified" / "cgroup.controllers").touch()
    elif controllers:
        listed.write_text(controllers)
    with pytest.raises(NoController, match=why):
        run(cgroup=UNIT, limits={"memory_max": "1G"})


def test_a_controller_that_is_not_enabled_for_the_cgroup(tree, run):
    (tree.root / UNIT[1:] / "memory.max").unlink()
    with pytest.raises(NoController, match=r"memory is not enabled in .*system\.slice/cgroup\.subtree_control"):
        run(cgroup=UNIT, limits={"memory_max": "1G"}, check_mode=True)
    assert run(cgroup=UNIT, limits={"memory_max": "max"})["changed"] is False


@pytest.mark.parametrize(
    ("name", "path"),
    [("a.slice", "/a.slice"), ("a-b-c.slice", "/a.slice/a-b.slice/a-b-c.slice"), ("-.slice", None), ("a.service", None)],
)
def test_where_systemd_puts_a_slice(name, path):
    assert slice_path(name) == path
