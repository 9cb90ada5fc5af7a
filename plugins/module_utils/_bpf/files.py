# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Opens what somebody else may have made up: nothing that blocks or acts when it is opened, and no link that leads out of its root."""

from __future__ import annotations

import ctypes
import errno
import fnmatch
import os
import stat
import struct
from collections.abc import Iterator
from itertools import islice

_OPENAT2 = 437  # on every architecture
_IN_ROOT = 0x10 | 0x02  # RESOLVE_IN_ROOT, RESOLVE_NO_MAGICLINKS
_MOST_NAMES = 4096  # of a folder that are looked at
_HANDLE = os.O_PATH | os.O_NOFOLLOW
_libc = ctypes.CDLL(None, use_errno=True)


class NotRegular(OSError):
    """A folder, a device, a pipe, a socket or a link."""


def open_in_root(root: str, path: str, flags: int) -> int:
    """As a process with that root would."""
    at = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        how = ctypes.create_string_buffer(struct.pack("=QQQ", flags | os.O_CLOEXEC, 0, _IN_ROOT))
        fd = int(_libc.syscall(_OPENAT2, at, os.fsencode(path or "/"), how, 24))
    finally:
        os.close(at)
    if fd < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
    return fd


def open_regular(root: str, path: str) -> int:
    """For reading, and no link. Without a root links are followed wherever they lead, as whoever named the path wants it."""
    handle = open_in_root(root, path, _HANDLE) if root else os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise NotRegular(errno.EINVAL, "not a regular file", path)
        return os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    finally:
        os.close(handle)


def is_link(root: str, path: str) -> bool:
    return stat.S_ISLNK(_status(root, path).st_mode)


def inode(root: str, path: str) -> int | None:
    """Also of a file that cannot be read."""
    try:
        return _status(root, path).st_ino
    except OSError:
        return None


def mount_of(fd: int) -> str:
    """The number of the mount that a descriptor was opened through."""
    with open(f"/proc/self/fdinfo/{fd}") as lines:
        return next(line.split()[1] for line in lines if line.startswith("mnt_id:"))


def root_mount(root: str) -> str:
    fd = open_in_root(root, "/", os.O_PATH)
    try:
        return mount_of(fd)
    finally:
        os.close(fd)


def _status(root: str, path: str) -> os.stat_result:
    handle = open_in_root(root, path, _HANDLE)
    try:
        return os.fstat(handle)
    finally:
        os.close(handle)


def matching(root: str, pattern: str, below: str = "") -> Iterator[str]:
    """Paths in the root that match, as far as its folders can be read."""
    first, _slash, rest = pattern.partition("/")
    names = _names(root, below) if "*" in first else [first]
    for name in sorted(fnmatch.filter(names, first)):
        if rest:
            yield from matching(root, rest, f"{below}/{name}")
        else:
            yield f"{below}/{name}"


def _names(root: str, folder: str) -> list[str]:
    try:
        fd = open_in_root(root, folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return []
    try:
        with os.scandir(fd) as entries:
            return [entry.name for entry in islice(entries, _MOST_NAMES)]
    finally:
        os.close(fd)
