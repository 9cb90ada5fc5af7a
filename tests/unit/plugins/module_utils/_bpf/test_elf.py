# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf import elf


def test_a_function_is_where_the_loader_put_it():
    """By the C library of this very process."""
    address = ctypes.cast(ctypes.CDLL(None).malloc_usable_size, ctypes.c_void_p).value
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end, offset, path = re.match(r"(\w+)-(\w+) \S+ (\w+) \S+ \d+ *(.*)", line).groups()
        if int(start, 16) <= address < int(end, 16):
            break
    library = elf.parse(Path(path).read_bytes(), {"malloc_usable_size", "no_such_function"})
    assert {name: function.offset for name, function in library.functions.items()} == {
        "malloc_usable_size": address - int(start, 16) + int(offset, 16)
    }
    assert library.functions["malloc_usable_size"].entry == ctypes.string_at(address, 32)
    assert re.fullmatch("[0-9a-f]{40}", library.build_id)


@pytest.mark.parametrize("data", [b"", b"#!/bin/sh\n", b"\x7fELF\x01\x01" + bytes(90), b"\x7fELF\x02\x01\x01" + b"\xff" * 57])
def test_what_is_no_library_is_refused(data):
    with pytest.raises(elf.NotElf):
        elf.parse(data, ())
