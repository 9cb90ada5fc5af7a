# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""What a probe needs of a shared library: where its exported functions are in the file, their first bytes, and its build id.

The file may be made up, so that what is read of it is bounded, whatever its tables say.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Callable

_PT_LOAD, _PT_NOTE, _SHT_DYNSYM = 1, 4, 11
_STT_FUNC = 2
_NT_GNU_BUILD_ID = 3
_SECTION, _SEGMENT, _SYMBOL = struct.Struct("<IIQQQQIIQQ"), struct.Struct("<IIQQQQQQ"), struct.Struct("<IBBHQQ")
_HEADER_BYTES, _ENTRY_BYTES = 64, 32
_MOST_SEGMENTS, _MOST_SECTIONS, _MOST_SYMBOLS = 64, 512, 65536
_NAME_BYTES, _STRINGS_BYTES, _NOTES_BYTES = 256, 4 << 20, 65536

Read = Callable[[int, int], bytes]  # an offset and a size; less where the file ends


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


def parse(read: Read, wanted: Collection[str]) -> Library:
    """The functions of `wanted` that the library exports; the build id is empty where it has none."""
    try:
        return _parse(read, wanted)
    except (struct.error, IndexError, OverflowError, ValueError) as error:
        raise NotElf(str(error)) from error


def _parse(read: Read, wanted: Collection[str]) -> Library:
    header = _exactly(read, 0, _HEADER_BYTES, _HEADER_BYTES)
    if header[:6] != b"\x7fELF\x02\x01":
        raise NotElf("no 64-bit little-endian ELF header")
    (machine,) = struct.unpack_from("<H", header, 18)
    segments_at, sections_at = struct.unpack_from("<QQ", header, 32)
    segment_size, segment_count, section_size, section_count = struct.unpack_from("<HHHH", header, 54)
    segments = _table(read, _SEGMENT, segments_at, segment_size, segment_count, _MOST_SEGMENTS)
    sections = _table(read, _SECTION, sections_at, section_size, section_count, _MOST_SECTIONS)
    functions = {}
    for name, address in _exported(read, sections):
        if name in wanted:
            offset = _file_offset(segments, address)
            functions[name] = Function(offset, _exactly(read, offset, _ENTRY_BYTES, _ENTRY_BYTES))
    return Library(machine, _build_id(read, segments), functions)


def _exactly(read: Read, offset: int, size: int, most: int) -> bytes:
    if size > most:
        raise NotElf(f"{size} bytes at {offset:#x}, more than the {most} of any library")
    data = read(offset, size)
    if len(data) != size:
        raise NotElf(f"it ends before {offset + size:#x}")
    return data


def _table(read: Read, entry: struct.Struct, offset: int, size: int, count: int, most: int) -> list[tuple[int, ...]]:
    if count and size != entry.size:
        raise NotElf(f"a table of entries of {size} bytes")
    return list(entry.iter_unpack(_exactly(read, offset, count * entry.size, most * entry.size)))


def _exported(read: Read, sections: list[tuple[int, ...]]) -> Iterator[tuple[str, int]]:
    """By the first table; a library has no other."""
    for _name, kind, _flags, _address, offset, size, link, _info, _align, entry_size in sections:
        if kind == _SHT_DYNSYM:
            strings = _exactly(read, sections[link][4], sections[link][5], _STRINGS_BYTES)
            for name, info, _other, section, address, _size in _table(
                read, _SYMBOL, offset, entry_size, size // _SYMBOL.size, _MOST_SYMBOLS
            ):
                if section and info & 15 == _STT_FUNC:
                    yield strings[name : max(name, strings.find(b"\0", name, name + _NAME_BYTES))].decode(errors="replace"), address
            return


def _file_offset(segments: list[tuple[int, ...]], address: int) -> int:
    for kind, _flags, offset, start, _physical, size, _memory, _align in segments:
        if kind == _PT_LOAD and start <= address < start + size:
            return address - start + offset
    raise NotElf(f"address {address:#x} is in no segment")


def _build_id(read: Read, segments: list[tuple[int, ...]]) -> str:
    for kind, _flags, offset, _start, _physical, size, _memory, _align in segments:
        if kind != _PT_NOTE:
            continue
        notes, at = _exactly(read, offset, size, _NOTES_BYTES), 0
        while at + 12 <= size:
            name_size, value_size, note = struct.unpack_from("<III", notes, at)
            value_at = at + 12 + (name_size + 3 & ~3)
            if note == _NT_GNU_BUILD_ID and notes[at + 12 : at + 12 + name_size] == b"GNU\0":
                return notes[value_at : value_at + value_size].hex()
            at = value_at + (value_size + 3 & ~3)
    return ""
