# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import ctypes
import os
import re
import struct
import tracemalloc
from pathlib import Path

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf import elf


def reader(data):
    return lambda offset, size: data[offset : offset + size]


def test_a_function_is_where_the_loader_put_it():
    """By the C library of this very process."""
    address = ctypes.cast(ctypes.CDLL(None).malloc_usable_size, ctypes.c_void_p).value
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end, offset, path = re.match(r"(\w+)-(\w+) \S+ (\w+) \S+ \d+ *(.*)", line).groups()
        if int(start, 16) <= address < int(end, 16):
            break
    library = elf.parse(reader(Path(path).read_bytes()), {"malloc_usable_size", "no_such_function"})
    assert {name: function.offset for name, function in library.functions.items()} == {
        "malloc_usable_size": address - int(start, 16) + int(offset, 16)
    }
    assert library.functions["malloc_usable_size"].entry == ctypes.string_at(address, 32)
    assert re.fullmatch("[0-9a-f]{40}", library.build_id)


@pytest.mark.parametrize("data", [b"", b"#!/bin/sh\n", b"\x7fELF\x01\x01" + bytes(90), b"\x7fELF\x02\x01\x01" + b"\xff" * 57])
def test_what_is_no_library_is_refused(data):
    with pytest.raises(elf.NotElf):
        elf.parse(reader(data), ())


def header(segments=(0, 0, 0), sections=(0, 0, 0)):
    """Each as (offset, size of an entry, number of entries)."""
    tables = struct.pack("<QQ", segments[0], sections[0]) + struct.pack("<IH", 0, 64)
    return (
        b"\x7fELF\x02\x01".ljust(18, b"\0") + struct.pack("<HIQ", 62, 1, 0) + tables + struct.pack("<5H", *segments[1:], *sections[1:], 0)
    )


def symbols(count, strings):
    """Sections of as many symbols as said, and of that many bytes of names."""
    return struct.pack("<IIQQQQIIQQ", 0, 11, 0, 0, 0, count * 24, 1, 0, 0, 24) + struct.pack(
        "<IIQQQQIIQQ", 0, 3, 0, 0, 0, strings, 0, 0, 0, 0
    )


@pytest.mark.parametrize(
    "data",
    [
        header(sections=(64, 64, 65535)),
        header(segments=(64, 56, 65535)),
        header(sections=(64, 64, 2)) + symbols(1 << 30, 64),
        header(sections=(64, 64, 2)) + symbols(1, 1 << 40),
        header(segments=(64, 56, 1)) + struct.pack("<IIQQQQQQ", 4, 0, 0, 0, 0, 1 << 40, 0, 0),
    ],
)
def test_a_file_that_is_made_up_costs_little(tmp_path, data):
    """A sparse one, which has whatever its tables say."""
    path = tmp_path / "libcuda.so.1"
    path.write_bytes(data)
    os.truncate(path, 1 << 42)
    with open(path, "rb") as file:
        tracemalloc.start()
        with pytest.raises(elf.NotElf, match="more than"):
            elf.parse(lambda offset, size: os.pread(file.fileno(), size, offset), {"cuMemAlloc_v2"})
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
        tracemalloc.stop()
