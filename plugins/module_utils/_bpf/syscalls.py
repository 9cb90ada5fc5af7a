# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Tracepoints of one system call. Neither a mounted tracefs nor libbpf is needed."""

from __future__ import annotations

import ctypes
import os
import struct

from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.errors import ProbeError, Unsupported
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.kernel import perf_event_link

_PERF_EVENT_OPEN = 298  # on x86-64
_FSOPEN, _FSCONFIG, _FSMOUNT = 430, 431, 432  # on every architecture
_CREATE = 6  # FSCONFIG_CMD_CREATE
_TRACEPOINT, _ATTRIBUTES_BYTES, _CLOSE_ON_EXEC = 2, 64, 8
_libc = ctypes.CDLL(None, use_errno=True)


def attach(program: int, name: str) -> int:
    """A link, of a program to a tracepoint such as syscalls/sys_enter_ioctl. It runs on every CPU, though the event is of one."""
    attributes = struct.pack("=IIQQ", _TRACEPOINT, _ATTRIBUTES_BYTES, _number(name), 1).ljust(_ATTRIBUTES_BYTES, b"\0")
    buffer = ctypes.create_string_buffer(attributes, _ATTRIBUTES_BYTES)
    event = _call(_PERF_EVENT_OPEN, f"open the tracepoint {name}", ctypes.byref(buffer), -1, 0, -1, _CLOSE_ON_EXEC)
    try:
        return perf_event_link(program, event)
    finally:
        os.close(event)


def _number(name: str) -> int:
    """From a tracefs that nobody else sees."""
    context = _call(_FSOPEN, "open tracefs", b"tracefs", 1)
    try:
        _call(_FSCONFIG, "make a tracefs", context, _CREATE, None, None, 0)
        mounted = _call(_FSMOUNT, "mount a tracefs", context, 1, 0)
    finally:
        os.close(context)
    try:
        file = os.open(f"events/{name}/id", os.O_RDONLY | os.O_CLOEXEC, dir_fd=mounted)
        try:
            return int(os.read(file, 32))
        finally:
            os.close(file)
    except FileNotFoundError as error:
        raise Unsupported(f"this kernel has no tracepoint {name} (CONFIG_FTRACE_SYSCALLS)") from error
    finally:
        os.close(mounted)


def _call(number: int, what: str, *arguments: object) -> int:
    result = int(_libc.syscall(number, *arguments))
    if result < 0:
        raise ProbeError(f"cannot {what}: {os.strerror(ctypes.get_errno())}", errno=ctypes.get_errno())
    return result
