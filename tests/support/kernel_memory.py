# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Runs a program of a raw tracepoint as if the kernel had, on memory of the kernel that a test has written."""

from __future__ import annotations

import ctypes
import os
import struct

from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.maps import bpf

MAP_CREATE, MAP_LOOKUP, MAP_UPDATE, PROG_LOAD, TEST_RUN = 0, 1, 2, 5, 10
ARRAY, RAW_TRACEPOINT = 2, 17
PAGE = 4096


class KernelMemory:
    """A page of the kernel's memory, an element of an array, that a test can write and whose address a program tells."""

    def __init__(self):
        self._map = bpf(MAP_CREATE, struct.pack("=5I", ARRAY, 4, PAGE, 1, 0))
        take_address = struct.pack("<BBhi", 0x18, 0x20, 0, self._map) + bytes(8)  # r0 = the element
        store_it = struct.pack("<BBhi", 0x7B, 0x00, 0, 0)  # *r0 = r0
        leave = struct.pack("<BBhi", 0xB7, 0, 0, 0) + struct.pack("<BBhi", 0x95, 0, 0, 0)
        code, license_ = (ctypes.create_string_buffer(text) for text in (take_address + store_it + leave, b"GPL"))
        program = bpf(PROG_LOAD, struct.pack("=IIQQ", RAW_TRACEPOINT, 5, ctypes.addressof(code), ctypes.addressof(license_)))
        run(program, 0, 0, 0)
        os.close(program)
        self.address = struct.unpack_from("=Q", self._element(MAP_LOOKUP, bytes(PAGE)))[0]

    def write(self, data):
        self._element(MAP_UPDATE, data.ljust(PAGE, b"\0"))

    def close(self):
        os.close(self._map)

    def _element(self, command, data):
        key, value = ctypes.create_string_buffer(4), ctypes.create_string_buffer(data, PAGE)
        bpf(command, struct.pack("=IIQQQ", self._map, 0, ctypes.addressof(key), ctypes.addressof(value), 0))
        return value.raw


def run(program, *arguments):
    """Once, as if its tracepoint had fired."""
    given = (ctypes.c_uint64 * 3)(*arguments)
    bpf(TEST_RUN, struct.pack("=IIIIQQIIIIQQ", program, 0, 0, 0, 0, 0, 0, 0, 24, 0, ctypes.addressof(given), 0))
