# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Reads pinned maps by bpf(2). A process without any privilege can, where the pin's mode lets it and it asks for reading only."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import TypeVar

_NUMBERS = {"x86_64": 321, "aarch64": 280}
_LOOKUP, _UPDATE, _DELETE, _NEXT_KEY, _OBJ_GET, _MAP_BY_ID, _INFO = 1, 2, 3, 4, 7, 14, 15
_RDONLY = 8
_libc = ctypes.CDLL(None, use_errno=True)
_Map = TypeVar("_Map", bound="Map")


def bpf(command: int, attributes: bytes) -> int:
    """The system call. `attributes` is union bpf_attr; the addresses in it must stay valid."""
    number = _NUMBERS.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, f"bpf(2) is not known for {platform.machine()}")
    buffer = ctypes.create_string_buffer(attributes, max(len(attributes), 128))
    result = int(_libc.syscall(number, command, ctypes.byref(buffer), len(buffer)))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def open_pin(path: str, *, read_only: bool = True) -> int:
    """A descriptor of what is pinned at the path. Programs and links have no read-only one."""
    name = ctypes.create_string_buffer(os.fsencode(path))
    try:
        return bpf(_OBJ_GET, struct.pack("=QII", ctypes.addressof(name), 0, _RDONLY if read_only else 0))
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error


def info(fd: int, size: int, given: bytes = b"") -> bytes:
    """struct bpf_{map,prog,link}_info, as far as the kernel fills it. `given` is how it begins: addresses in it must stay valid."""
    buffer = ctypes.create_string_buffer(given, size)
    bpf(_INFO, struct.pack("=IIQ", fd, size, ctypes.addressof(buffer)))
    return buffer.raw


@dataclass(frozen=True)
class MapInfo:
    type: int
    id: int
    key_size: int
    value_size: int
    max_entries: int


class Map:
    """Closes the descriptor with which it is made."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.info = MapInfo(*struct.unpack_from("=5I", info(self.fd, 80)))
        self._key = ctypes.create_string_buffer(self.info.key_size)
        self._value = ctypes.create_string_buffer(self.info.value_size)

    def __enter__(self: _Map) -> _Map:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        os.close(self.fd)

    def get(self, key: bytes) -> bytes | None:
        self._key.raw = key
        return self._value.raw if self._call(_LOOKUP, self._key, self._value) else None

    def put(self, key: bytes, value: bytes) -> None:
        self._key.raw, self._value.raw = key, value
        self._call(_UPDATE, self._key, self._value)

    def delete(self, key: bytes) -> bool:
        self._key.raw = key
        return self._call(_DELETE, self._key, None)

    def keys(self) -> Iterator[bytes]:
        """Each key once. Where the one just given is deleted meanwhile the kernel begins again, so that the walk is bounded."""
        following, seen = ctypes.create_string_buffer(self.info.key_size), set()
        at: ctypes.Array[ctypes.c_char] | None = None
        for _step in range(2 * self.info.max_entries):
            if not self._call(_NEXT_KEY, at, following):
                return
            if following.raw not in seen:
                seen.add(following.raw)
                yield following.raw
            at = at or ctypes.create_string_buffer(self.info.key_size)
            at.raw = following.raw

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        for key in self.keys():
            value = self.get(key)
            if value is not None:
                yield key, value

    def _call(self, command: int, key: ctypes.Array[ctypes.c_char] | None, value: ctypes.Array[ctypes.c_char] | None) -> bool:
        addresses = [0 if buffer is None else ctypes.addressof(buffer) for buffer in (key, value)]
        try:
            bpf(command, struct.pack("=IIQQQ", self.fd, 0, *addresses, 0))
        except OSError as error:
            if error.errno == errno.ENOENT:
                return False
            raise
        return True


class PinnedMap(Map):
    def __init__(self, path: str, *, read_only: bool = True) -> None:
        super().__init__(open_pin(path, read_only=read_only))


def map_by_id(number: int) -> int:
    return bpf(_MAP_BY_ID, struct.pack("=III", number, 0, _RDONLY))
