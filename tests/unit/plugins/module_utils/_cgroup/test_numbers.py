# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os

from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup import numbers

MOUNTS = """\
proc /proc proc rw 0 0
cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0
cgroup /sys/fs/cgroup/cpu cgroup rw,relatime,cpu 0 0
cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0
"""


def test_the_two_hierarchies_that_have_numbers():
    assert dict(numbers.roots(MOUNTS)) == {"memory": "/sys/fs/cgroup/memory", "": "/sys/fs/cgroup/unified"}


def answered(monkeypatch, folder):
    class Libc:
        @staticmethod
        def open_by_handle_at(_mount, handle, flags):
            asked.append(handle.raw)
            return os.open(folder, flags) if folder else -1

    asked = []
    monkeypatch.setattr(numbers, "_libc", Libc)
    return asked


def test_a_number_is_the_folder_that_the_kernel_names(tmp_path, monkeypatch):
    folder = tmp_path / "system.slice/train.service"
    folder.mkdir(parents=True)
    asked = answered(monkeypatch, folder)
    assert numbers.path_of(str(tmp_path), 0x1122) == "/system.slice/train.service"
    assert asked[0].startswith(b"\x08\0\0\0\xfe\0\0\0\x22\x11\0\0\0\0\0\0")
    answered(monkeypatch, tmp_path)
    assert numbers.path_of(str(tmp_path), 1) == "/"


def test_who_is_gone_has_no_path(tmp_path, monkeypatch):
    answered(monkeypatch, None)
    assert numbers.path_of(str(tmp_path), 7) is None
    assert numbers.path_of(str(tmp_path / "no-mount"), 7) is None
    answered(monkeypatch, tmp_path)
    assert numbers.path_of(str(tmp_path / "elsewhere"), 7) is None
