# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Whether a probed function can return in a process with a seccomp filter.

Since Linux 6.11 the return goes by a system call of its own. A filter that does not know it, such as a container's, ends the process, until a later
kernel lets that call through every filter. Distributions bring both to other versions, so that only a try tells.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import signal
import struct
from pathlib import Path
from typing import NoReturn

from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.errors import Unsupported

URETPROBE = 335  # on x86-64
_FIRST_WITH_IT = (6, 11)
_DENIED = errno.EL2HLT  # by the filter below; nothing else says so
_NO_NEW_PRIVILEGES, _SET_SECCOMP, _MODE_FILTER = 38, 22, 2
_LOAD, _JUMP_IF_EQUAL, _RETURN, _ALLOW, _ERRNO = 0x20, 0x15, 0x06, 0x7FFF0000, 0x00050000
_libc = ctypes.CDLL(None, use_errno=True)


def require_returns(release: str) -> None:
    """Raises where a probe on a return would end processes of containers."""
    match = re.search(r"^Seccomp:\s*(\d+)", Path("/proc/self/status").read_text(), re.MULTILINE)
    version = tuple(int(part) for part in re.findall(r"\d+", release)[:2])
    if ends_processes(URETPROBE, version, confined=match is not None and match.group(1) != "0"):
        raise Unsupported(
            f"kernel {release} lets seccomp filters deny the system call by which a probed function returns, so that probes on libcuda would end"
            ' processes in containers; kernels with "seccomp: passthrough uretprobe systemcall without filtering" do not'
        )


def ends_processes(number: int, version: tuple[int, ...], *, confined: bool) -> bool:
    """Whether filters can deny this system call, and the kernel has it. What a confined process itself is told of it is its own filter's word."""
    if answer(number, filtered=True) not in (_DENIED, -signal.SIGSYS):
        return False
    return version >= _FIRST_WITH_IT if confined else answer(number, filtered=False) != errno.ENOSYS


def answer(number: int, *, filtered: bool) -> int:
    """What a child gets of the system call: 0, an errno, or the signal that ended it as a negative number."""
    child = os.fork()
    if child == 0:
        _ask(number, filtered)
    status = os.waitpid(child, 0)[1]
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)


def _ask(number: int, filtered: bool) -> NoReturn:
    try:
        signal.signal(signal.SIGILL, lambda *_given: None)  # the answer to whoever does not call from a probed function
        denied = not filtered or _deny(number)
        os._exit(ctypes.get_errno() if denied and _libc.syscall(number) < 0 else 0)
    finally:
        os._exit(255)


def _deny(number: int) -> bool:
    """False where the kernel has no filters at all."""
    steps = ((_LOAD, 0, 0, 0), (_JUMP_IF_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERRNO | _DENIED), (_RETURN, 0, 0, _ALLOW))
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
    program = ctypes.create_string_buffer(struct.pack("=HxxxxxxQ", len(steps), ctypes.addressof(code)))
    _libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    return int(_libc.prctl(_SET_SECCOMP, _MODE_FILTER, program)) == 0
