# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A cgroup for a test, of the machine's own cgroupfs."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

_numbers = itertools.count()


def mount_of(kind, controller=None):
    for line in Path("/proc/mounts").read_text().splitlines():
        _device, where, found, options = line.split()[:4]
        if found == kind and (controller is None or controller in options.split(",")):
            return Path(where)
    return None


class OwnCgroup:
    """A cgroup of ours, and processes in it and below."""

    def __init__(self, root, hierarchy):
        self.root = root
        self.hierarchy = hierarchy
        self.path = f"/gpuops-test-{os.getpid()}-{next(_numbers)}.service"
        self.folder = hierarchy / self.path[1:]
        self.folder.mkdir()

    def start(self, code="import time; time.sleep(600)", below=""):
        folder = self.folder / below
        folder.mkdir(parents=True, exist_ok=True)
        own = f"open({str(folder / 'cgroup.procs')!r}, 'w').write('0'); print('in', flush=True); {code}"
        process = subprocess.Popen([sys.executable, "-c", own], stdout=subprocess.PIPE)
        assert process.stdout.readline() == b"in\n"
        return process

    def remove(self):
        folders = [*sorted((path for path in self.folder.rglob("*") if path.is_dir()), reverse=True), self.folder]
        for folder in folders:
            for name, value in (("cgroup.freeze", "0"), ("cgroup.kill", "1"), ("freezer.state", "THAWED")):
                if (folder / name).exists():
                    (folder / name).write_text(value)
            for pid in (folder / "cgroup.procs").read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), 9)
        for folder in folders:
            for _attempt in range(200):
                with contextlib.suppress(OSError):
                    folder.rmdir()
                    break
                time.sleep(0.01)


@pytest.fixture
def cgroup_v2():
    mount = mount_of("cgroup2")
    if mount is None:
        pytest.skip("cgroup v2 is not mounted")
    own = OwnCgroup(mount, mount)
    yield own
    own.remove()


@contextlib.contextmanager
def freezer_v1(folder):
    """Where version 1's freezer is mounted: for us alone where the machine, like any that runs version 2 only, has it not mounted."""
    mount = mount_of("cgroup", "freezer")
    if mount is not None:
        yield mount
        return
    mount = folder / "cgroup" / "freezer"
    mount.mkdir(parents=True)
    mounted = subprocess.run(["mount", "-t", "cgroup", "-o", "freezer", "none", mount], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"the freezer of cgroup v1 cannot be mounted: {mounted.stderr.strip()}")
    try:
        yield mount
    finally:
        subprocess.run(["umount", mount], check=True)


@pytest.fixture
def cgroup_v1(tmp_path):
    with freezer_v1(tmp_path) as mount:
        own = OwnCgroup(mount.parent, mount)
        yield own
        own.remove()


@pytest.fixture(params=["v1", "v2"])
def own_cgroup(request):
    return request.getfixturevalue(f"cgroup_{request.param}")
