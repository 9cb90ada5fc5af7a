# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""What the way into the kernel and back costs at a probe on this machine: no program can see it, and it is most of what a probe costs."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import time
from typing import Callable

from ansible_collections.gpuops.remediation.plugins.module_utils._bpf import kernel
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.errors import ProbeError

_FUNCTION = bytes([0x55, 0x48, 0x89, 0xE5, 0x5D, 0xC3])  # push, mov, pop, ret: begins as libcuda's do
_CALLS, _ROUNDS = 200, 5
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_FAILED = ctypes.c_void_p(-1).value


def hit_ns() -> float:
    """The cheapest of a few rounds, so that what else this machine does is not in it. Of entry and return alike, with a program that does nothing."""
    with contextlib.ExitStack() as ends:
        file = os.memfd_create("gpuops-probe")
        ends.callback(os.close, file)
        os.write(file, _FUNCTION.ljust(mmap.PAGESIZE, b"\0"))
        address = _libc.mmap(None, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_EXEC, mmap.MAP_PRIVATE, file, 0)
        if address in (None, _FAILED):
            raise ProbeError(f"cannot map a function to try probes on: {os.strerror(ctypes.get_errno())}")
        ends.callback(_libc.munmap, address, mmap.PAGESIZE)
        function = ctypes.CFUNCTYPE(None)(address)
        bare = _cheapest_ns(function)
        for returns in (True, False):
            ends.callback(os.close, kernel.attach_idle(f"/proc/self/fd/{file}", returns=returns))
        probed = _cheapest_ns(function)
    return max(0.0, (probed - bare) / 2)


def _cheapest_ns(function: Callable[[], None]) -> float:
    return min(_round_ns(function) for _one in range(_ROUNDS)) / _CALLS


def _round_ns(function: Callable[[], None]) -> int:
    began = time.perf_counter_ns()
    for _call in range(_CALLS):
        function()
    return time.perf_counter_ns() - began
