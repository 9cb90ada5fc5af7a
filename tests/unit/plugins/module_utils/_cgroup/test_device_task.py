# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What is planned, done and refused, on folders like cgroups, with filters in memory. In a real kernel: tests/integration/bpf/test_devices.py."""

from __future__ import annotations

import json
import os

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.device_filter import Filter
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.device_program import REST
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.errors import Unsupported
from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup import device_task
from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.device_task import filter_devices
from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.devices import Device
from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.find import NoCgroup
from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.limit_files import NoController
from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.proof import NotProven
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.errors import LockLost
from ansible_collections.gpuops.remediation.plugins.module_utils._node.lock import FileLock
from ansible_collections.gpuops.remediation.plugins.module_utils._node.procfs import NodeUnreadable, ProcFs
from ansible_collections.gpuops.remediation.plugins.module_utils._node.statedir import NotAlone, StateDir

UNIT = "/system.slice/train.service"
CONTAINER = f"/system.slice/docker-{'4f' * 32}.scope"
SSH = "/system.slice/sshd.service"
TARGETS = ("cgroup", "unit", "container", "pid")
DEVICES = "Character devices:\n  1 nvidia-caps\n195 nvidia\n\nBlock devices:\n"


class Filters:
    """By the cgroup's id; None is one whose cgroup has ended."""

    def __init__(self):
        self.there = {}
        self.done = []

    def __call__(self, _bpffs_dir):
        return self

    def ids(self):
        return sorted(self.there)

    def read(self, number):
        return self.there[number]

    def attach(self, number, cgroup, rules):
        assert os.stat(cgroup).st_ino == number
        self.put("attach", number, Filter(dict(rules), True, {REST: 0}))

    def replace(self, number, rules):
        self.put("replace", number, Filter(dict(rules), True, self.there[number].denied))

    def remove(self, number):
        self.done.append(("remove", number))
        del self.there[number]

    def put(self, action, number, filter_):
        self.done.append((action, number))
        self.there[number] = filter_

    def count(self, number, *denied):
        have = self.there[number]
        self.there[number] = Filter(have.rules, have.current, {**have.denied, **dict(denied)})


class Node:
    def __init__(self, folder):
        self.folder, self.root, self.proc = folder, folder / "cgroup", folder / "proc"
        for path in (UNIT, CONTAINER, f"{UNIT}/worker", SSH):
            self.cgroup(path).mkdir(parents=True, exist_ok=True)
            (self.cgroup(path) / "cgroup.procs").write_text("")
        (self.root / "cgroup.controllers").write_text("")
        self.proc.mkdir()
        (self.proc / "devices").write_text(DEVICES)
        (self.proc / "sys").symlink_to("/proc/sys")

    def cgroup(self, path=UNIT):
        return self.root / path.strip("/")

    def id(self, path=UNIT):
        return self.cgroup(path).stat().st_ino

    def process(self, pid, path):
        folder = self.proc / str(pid)
        folder.mkdir()
        (folder / "stat").write_text(f"{pid} (train) S 1 {'0 ' * 17}99")
        (folder / "cgroup").write_text(f"0::{path}\n")
        with open(self.cgroup(path) / "cgroup.procs", "a") as file:
            file.write(f"{pid}\n")
        return folder

    def run(self, check_mode=False, **options):
        params = {
            **dict.fromkeys((*TARGETS, "start_ticks", "gpus", "mig_instances", "devices", "lock_token", "lock_holder")),
            "state": "present",
            "modeset": False,
            "deny_others": False,
            "protect": [],
            "timeout_seconds": 0.2,
            "bpffs_dir": "/nowhere",
            "proc_root": str(self.proc),
            "cgroup_root": str(self.root),
            "state_dir": str(self.folder / "state"),
            "dev_root": "/dev",
            "kmsg_path": "/dev/kmsg",
            "nvml_library": "",
            "incident_id": "inc-1",
            "why": "too curious",
            **options,
        }
        if all(params[name] is None for name in TARGETS):
            params["cgroup"] = UNIT
        return filter_devices(params, check_mode)

    def journal(self):
        return [json.loads(line) for line in (self.folder / "state/journal.jsonl").read_text().splitlines()]


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path)


@pytest.fixture(autouse=True)
def filters(monkeypatch):
    found = Filters()
    monkeypatch.setattr(device_task, "DeviceFilters", found)
    monkeypatch.setattr(device_task.device_filter, "require", lambda bpffs_dir: None)
    return found


def test_attached_replaced_and_removed_as_predicted_and_written_down(node, filters):
    wanted = {"attach": {"devices": ["c 1:3"]}, "replace": {"devices": ["c 1:5"], "deny_others": True}, "remove": {"state": "absent"}}
    for action, options in wanted.items():
        had = list(filters.done)
        predicted = node.run(check_mode=True, **options)
        assert filters.done == had
        assert node.run(**options) == predicted and filters.done == [*had, (action, node.id())]
        assert node.run(**options)["changed"] is False
    assert [(line["action"], line["status"], line["target"]) for line in node.journal()] == [
        (action, status, UNIT) for action in wanted for status in ("intended", "applied")
    ]
    first = node.journal()[0]
    assert (first["incident_id"], first["why"], first["before"]) == ("inc-1", "too curious", None)
    assert first["after"] == {
        "allowed": [{"device": "c 1:3", "path": "/dev/nvidia-caps/nvidia-cap3"}],
        "guarded_majors": [1, 195],
        "deny_others": False,
    }


def test_undone(node):
    before = node.run(devices=["b 8:*", "c 1:3"])
    assert before["undo"] == {"state": "absent"}
    undo = node.run(gpus=[])["undo"]
    assert undo == {"state": "present", "devices": ["b 8:*", "c 1:3"], "deny_others": False}
    assert node.run(**undo)["after"] == before["after"]


def test_a_driver_that_was_loaded_anew_is_guarded_by_its_new_numbers(node):
    node.run(gpus=[])
    (node.proc / "devices").write_text(DEVICES.replace("1 nvidia-caps", "9 nvidia-caps"))
    assert node.run(gpus=[])["after"]["filter"]["guarded_majors"] == [9, 195]


def test_counts_of_denied_devices(node, filters):
    node.run(gpus=[])
    assert node.run(gpus=[])["denied"] == []
    filters.count(node.id(), (Device("c", 195, 9).key, 2), (Device("c", 1, 3).key, 5), (REST, 7))
    told = [
        {"device": "c 1:3", "path": "/dev/nvidia-caps/nvidia-cap3", "opens": 5},
        {"device": "c 195:9", "path": "/dev/nvidia9", "opens": 2},
        {"device": None, "path": None, "opens": 7},
    ]
    assert node.run(gpus=[], check_mode=True)["denied"] == told
    assert node.run(devices=["c 1:3"])["denied"] == told
    assert node.run(state="absent")["denied"] == told


def test_what_ended_before_this_run_goes_and_what_ends_meanwhile_does_not_fail_it(node, filters):
    """It goes with the next run; this one is about something else."""
    filters.there.update({5: None, 7: Filter({}, True, {REST: 0})})
    attach = filters.attach

    def attach_while_another_ends(*arguments):
        filters.there[7] = None
        attach(*arguments)

    filters.attach = attach_while_another_ends
    assert [step["action"] for step in node.run(gpus=[])["actions"]] == ["remove", "attach"]
    assert filters.done == [("remove", 5), ("attach", node.id())]
    assert node.run(gpus=[])["before"]["left_over"] == ["7"]


def test_the_cgroup_has_to_be_there_unless_nothing_is_wanted_of_it(node):
    for target in ({"cgroup": "/gone.service"}, {"container": "ab" * 6}, {"pid": 1 << 22}):
        with pytest.raises(NoCgroup):
            node.run(gpus=[], **target)
        told = node.run(state="absent", **target)
        assert (told["changed"], told["after"]["cgroup"], told["undo"]) == (False, None, {"state": "absent"})
    for target in ({"container": "4f"}, {"unit": "train.service"}):  # no name of one, and no systemd
        with pytest.raises(NoCgroup):
            node.run(state="absent", **target)


def test_by_container_and_by_process(node, filters):
    assert node.run(container="4f" * 6, gpus=[])["after"]["cgroup"] == CONTAINER
    node.process(4711, f"{UNIT}/worker")
    (node.proc / "4711/fd").mkdir()
    assert node.run(pid=4711, start_ticks=99, gpus=[])["after"]["cgroup"] == UNIT
    assert filters.done == [("attach", node.id(CONTAINER)), ("attach", node.id())]


def test_who_still_has_denied_devices_open(node):
    folder = node.process(4711, f"{UNIT}/worker")
    node.process(4712, UNIT)  # which is just ending, and has no files any more
    (node.cgroup() / "cgroup.procs").write_text("4712\n4713\n")  # the second has ended
    (folder / "fd").mkdir()
    for number, path in enumerate(("/dev/null", "/dev/zero", "/dev/zero", "/etc/passwd", "/dev/tty")):
        (folder / "fd" / str(number)).symlink_to(path)
    zero = {"pid": 4711, "start_ticks": 99, "name": "train", "device": "c 1:5", "path": "/dev/zero"}
    assert node.run(devices=["/dev/null"], check_mode=True)["still_open"] == [zero]
    assert node.run(devices=["/dev/null"])["still_open"] == [zero]
    assert node.run(state="absent")["still_open"] == []


def test_open_files_that_cannot_be_read_are_no_empty_list(node):
    (node.process(4711, UNIT) / "fd").write_text("no folder")
    with pytest.raises(NodeUnreadable, match="what pid 4711 has open"):
        node.run(gpus=[])


def test_refused_is_what_is_never_touched_but_not_to_remove_ours_from_it(node, filters):
    for options in ({"cgroup": SSH}, {"protect": ["train.service"]}):
        with pytest.raises(NotProven, match="is left alone: it is never touched"):
            node.run(gpus=[], **options)
    filters.there[node.id(SSH)] = Filter({}, True, {REST: 0})
    assert node.run(state="absent", cgroup=SSH)["changed"] is True


def test_the_lock_is_kept_before_each_write(node, filters):
    state, boot_id = StateDir(str(node.folder / "state")), ProcFs("/proc").boot_id()
    token = FileLock(state, boot_id).take("run-1").token
    node.run(gpus=[], lock_token=token, lock_holder="run-1")
    FileLock(state, boot_id).take("run-2", token + 1)
    with pytest.raises(LockLost):
        node.run(state="absent", lock_token=token, lock_holder="run-1")
    assert filters.done == [("attach", node.id())]


def test_one_run_on_a_node_at_a_time(node):
    with StateDir(str(node.folder / "state")).alone("cgroup_devices.lock", 0), pytest.raises(NotAlone):
        node.run(gpus=[])


def test_what_the_kernel_can_is_asked_only_when_something_has_to_be_done(node, filters, monkeypatch):
    def refuse(_bpffs_dir):
        raise Unsupported("no")

    monkeypatch.setattr(device_task.device_filter, "require", refuse)
    assert node.run(state="absent")["changed"] is False
    with pytest.raises(Unsupported):
        node.run(gpus=[], check_mode=True)
    filters.there[5] = None
    with pytest.raises(Unsupported):
        node.run(state="absent")


def test_version_1_is_refused(node):
    (node.root / "cgroup.controllers").unlink()
    with pytest.raises(NoController, match=r"is cgroup v1: .* systemd.unified_cgroup_hierarchy=1"):
        node.run(gpus=[])
