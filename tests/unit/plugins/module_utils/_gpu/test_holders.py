# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._gpu import holders, open_files
from ansible_collections.gpuops.remediation.plugins.module_utils._node.procfs import ProcFs

HOLD = "import os, sys; [os.open(path, os.O_RDONLY) for path in sys.argv[1:]]; print('open', flush=True); sys.stdin.read()"


@pytest.fixture
def node(tmp_path):
    (tmp_path / "dev").mkdir()
    (tmp_path / "proc").mkdir()
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / "dev" / name).touch()
    return tmp_path


@pytest.fixture
def hold(node):
    started = []

    def start(*paths):
        process = subprocess.Popen([sys.executable, "-c", HOLD, *map(str, paths)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdout.readline() == b"open\n"
        started.append(process)
        os.symlink(f"/proc/{process.pid}", node / "proc" / str(process.pid))
        return process.pid

    yield start
    for process in started:
        process.communicate()


def collect(node):
    items = []
    holders.collect(ProcFs(str(node / "proc")), str(node / "dev"), items.append)
    return {name: value for item in items for name, value in item.items()}


def test_who_has_which_device_file_open(node, hold):
    other_name = node / "in-the-container"
    os.link(node / "dev" / "nvidia1", other_name)
    both = hold(node / "dev" / "nvidia0", other_name, node / "dev" / "nvidiactl")
    hold(node / "dev" / "nvidia-uvm", "/dev/null")
    told = collect(node)
    assert told["minors"] == [0, 1]
    assert [(one["minor"], one["process"]["pid"], one["process"]["source"]) for one in told["holders"]] == [
        (0, both, "device_file"),
        (1, both, "device_file"),
    ]
    assert told["holders"][0]["process"]["executable"] == os.path.realpath(sys.executable)


def test_a_process_that_has_gone_is_no_error(node):
    os.symlink("/proc/999999999", node / "proc" / "999999999")
    assert collect(node)["holders"] == []


def test_a_process_that_cannot_be_read_is_one(node, monkeypatch):
    """A holder that was not seen must not look like one that has gone."""

    def refused(folder, devices):
        raise PermissionError(folder)

    os.symlink("/proc/self", node / "proc" / "1")
    monkeypatch.setattr(open_files, "_of", refused)
    with pytest.raises(PermissionError, match="1 processes"):
        collect(node)
