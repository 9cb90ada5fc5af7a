# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Who has a GPU's device file open: the way to find its processes when NVML hangs or has lost the GPU."""

from __future__ import annotations

import os
import re
import stat
from typing import Any

from ansible_collections.gpuops.remediation.plugins.module_utils._node.procfs import ProcFs
from ansible_collections.gpuops.remediation.plugins.module_utils._node.watchdog import Emit

_GPU_FILE = re.compile(r"^nvidia(\d+)$")


def _identity(found: os.stat_result) -> tuple[Any, ...]:
    """A device is its number, whatever its path: a container has its own node for it."""
    return ("device", found.st_rdev) if stat.S_ISCHR(found.st_mode) else ("file", found.st_dev, found.st_ino)


def _device_files(dev_root: str) -> dict[tuple[Any, ...], int]:
    return {
        _identity(os.stat(os.path.join(dev_root, name))): int(match.group(1))
        for name in os.listdir(dev_root)
        for match in [_GPU_FILE.match(name)]
        if match
    }


def _open_minors(folder: str, devices: dict[tuple[Any, ...], int]) -> set[int]:
    found = set()
    for number in os.listdir(folder):
        path = os.path.join(folder, number)
        try:
            if os.readlink(path).startswith("/"):  # sockets, pipes and the like cannot be a device
                found.add(devices.get(_identity(os.stat(path)), -1))
        except OSError:  # closed meanwhile
            continue
    return found - {-1}


def collect(proc: ProcFs, dev_root: str, emit: Emit) -> None:
    """The minors that exist, and every (minor, process). The driver itself is not asked, so that a driver that hangs hides nobody."""
    devices = _device_files(dev_root)
    unreadable = 0
    found = []
    for pid in proc.pids():
        try:
            minors = _open_minors(str(proc.root / str(pid) / "fd"), devices)
        except FileNotFoundError:
            continue
        except OSError:
            unreadable += 1
            continue
        for minor in sorted(minors):
            record = {"pid": pid, "type": "compute", "memory_bytes": None, "gi": None, "ci": None, "source": "device_file"}
            found.append({"minor": minor, "process": {**record, **proc.describe(pid)}})
    if unreadable:
        raise PermissionError(f"the open files of {unreadable} processes cannot be read; is this root?")
    emit({"minors": sorted(devices.values()), "holders": found})
