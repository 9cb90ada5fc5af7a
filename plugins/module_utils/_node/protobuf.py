# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Reads the wire format of Protocol Buffers, which names fields by their numbers."""

from __future__ import annotations

from collections.abc import Iterator

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class WireError(ValueError):
    """Not a message."""


class Message:
    """The fields of one message. One that is not there is empty, as in proto3; the numbers that nobody asks for are newer than we are."""

    def __init__(self, data: bytes) -> None:
        self._fields: dict[int, list[bytes]] = {}
        for number, value in _fields(data):
            self._fields.setdefault(number, []).append(value)

    def text(self, number: int) -> str:
        """The last one counts."""
        return self._fields.get(number, [b""])[-1].decode()

    def texts(self, number: int) -> list[str]:
        return [value.decode() for value in self._fields.get(number, [])]

    def messages(self, number: int) -> list[Message]:
        return [Message(value) for value in self._fields.get(number, [])]


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Those with a length; numbers are skipped."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == _VARINT:
            _number, at = _varint(data, at)
            continue
        length = {_FIXED64: 8, _FIXED32: 4}.get(kind)
        if kind == _BYTES:
            length, at = _varint(data, at)
        if length is None:
            raise WireError(f"wire type {kind}")
        if at + length > len(data):
            raise WireError(f"cut off in field {key >> 3}")
        if kind == _BYTES:
            yield key >> 3, data[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise WireError("a number without an end")
