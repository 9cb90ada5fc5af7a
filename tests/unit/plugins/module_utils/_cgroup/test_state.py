# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which files are read and written, on a folder that looks like cgroupfs. What the kernel then does is tested with the real one."""

from __future__ import annotations

import os
import signal
import time

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup import state
from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.state import CgroupError, Cgroups, CgroupsV1, CgroupsV2, Member


@pytest.fixture
def v2(tmp_path):
    folder = tmp_path / "a.service"
    (folder / "below").mkdir(parents=True)
    (tmp_path / "cgroup.controllers").touch()
    for name, text in {
        "cgroup.procs": "1\n2\n",
        "cgroup.freeze": "0",
        "cgroup.events": "populated 1\nfrozen 0\n",
        "cgroup.kill": "",
    }.items():
        (folder / name).write_text(text)
    (folder / "below" / "cgroup.procs").write_text("3\n")
    return folder


@pytest.fixture
def v1(tmp_path):
    folder = tmp_path / "freezer" / "a.service"
    folder.mkdir(parents=True)
    (folder / "cgroup.procs").write_text("1\n")
    (folder / "freezer.state").write_text("THAWED\n")
    return folder


@pytest.fixture
def signalled(monkeypatch):
    """Everyone who is signalled leaves."""
    sent = []

    def send(descriptor, number):
        sent.append((descriptor, number))
        return True

    monkeypatch.setattr(state.pidfd, "open_pid", lambda pid: os.open(os.devnull, os.O_RDONLY) if pid != 2 else None)
    monkeypatch.setattr(state.pidfd, "send", send)
    return sent


def at(folder, levels=1):
    root = folder
    for _attempt in range(levels):
        root = root.parent
    return Cgroups.at(str(root))


def test_members(v2):
    cgroups = at(v2)
    assert isinstance(cgroups, CgroupsV2)
    assert cgroups.members("/a.service") == [Member(1, "/a.service"), Member(2, "/a.service"), Member(3, "/a.service/below")]
    assert cgroups.members("/nobody.service") == []


def test_v2_frozen_is_what_the_kernel_reached_and_not_what_was_asked(v2):
    cgroups = at(v2)
    cgroups.set_frozen("/a.service", True, time.monotonic())
    assert (v2 / "cgroup.freeze").read_text() == "1"
    assert not cgroups.frozen("/a.service")
    (v2 / "cgroup.events").write_text("populated 1\nfrozen 1\n")
    assert cgroups.frozen("/a.service")
    (v2 / "cgroup.events").unlink()
    with pytest.raises(CgroupError, match=r"cgroup\.events"):
        cgroups.frozen("/a.service")


def test_v2_kill(v2):
    assert at(v2).kill("/a.service", time.monotonic()) is False
    assert (v2 / "cgroup.kill").read_text() == "1"


def test_v2_kill_before_linux_5_14_or_of_a_threaded_cgroup(v2, signalled):
    (v2 / "cgroup.kill").unlink()
    at(v2).kill("/a.service", time.monotonic())
    assert [number for _descriptor, number in signalled] == [signal.SIGKILL] * 2, "2 was gone already"
    assert (v2 / "cgroup.freeze").read_text() == "0", "thawed in the end"
    (v2 / "cgroup.kill").mkdir()
    at(v2).kill("/a.service", time.monotonic())
    assert len(signalled) == 4


def test_v1_freeze_and_kill(v1, signalled):
    cgroups = at(v1, 2)
    assert isinstance(cgroups, CgroupsV1)
    (v1 / "freezer.state").write_text("FREEZING\n")
    assert not cgroups.frozen("/a.service")
    cgroups.set_frozen("/a.service", True, time.monotonic())
    assert cgroups.frozen("/a.service")
    cgroups.kill("/a.service", time.monotonic())
    assert len(signalled) == 2, "once while frozen, once thawed"
    assert (v1 / "freezer.state").read_text() == "THAWED"


def test_v1_a_unit_that_is_not_in_the_freezer(v1, tmp_path, signalled):
    (tmp_path / "systemd" / "b.service").mkdir(parents=True)
    (tmp_path / "systemd" / "b.service" / "cgroup.procs").write_text("1\n")
    cgroups = at(v1, 2)
    assert cgroups.frozen("/b.service") is False
    with pytest.raises(CgroupError, match="no cgroup of its own in the freezer"):
        cgroups.set_frozen("/b.service", True, time.monotonic())
    cgroups.kill("/b.service", time.monotonic())
    assert len(signalled) == 1


def test_what_is_gone(v2):
    cgroups = at(v2)
    assert cgroups.kill("/nobody.service", time.monotonic())
    assert not cgroups.frozen("/nobody.service")
    with pytest.raises(CgroupError, match="there is no cgroup"):
        cgroups.set_frozen("/nobody.service", True, time.monotonic())
