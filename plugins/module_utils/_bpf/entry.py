# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Where in a function's first instructions a probe is cheap.

A probe on an instruction that the kernel can emulate costs about a microsecond, one on any other ten times as much, because it has to be single-stepped.
"""

from __future__ import annotations

EM_X86_64 = 62


def probe_offset(machine: int, entry: bytes) -> int:
    """From the function's start. Nothing that runs before it may change an argument, the stack pointer or the return address.

    Two shapes are known of libcuda: `push`, emulated where it stands, and a thunk `cmpl $IMM,X(%rip); je`, whose `je` is.
    """
    if machine == EM_X86_64 and entry[:2] == b"\x81\x3d" and (entry[10:11] == b"\x74" or entry[10:12] == b"\x0f\x84"):
        return 10
    return 0
