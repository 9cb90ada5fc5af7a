# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""The program that decides whether a device may be opened, as instructions. It is always the same: the list is in a map.

key = (type, major, minor) of the device
if it is only made, not opened: allow                  # a file alone opens nothing
verdict = rules[key] or rules[type, major, any] or rules[type, any, any] or allow
if verdict is deny: denied[key] += 1                   # once the map is full: denied[0, 0, 0] += 1
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

NAME = "gpuops_dev_1"  # another number for every change of what the program does
REST = bytes(12)  # the key under which is counted what has no room of its own

_INSTRUCTION = struct.Struct("=BBhi")
_LOOKUP, _UPDATE = 1, 2  # helpers
_NOEXIST = 1
_READ_OR_WRITE = 2 | 4  # of the access, whose other bit is mknod
_TYPE, _MAJOR, _MINOR, _ZERO = -16, -12, -8, -24  # on the stack: the key, and a value


def instructions(rules: int, denied: int) -> bytes:
    """`rules` and `denied` are the maps' descriptors."""
    lines: list[str | bytes | tuple[bytes, str]] = [
        _move(6, 1),
        _load(2, 6, 0),
        _move(3, 2),
        _op(0x77, 3, 0, 0, 16),  # r3 >>= 16, the access
        _op(0x57, 3, 0, 0, _READ_OR_WRITE),  # r3 &=
        (_op(0x15, 3), "allow"),  # r3 == 0
        _op(0x57, 2, 0, 0, 0xFFFF),
        _store(_TYPE, 2),
        *_numbers(),
        *_call(_LOOKUP, rules),
        (_op(0x55, 0), "verdict"),  # r0 != 0
        _op(0x62, 10, 0, _MINOR, -1),
        *_call(_LOOKUP, rules),
        (_op(0x55, 0), "verdict"),
        _op(0x62, 10, 0, _MAJOR, -1),
        *_call(_LOOKUP, rules),
        (_op(0x15, 0), "allow"),
        "verdict",
        _load(0, 0, 0),
        (_op(0x55, 0), "allow"),
        *_numbers(),
        *_call(_LOOKUP, denied),
        (_op(0x55, 0), "count"),
        _op(0x7A, 10, 0, _ZERO, 0),
        *_call(_UPDATE, denied),
        *_call(_LOOKUP, denied),
        (_op(0x55, 0), "count"),
        *(_op(0x62, 10, 0, at, 0) for at in (_TYPE, _MAJOR, _MINOR)),
        *_call(_LOOKUP, denied),
        (_op(0x15, 0), "deny"),
        "count",
        _op(0xB7, 1, 0, 0, 1),
        _op(0xDB, 0, 1),  # lock *r0 += r1
        "deny",
        _op(0xB7, 0, 0, 0, 0),
        _op(0x95),
        "allow",
        _op(0xB7, 0, 0, 0, 1),
        _op(0x95),
    ]
    return _linked(lines)


def _op(code: int, destination: int = 0, source: int = 0, offset: int = 0, number: int = 0) -> bytes:
    return _INSTRUCTION.pack(code, source << 4 | destination, offset, number)


def _move(destination: int, source: int) -> bytes:
    return _op(0xBF, destination, source)


def _load(destination: int, source: int, offset: int) -> bytes:
    return _op(0x61, destination, source, offset)


def _store(offset: int, source: int) -> bytes:
    return _op(0x63, 10, source, offset)


def _numbers() -> list[bytes]:
    """The device's own numbers into the key."""
    return [_load(2, 6, 4), _store(_MAJOR, 2), _load(2, 6, 8), _store(_MINOR, 2)]


def _call(helper: int, map_fd: int) -> list[bytes]:
    """With the key, and for an update the value."""
    own_map = [_op(0x18, 1, 1, 0, map_fd), _op(0)]  # two instructions wide
    value = [_move(3, 10), _op(0x07, 3, 0, 0, _ZERO), _op(0xB7, 4, 0, 0, _NOEXIST)] if helper == _UPDATE else []
    return [*own_map, _move(2, 10), _op(0x07, 2, 0, 0, _TYPE), *value, _op(0x85, number=helper)]


def _linked(lines: list[str | bytes | tuple[bytes, str]]) -> bytes:
    labels: Mapping[str, int] = {}
    at = 0
    for line in lines:
        if isinstance(line, str):
            labels = {**labels, line: at}
        else:
            at += 1
    text = [line for line in lines if not isinstance(line, str)]
    return b"".join(_jump(line, at, labels) if isinstance(line, tuple) else line for at, line in enumerate(text))


def _jump(line: tuple[bytes, str], at: int, labels: Mapping[str, int]) -> bytes:
    code, registers, _offset, number = _INSTRUCTION.unpack(line[0])
    return _INSTRUCTION.pack(code, registers, labels[line[1]] - at - 1, number)
