# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""The folder of a cgroup whose number, the inode of that folder, is all that is known. The kernel finds it without a walk through all of them.

Needs CAP_DAC_READ_SEARCH.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator

_KERNFS_HANDLE = 0xFE  # FILEID_KERNFS, since Linux 5.5
_HANDLE = struct.Struct("=IiQ")  # struct file_handle: size, type, the number
_libc = ctypes.CDLL(None, use_errno=True)


def roots(mounts: str) -> Iterator[tuple[str, str]]:
    """Of /proc/self/mounts: the unified hierarchy's name and place, and the memory controller's where that is apart."""
    for line in mounts.splitlines():
        _what, where, kind, options, *_rest = line.split()
        if kind == "cgroup2":
            yield "", where
        elif kind == "cgroup" and "memory" in options.split(","):
            yield "memory", where


def path_of(root: str, number: int) -> str | None:
    """Below the root, as /proc/PID/cgroup has it; None of one that is gone or that nobody may look at."""
    handle = ctypes.create_string_buffer(_HANDLE.pack(8, _KERNFS_HANDLE, number))
    try:
        mount = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fd = _libc.open_by_handle_at(mount, handle, os.O_PATH | os.O_CLOEXEC)
    finally:
        os.close(mount)
    if fd < 0:
        return None
    try:
        path = os.readlink(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)
    return "/" + path[len(root.rstrip("/")) :].strip("/") if path.startswith(root) and not path.endswith(" (deleted)") else None
