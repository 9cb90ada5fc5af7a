# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What is done, in which order and how it is judged, against a small world. The same with real processes: tests/integration/node."""

from __future__ import annotations

import itertools
import json
import os
import signal
from types import SimpleNamespace

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup import act, around
from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.act import CgroupTask, State, StillHeld, UnknownGpu, Want
from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.proof import NotProven
from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.state import CgroupError, Member
from ansible_collections.gpuops.remediation.plugins.module_utils._converge import converge
from ansible_collections.gpuops.remediation.plugins.module_utils._errors import RemediationError
from ansible_collections.gpuops.remediation.plugins.module_utils._node.journal import Journal
from ansible_collections.gpuops.remediation.plugins.module_utils._node.procfs import isoformat
from ansible_collections.gpuops.remediation.plugins.module_utils._node.statedir import StateDir

GPU = "GPU-a"
A, B, CONTAINER = "/system.slice/a.service", "/system.slice/b.service", f"/docker/{'4f' * 32}"


class World:
    """Processes by pid, what is frozen, and what NVML says. `ends` is the signal that ends a process; None: nothing does."""

    def __init__(self):
        self.processes = {}
        self.frozen = set()
        self.source, self.lost, self.missing, self.known = "nvml", False, [], True
        self.events = []

    def add(self, pid, cgroup=A, ends=signal.SIGTERM, start=50.0, on_gpu=True, name="train"):
        self.processes[pid] = SimpleNamespace(pid=pid, cgroup=cgroup, ends=ends, start=start, on_gpu=on_gpu, name=name)

    # --- what the adapters ask ---

    def read(self, node, wanted, **_options):
        listed = [
            {"pid": one.pid, "type": "compute", "name": one.name, "executable": None, "start_ticks": one.pid * 10, "cgroup": one.cgroup}
            for one in self.processes.values()
            if one.on_gpu
        ]
        gpu = {"uuid": GPU, "pci_bus_id": "0000:01:00.0", "device_path": "/dev/nvidia0", "lost": self.lost, "errors": []}
        gpu.update(processes=listed if self.source else [], processes_source=self.source)
        return {"gpus": [gpu] if self.known else [], "missing": self.missing}

    def process(self, pid):
        one = self.processes.get(pid)
        return one and SimpleNamespace(
            pid=pid, start_ticks=pid * 10, start_time=one.start, executable=None, name=one.name, state="S", cgroups={"": one.cgroup}
        )

    def alive(self, pid, ticks):
        return pid in self.processes and ticks == pid * 10

    def describe(self, pid):
        return {"name": self.processes[pid].name}

    def ancestors(self, pid):
        return [900]

    def send(self, descriptor, number):
        pid = self.descriptors[descriptor]
        self.events.append((signal.Signals(number).name, pid))
        self.end(pid, number)

    descriptors: dict = {}  # noqa: RUF012

    def open_pid(self, pid):
        if pid not in self.processes:
            return None
        descriptor = os.open(os.devnull, os.O_RDONLY)
        self.descriptors[descriptor] = pid
        return descriptor

    def end(self, pid, number):
        if pid in self.processes and self.processes[pid].ends in (number, signal.SIGTERM) and self.processes[pid].ends is not None:
            del self.processes[pid]

    # --- cgroups ---

    def members(self, path):
        return [Member(one.pid, one.cgroup) for one in self.processes.values() if f"{one.cgroup}/".startswith(f"{path}/")]

    def is_frozen(self, path):
        return path in self.frozen

    def set_frozen(self, path, frozen, until):
        self.events.append(("freeze" if frozen else "thaw", path))
        if path == B:
            return
        (self.frozen.add if frozen else self.frozen.discard)(path)

    def kill(self, path, until):
        self.events.append(("kill", path))
        for member in self.members(path):
            self.end(member.pid, signal.SIGKILL)


@pytest.fixture
def world(monkeypatch):
    own = World()
    cgroups = SimpleNamespace(members=own.members, frozen=own.is_frozen, set_frozen=own.set_frozen, kill=own.kill)
    monkeypatch.setattr(act.Cgroups, "at", lambda root: cgroups)
    monkeypatch.setattr(act.info, "read", own.read)
    for module in (act, around):
        monkeypatch.setattr(module, "ProcFs", lambda root: own)
    monkeypatch.setattr(act.pidfd, "open_pid", own.open_pid)
    monkeypatch.setattr(act.pidfd, "send", own.send)
    monkeypatch.setattr(act, "_KILL_SECONDS", 0.0)
    monkeypatch.setattr(act, "_RENEW_SECONDS", 0.05)
    return own


@pytest.fixture
def run(world, tmp_path):
    def run(state="killed", check_mode=False, guard=lambda: None, timeout=0.6, **options):
        times = {"fault_time": 100.0} if options.get("cgroup") or options.get("pids") else {"stage_started_at": 100.0}
        want = Want(state, **{"gpu": GPU, "grace_seconds": 0.2, **times, **options})
        node = SimpleNamespace(cgroup_root="/sys/fs/cgroup", proc=world)
        task = CgroupTask(node, want, Journal(StateDir(str(tmp_path)), "boot-1", "run-1", "why"), guard, timeout)
        with task.holding():
            return converge(task.read, task.plan, task.predict, task.apply, check_mode=check_mode).result(State.show)

    return run


def test_holders_are_asked_first_and_their_cgroups_are_left_empty(world, run, tmp_path):
    world.add(1)
    world.add(2, cgroup=B, ends=signal.SIGKILL)
    world.add(3, cgroup=B, on_gpu=False)
    world.add(4, cgroup="/system.slice/other.service", on_gpu=False)
    done = run()
    assert world.events == [("SIGTERM", 1), ("SIGTERM", 2), ("kill", B)]
    assert [one["processes"] for one in done["after"]["cgroups"]] == [[], []]
    assert list(world.processes) == [4]
    journal = [json.loads(line) for line in (tmp_path / "journal.jsonl").read_text().splitlines()]
    assert [(line["action"], line["status"]) for line in journal] == [
        (action, status) for action in ("terminate", "terminate", "kill", "kill") for status in ("intended", "applied")
    ]
    assert journal[1]["after"] == {"frozen": False, "processes": []}
    assert run()["changed"] is False


def test_check_mode_predicts_what_is_done(world, run):
    world.add(1)
    predicted = run(check_mode=True)
    assert world.events == [] and 1 in world.processes
    assert run() == predicted


def test_freeze_and_thaw(world, run):
    world.add(1, cgroup=CONTAINER)
    suspects = [{"pid": 1, "start_ticks": 10}]
    predicted = run("frozen", check_mode=True, pids=suspects)
    assert run("frozen", pids=suspects) == predicted
    assert world.events == [("freeze", CONTAINER)]
    assert run("frozen", pids=suspects)["changed"] is False
    predicted = run("thawed", check_mode=True, cgroup=CONTAINER, gpu=None)
    assert run("thawed", cgroup=CONTAINER, gpu=None) == predicted
    assert run("thawed", cgroup=CONTAINER, gpu=None)["changed"] is False


def test_a_frozen_one_is_killed_at_once(world, run):
    world.add(1)
    world.frozen.add(A)
    assert [step["action"] for step in run(grace_seconds=30)["actions"]] == ["kill"]


def test_a_cgroup_is_killed_at_once(world, run):
    world.add(1, cgroup=CONTAINER)
    world.add(2, cgroup=f"{CONTAINER}/init.scope", on_gpu=False)
    world.add(3, cgroup=A)
    run(cgroup=CONTAINER, grace_seconds=30)
    assert world.events == [("kill", CONTAINER)]
    assert list(world.processes) == [3]


def test_what_does_not_end_is_named(world, run):
    world.add(1, ends=None)
    with pytest.raises(StillHeld, match=r"not killed in time: 1 \(train\)") as failed:
        run()
    assert failed.value.failure()["changed"] is True
    [left] = failed.value.details["left"]
    assert (left["cgroup"], left["holders"], left["processes"][0]["pid"]) == (A, [1], 1)


def test_what_does_not_freeze_is_named(world, run):
    world.add(1, cgroup=B)
    with pytest.raises(StillHeld, match="not frozen in time"):
        run("frozen", cgroup=B)


def test_who_comes_meanwhile_is_named_and_left(world, run, monkeypatch):
    world.add(1)
    end = world.end

    def respawn(pid, number):
        end(pid, number)
        world.add(7, cgroup="/system.slice/new.service", ends=None, start=200.0)

    monkeypatch.setattr(world, "end", respawn)
    with pytest.raises(StillHeld, match="7"):
        run(timeout=30)
    assert world.events == [("SIGTERM", 1)]


def test_nvml_may_take_a_moment_to_notice(world, run, monkeypatch):
    world.add(1)
    stale = iter([True])
    read = world.read

    def late(*args, **options):
        told = read(*args, **options)
        if 1 not in world.processes and next(stale, False):
            told["gpus"][0]["processes"] = [{"pid": 1, "type": "compute", "name": None, "start_ticks": None, "cgroup": None}]
        return told

    monkeypatch.setattr(act.info, "read", late)
    assert run(timeout=5)["changed"]


def test_the_gpu_cannot_be_read_back(world, run, monkeypatch):
    world.add(1)
    kill = world.send

    def lose(*args):
        kill(*args)
        world.source = None

    monkeypatch.setattr(act.pidfd, "send", lose)
    with pytest.raises(StillHeld, match="neither NVML nor the device file"):
        run()


@pytest.mark.parametrize(
    ("change", "options", "why"),
    [
        pytest.param({"source": None}, {}, "does not say who uses", id="nobody knows who uses the GPU"),
        pytest.param({"source": "device_file"}, {}, "does not say who uses", id="NVML hangs"),
        pytest.param({"known": False, "missing": [{"source": "nvml", "why": "hangs"}]}, {}, "does not answer", id="which GPU?"),
        pytest.param({}, {"pids": [{"pid": 2, "start_ticks": 20}]}, "pid 2 is on GPU", id="a suspect elsewhere"),
        pytest.param({}, {"cgroup": B}, f"no process of {B} is on GPU", id="a cgroup without holder"),
        pytest.param({}, {"cgroup": "/system.slice"}, "neither one container's", id="a slice"),
        pytest.param({}, {"stage_started_at": 50.0}, "started after", id="too young"),
        pytest.param({}, {"protect": ["a.*"]}, "never touched", id="protected"),
    ],
)
def test_s10_nothing_is_done_without_proof(world, run, change, options, why, tmp_path):
    world.add(1)
    world.add(2, cgroup=B, on_gpu=False)
    vars(world).update(change)
    for state, check_mode in itertools.product(("killed", "frozen"), (True, False)):
        with pytest.raises(NotProven, match=why):
            run(state, check_mode=check_mode, **options)
    assert world.events == [] and not (tmp_path / "journal.jsonl").exists()


def test_s10_a_process_that_went_between_the_list_and_the_proof(world, run, monkeypatch):
    world.add(1)
    monkeypatch.setattr(act.pidfd, "open_pid", lambda pid: None)
    with pytest.raises(NotProven, match="cannot be found under its pid"):
        run()


def test_s10_nothing_left_to_prove(world, run):
    assert run()["changed"] is False
    assert run(pids=[{"pid": 9, "start_ticks": 90}])["changed"] is False
    world.source, world.lost = "device_file", True
    assert run()["changed"] is False


def test_s10_nobody_in_a_root_is_walked_through(world, run, monkeypatch):
    world.add(1, cgroup="/")
    monkeypatch.setattr(world, "members", lambda path: pytest.fail("the whole tree"))
    with pytest.raises(NotProven, match="neither one container's"):
        run()


def test_an_unknown_gpu(world, run):
    world.known = False
    with pytest.raises(UnknownGpu, match="no GPU GPU-a"):
        run()


@pytest.mark.parametrize("name", ["/dev/nvidia0", "0000:01:00.0"])
def test_other_names_of_a_gpu(world, run, name):
    world.add(1)
    assert run(gpu=name)["changed"]


def test_allowed_holders_do_not_count(world, run):
    world.add(1, name="nv-hostengine")
    assert run(allowed_holders=["nv-hostengine"])["changed"] is False


def test_s5_the_lock_is_kept_before_each_write_and_while_waiting(world, run):
    class Lost(RemediationError):
        pass

    world.add(1, ends=signal.SIGKILL)
    calls = iter(range(100))

    def guard():
        if next(calls) == 4:  # read, terminate, kill, waiting, waiting
            raise Lost("lost")

    with pytest.raises(Lost):
        run(guard=guard, grace_seconds=5, timeout=20)
    assert world.events == [("SIGTERM", 1)]


def test_a_cgroup_that_is_gone_when_it_is_killed(world, run, monkeypatch):
    world.add(1, ends=signal.SIGKILL)

    def gone(path, until):
        world.processes.clear()
        raise CgroupError("gone")

    cgroups = act.Cgroups.at("")
    monkeypatch.setattr(cgroups, "kill", gone)
    assert run(grace_seconds=0.1)["changed"]


def test_wants_come_from_options():
    want = Want.from_params(
        {
            "state": "killed",
            "gpu": GPU,
            "pids": None,
            "allowed_holders": [],
            "protect": [],
            "grace_seconds": 30.0,
            "cgroup": "docker/../../x.service/",
            "fault_time": isoformat(100.0),
            "stage_started_at": None,
        }
    )
    assert (want.cgroup, want.fault_time, want.rules.started_before) == ("/x.service", 100.0, 100.0)


def test_a_free_gpu_is_waited_for_and_nobody_is_touched(world, run, tmp_path, monkeypatch):
    """Without proof too: who only looks needs none."""
    world.add(1, cgroup="/system.slice")
    with pytest.raises(StillHeld, match=r"not free in time: 1 \(train\)") as failed:
        run("free")
    assert failed.value.details["changed"] is False
    assert world.events == [] and not (tmp_path / "journal.jsonl").exists()
    reads = itertools.count()
    read = world.read

    def leaves(*args, **options):
        if next(reads) == 1:
            world.processes.clear()
        return read(*args, **options)

    monkeypatch.setattr(act.info, "read", leaves)
    assert run("free", timeout=5)["changed"] is False


def test_a_gpu_that_nobody_can_tell_of_is_not_free(world, run):
    world.source = None
    with pytest.raises(StillHeld, match="neither NVML nor the device file"):
        run("free")
