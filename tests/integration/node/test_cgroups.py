# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""cgroupfs itself, version 2 and version 1's freezer, with real processes."""

from __future__ import annotations

import os
import time

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.state import CgroupError, Cgroups, CgroupsV1, CgroupsV2, Member

FORKS = "import os, time\nwhile True: os.fork() or time.sleep(0.02)"
SPAWNS = """
import os, time
while True:
    if os.fork() == 0:
        time.sleep(0.3); os._exit(0)
    time.sleep(0.005)
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG) == (0, 0): break
        except ChildProcessError: break
"""


def soon(seconds=5.0):
    return time.monotonic() + seconds


def state(pid):
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rsplit(")", 1)[1].split()[0]


def test_which_version(own_cgroup):
    cgroups = Cgroups.at(str(own_cgroup.root))
    assert isinstance(cgroups, CgroupsV2 if own_cgroup.root == own_cgroup.hierarchy else CgroupsV1)


def test_members_and_where_they_are(own_cgroup):
    cgroups = Cgroups.at(str(own_cgroup.root))
    assert cgroups.members(own_cgroup.path) == []
    outer, inner = own_cgroup.start(), own_cgroup.start(below="a/b")
    assert sorted(cgroups.members(own_cgroup.path), key=lambda one: one.path) == [
        Member(outer.pid, own_cgroup.path),
        Member(inner.pid, f"{own_cgroup.path}/a/b"),
    ]
    assert cgroups.members("/gpuops-test-nowhere") == []


def test_freeze_thaw_and_kill(own_cgroup):
    cgroups = Cgroups.at(str(own_cgroup.root))
    processes = [own_cgroup.start(), own_cgroup.start(below="a")]
    assert not cgroups.frozen(own_cgroup.path)
    cgroups.set_frozen(own_cgroup.path, True, soon())
    assert cgroups.frozen(own_cgroup.path)
    cgroups.set_frozen(own_cgroup.path, False, soon())
    assert not cgroups.frozen(own_cgroup.path)
    assert [process.poll() for process in processes] == [None, None]
    assert cgroups.kill(own_cgroup.path, soon())
    assert [process.wait(5) for process in processes] == [-9, -9]


def test_a_frozen_one_can_be_killed(own_cgroup):
    cgroups = Cgroups.at(str(own_cgroup.root))
    process = own_cgroup.start()
    cgroups.set_frozen(own_cgroup.path, True, soon())
    assert cgroups.kill(own_cgroup.path, soon())
    assert process.wait(5) == -9
    assert cgroups.members(own_cgroup.path) == []


@pytest.mark.parametrize("own_kill", [True, False], ids=["cgroup.kill", "signals only"])
def test_one_that_starts_others_all_the_time(own_cgroup, own_kill, monkeypatch):
    """Before Linux 5.14, and on version 1, everyone is signalled one by one."""
    cgroups = Cgroups.at(str(own_cgroup.root))
    if not own_kill and isinstance(cgroups, CgroupsV2):
        monkeypatch.setattr(CgroupsV2, "_kill_all", CgroupsV2._signal_frozen)
    process = own_cgroup.start(f"exec({SPAWNS!r})")
    time.sleep(0.3)
    assert cgroups.kill(own_cgroup.path, soon())
    process.wait(5)
    assert cgroups.members(own_cgroup.path) == []
    assert not cgroups.frozen(own_cgroup.path)


def test_what_is_gone_or_cannot_be_frozen(own_cgroup):
    cgroups = Cgroups.at(str(own_cgroup.root))
    assert not cgroups.frozen("/gpuops-test-nowhere")
    assert cgroups.kill("/gpuops-test-nowhere", soon(1))
    with pytest.raises(CgroupError):
        cgroups.set_frozen("/gpuops-test-nowhere", True, soon(1))
    with pytest.raises(CgroupError):
        cgroups.set_frozen("/", True, soon(1))
    assert state(os.getpid()) in "RS"


def test_v1_a_unit_outside_the_freezer_is_killed_and_never_frozen(cgroup_v1):
    """systemd makes no freezer cgroups: its units are found in its own hierarchy."""
    systemd = cgroup_v1.root / "systemd"
    if not systemd.is_dir():
        pytest.skip("systemd's hierarchy is not mounted")
    cgroup_v1.folder.rmdir()
    cgroup_v1.folder = systemd / cgroup_v1.path[1:]
    cgroup_v1.folder.mkdir()
    process = cgroup_v1.start()
    cgroups = Cgroups.at(str(cgroup_v1.root))
    assert [one.pid for one in cgroups.members(cgroup_v1.path)] == [process.pid]
    with pytest.raises(CgroupError, match="no cgroup of its own in the freezer"):
        cgroups.set_frozen(cgroup_v1.path, True, soon())
    assert cgroups.kill(cgroup_v1.path, soon())
    assert process.wait(5) == -9
