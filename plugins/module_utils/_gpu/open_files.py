# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Which processes have which of some device files open. The driver itself is not asked, so that a driver that hangs hides nobody."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from ansible_collections.gpuops.remediation.plugins.module_utils._node.procfs import ProcFs

Identity = tuple[Any, ...]
Meaning = TypeVar("Meaning")


def identity(found: os.stat_result) -> Identity:
    """A device is its number, whatever its path: a container has its own node for it."""
    return ("device", found.st_rdev) if stat.S_ISCHR(found.st_mode) else ("file", found.st_dev, found.st_ino)


def holders(proc: ProcFs, devices: Mapping[Identity, Meaning]) -> Iterator[tuple[int, set[Meaning]]]:
    """Every process that has some of them open, and then an error if there were processes that could not be looked into."""
    unreadable = 0
    for pid in proc.pids():
        try:
            found = _of(str(proc.root / str(pid) / "fd"), devices)
        except FileNotFoundError:
            continue
        except OSError:
            unreadable += 1
            continue
        if found and not _is_reader(proc, pid):
            yield pid, found
    if unreadable:
        raise PermissionError(f"the open files of {unreadable} processes cannot be read; is this root?")


def _is_reader(proc: ProcFs, pid: int) -> bool:
    """Whether it is of this very run: NVML is asked at the same time by children of the same parent, and has the files open."""
    found = proc.process(pid)
    return found is not None and found.parent == os.getppid()


def _of(folder: str, devices: Mapping[Identity, Meaning]) -> set[Meaning]:
    return {devices[one] for _path, found in opened(folder) for one in [identity(found)] if one in devices}


def opened(folder: str) -> Iterator[tuple[str, os.stat_result]]:
    """The files of /proc/PID/fd, by their paths as the process has them."""
    for number in os.listdir(folder):
        own = os.path.join(folder, number)
        try:
            path = os.readlink(own)
            if not path.startswith("/"):  # sockets, pipes and the like cannot be a device
                continue
            found = os.stat(own)
        except OSError:  # closed meanwhile
            continue
        yield path, found
