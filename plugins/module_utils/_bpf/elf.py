# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""What a probe needs of a shared library: where its exported functions are in the file, their first bytes, and its build id."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Union

_PT_LOAD, _PT_NOTE, _SHT_DYNSYM = 1, 4, 11
_STT_FUNC = 2
_NT_GNU_BUILD_ID = 3
_SECTION, _SEGMENT, _SYMBOL = struct.Struct("<IIQQQQIIQQ"), struct.Struct("<IIQQQQQQ"), struct.Struct("<IBBHQQ")
_ENTRY_BYTES = 32

Buffer = Union[bytes, mmap.mmap]


class NotElf(ValueError):
    """Not a 64-bit little-endian ELF file that this reader understands."""


@dataclass(frozen=True)
class Function:
    offset: int  # in the file, as the kernel wants it
    entry: bytes


@dataclass(frozen=True)
class Library:
    machine: int
    build_id: str
    functions: dict[str, Function]


def parse(data: Buffer, wanted: Collection[str]) -> Library:
    """The functions of `wanted` that the library exports; the build id is empty where it has none."""
    try:
        return _parse(data, wanted)
    except (struct.error, IndexError, OverflowError, ValueError) as error:
        raise NotElf(str(error)) from error


def _parse(data: Buffer, wanted: Collection[str]) -> Library:
    if data[:6] != b"\x7fELF\x02\x01":
        raise NotElf("no 64-bit little-endian ELF header")
    (machine,) = struct.unpack_from("<H", data, 18)
    segments_at, sections_at = struct.unpack_from("<QQ", data, 32)
    segment_size, segment_count, section_size, section_count = struct.unpack_from("<HHHH", data, 54)
    segments = [_SEGMENT.unpack_from(data, segments_at + i * segment_size) for i in range(segment_count)]
    sections = [_SECTION.unpack_from(data, sections_at + i * section_size) for i in range(section_count)]
    functions = {}
    for name, address in _exported(data, sections):
        if name in wanted:
            offset = _file_offset(segments, address)
            functions[name] = Function(offset, data[offset : offset + _ENTRY_BYTES])
    return Library(machine, _build_id(data, segments), functions)


def _exported(data: Buffer, sections: list[tuple[int, ...]]) -> Iterator[tuple[str, int]]:
    for _name, kind, _flags, _address, offset, size, link, _info, _align, entry_size in sections:
        if kind != _SHT_DYNSYM:
            continue
        strings_at, strings_size = sections[link][4], sections[link][5]
        strings = data[strings_at : strings_at + strings_size]
        for at in range(offset, offset + size, entry_size):
            name, info, _other, section, address, _size = _SYMBOL.unpack_from(data, at)
            if section and info & 15 == _STT_FUNC:
                yield strings[name : strings.index(b"\0", name)].decode(errors="replace"), address


def _file_offset(segments: list[tuple[int, ...]], address: int) -> int:
    for kind, _flags, offset, start, _physical, size, _memory, _align in segments:
        if kind == _PT_LOAD and start <= address < start + size:
            return address - start + offset
    raise NotElf(f"address {address:#x} is in no segment")


def _build_id(data: Buffer, segments: list[tuple[int, ...]]) -> str:
    for kind, _flags, offset, _start, _physical, size, _memory, _align in segments:
        at = offset
        while kind == _PT_NOTE and at + 12 <= offset + size:
            name_size, value_size, note = struct.unpack_from("<III", data, at)
            value_at = at + 12 + (name_size + 3 & ~3)
            if note == _NT_GNU_BUILD_ID and data[at + 12 : at + 12 + name_size] == b"GNU\0":
                return data[value_at : value_at + value_size].hex()
            at = value_at + (value_size + 3 & ~3)
    return ""
