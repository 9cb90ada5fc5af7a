# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import os

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._mig import boot
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.boot_params import boot_params
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.errors import Refused
from ansible_collections.gpuops.remediation.plugins.module_utils._node.lock import FileLock
from ansible_collections.gpuops.remediation.plugins.module_utils._node.statedir import StateDir

WELL = {"pci_bus_id": "0000:00:06.0", "uuid": "GPU-1", "error": None, "steps": [], "changed": False, "reset_required": False}


class Task:
    """A layout task in place of the real one: its answers, or errors, one after the other."""

    answers = ()
    seen = ()

    def __init__(self, node, request, options, journal, keep_lock):
        self.seen.append(options)

    def run(self, check_mode):
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return {"gpus": answer}, []


@pytest.fixture
def start(monkeypatch, tmp_path):
    """Runs the program with these answers; what it told, and its exit status."""
    (tmp_path / "proc/sys/kernel/random").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/random/boot_id").write_text("boot-1\n")
    (tmp_path / "proc/stat").write_text("btime 1000\n")
    common = dict.fromkeys(("kmsg_path", "dev_root", "cgroup_root", "nvidia_smi", "nvidia_modprobe"), "/nowhere")
    common.update(
        nvml_library="none.so",
        state_dir=str(tmp_path / "state"),
        proc_root=str(tmp_path / "proc"),
        allow_reset=False,
        timeout_seconds=9,
        given=["3g.71gb@0"],
        may_move=False,
    )
    monkeypatch.setattr(boot, "LayoutTask", Task)
    monkeypatch.setattr(boot, "AGAIN_SECONDS", 0.01)
    config = tmp_path / "mig.json"

    def run(*answers, driver_seconds=5):
        params = boot_params({**common, "layouts": [{"counts": {"3g.71gb": 2}}]})
        config.write_text(json.dumps({"mig_layout": params, "kubelet_dir": str(tmp_path), "driver_seconds": driver_seconds}))
        Task.answers, Task.seen, told = list(answers), [], []
        return boot.main(str(config), told.append), told

    return run


def test_a_driver_is_waited_for(start):
    away = Refused("NVML does not answer")
    assert start(away, away, [WELL]) == (0, ["GPU 0000:00:06.0: nothing to do"])
    assert start(away, driver_seconds=0) == (1, ["NVML does not answer"])


def test_who_is_in_the_way_for_a_moment_is_waited_for_and_who_has_it_is_not(start):
    held = {**WELL, "error": {"kind": "mig_busy", "msg": "the mode cannot change while the GPU is in use"}}
    assert start([WELL, held], [held, WELL], [WELL, WELL]) == (0, ["GPU 0000:00:06.0: nothing to do"] * 2)
    assert start([held], driver_seconds=0) == (1, ["GPU 0000:00:06.0: the mode cannot change while the GPU is in use"])
    given = {**held, "error": {**held["error"], "given": ["3g.71gb@0"]}}
    assert start([given])[0] == 1


@pytest.mark.parametrize(
    "trouble, words",
    [({"error": {"msg": "3g.71gb@4 is busy"}}, "3g.71gb@4 is busy"), ({"reset_required": True}, "its mode changes with a reset only")],
)
def test_a_gpu_that_is_not_as_wanted_fails_the_unit(start, trouble, words):
    status, told = start([WELL, {**WELL, **trouble}])
    assert status == 1 and words in told[1]


def test_what_the_kubelet_has_given_is_busy(start, tmp_path):
    """A whole GPU only by a checkpoint of this boot: else a mode that was lost with the boot would never come back."""
    given = {"nvidia.com/mig-3g.71gb": "MIG-1", "nvidia.com/gpu": "GPU-2", "nvidia.com/of-another-plugin": "no:address"}
    entries = [{"PodUID": "a", "ContainerName": "c", "ResourceName": name, "DeviceIDs": {"0": [one]}} for name, one in given.items()]
    checkpoint = tmp_path / "device-plugins/kubelet_internal_checkpoint"
    checkpoint.parent.mkdir()
    checkpoint.write_text(json.dumps({"Data": {"PodDeviceEntries": entries, "RegisteredDevices": {}}}))
    for written, allocated in ((1001, ["MIG-1", "GPU-2"]), (999, ["MIG-1"])):
        os.utime(checkpoint, (written, written))
        assert start([WELL])[0] == 0
        assert [(one.given, one.allocated, one.may_move) for one in Task.seen] == [(["3g.71gb@0"], allocated, False)]
    checkpoint.write_text("{")
    assert start([WELL])[0] == 1 and Task.seen == [], "who has what cannot be told"


def test_another_actors_lock(start, tmp_path):
    FileLock(StateDir(str(tmp_path / "state")), "boot-1").take("run-7")
    status, told = start([WELL])
    assert (status, Task.seen) == (1, []) and "run-7 holds the node's lock" in told[0]


def test_what_has_changed_since_the_last_try(start, tmp_path, monkeypatch):
    """The program may run on a node that is up, whose kubelet gives away what was free, and to which an operator may come."""
    held = {**WELL, "error": {"kind": "mig_busy", "msg": "in use"}}
    lock = FileLock(StateDir(str(tmp_path / "state")), "boot-1")
    monkeypatch.setattr(boot, "_allocated", lambda *_given: [f"MIG-{len(Task.seen)}"])
    monkeypatch.setattr(boot.time, "sleep", lambda _seconds: len(Task.seen) < 2 or lock.take("run-7"))
    status, told = start([held], [held], [WELL])
    assert ([one.allocated for one in Task.seen], status) == ([["MIG-0"], ["MIG-1"]], 1)
    assert "run-7 holds the node's lock" in told[0]
