# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._gpu import capabilities, open_files
from ansible_collections.gpuops.remediation.plugins.module_utils._gpu.capabilities import Held
from ansible_collections.gpuops.remediation.plugins.module_utils._node.procfs import ProcFs

HOLD = "import os, sys; [os.open(path, os.O_RDONLY) for path in sys.argv[1:]]; print('open', flush=True); sys.stdin.read()"
FILES = {"gpu1/mig/gi2/access": 156, "gpu1/mig/gi2/ci0/access": 157, "gpu0/mig/gi13/access": 120, "mig/config": 1}


@pytest.fixture
def node(tmp_path):
    (tmp_path / "dev/nvidia-caps").mkdir(parents=True)
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-caps/nvidia-cap156", "nvidia-caps/nvidia-cap157", "nvidia-caps/nvidia-cap1"):
        (tmp_path / "dev" / name).touch()
    for name, number in FILES.items():
        path = tmp_path / "proc/driver/nvidia/capabilities" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"DeviceFileMinor: {number}\nDeviceFileMode: 292\nDeviceFileModify: 1\n")
    return tmp_path


@pytest.fixture
def hold(node):
    started = []

    def start(*names):
        paths = [str(node / "dev" / name) for name in names]
        process = subprocess.Popen([sys.executable, "-c", HOLD, *paths], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout.readline() == b"open\n"
        os.symlink(f"/proc/{process.pid}", node / "proc" / str(process.pid))
        return process.pid

    yield start
    for process in started:
        process.communicate()


def places(node):
    return ProcFs(str(node / "proc")), str(node / "dev")


def test_a_device_file_is_known_by_what_the_driver_says_of_it_and_one_that_nobody_has_made_is_held_by_nobody(node):
    assert set(capabilities.files(*places(node)).values()) == {Held(0), Held(1), Held(1, 2), Held(1, 2, 0)}


def test_without_mig_there_are_the_gpus(tmp_path):
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia3").touch()
    assert list(capabilities.files(*places(tmp_path)).values()) == [Held(3)]


def test_who_has_which_open(node, hold):
    worker = hold("nvidia1", "nvidiactl", "nvidia-caps/nvidia-cap156", "nvidia-caps/nvidia-cap157")
    monitor = hold("nvidia-caps/nvidia-cap156")
    hold("nvidiactl", "nvidia-caps/nvidia-cap1")
    told = []
    capabilities.collect(*places(node), told.append)
    minors, *told = told
    assert minors == {"minors": [0, 1]}
    assert {one["pid"]: one["held"] for one in told} == {worker: [(1, 2, 0), (1, 2, None), (1, None, None)], monitor: [(1, 2, None)]}
    assert {one["process"]["executable"] for one in told} == {os.path.realpath(sys.executable)}


def test_those_that_were_found_are_told_although_others_could_not_be_looked_into(node, hold, monkeypatch):
    pid, seen = hold("nvidia0"), []
    of = open_files._of

    def refused(folder, devices):
        if folder.endswith("/1/fd"):
            raise PermissionError(folder)
        return of(folder, devices)

    os.symlink("/proc/self", node / "proc" / "1")
    monkeypatch.setattr(open_files, "_of", refused)
    with pytest.raises(PermissionError, match="1 processes"):
        capabilities.collect(*places(node), seen.append)
    assert [one["pid"] for one in seen[1:]] == [pid]
