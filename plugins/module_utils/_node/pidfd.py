# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Signals to exactly the process that was looked at: a pid may be another's by the time a signal arrives, a pidfd never is.

By system call, since Pythons that are built with old headers (conda, python-build-standalone) lack os.pidfd_open.
"""

from __future__ import annotations

import ctypes
import errno
import os

from ansible_collections.gpuops.remediation.plugins.module_utils._errors import RemediationError

_PIDFD_SEND_SIGNAL, _PIDFD_OPEN = 424, 434  # the same on every architecture but Alpha


class PidfdUnavailable(RemediationError):
    kind = "pidfd_unavailable"


def _syscall(*args: int | None) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    result: int = libc.syscall(*(None if arg is None else ctypes.c_long(arg) for arg in args))
    if result < 0:
        number = ctypes.get_errno()
        if number == errno.ENOSYS:
            raise PidfdUnavailable("this kernel has no pidfd (Linux 5.3): no process can be signalled safely")
        raise OSError(number, os.strerror(number))
    return result


def open_pid(pid: int) -> int | None:
    """A descriptor of the process; None when there is none."""
    try:
        return _syscall(_PIDFD_OPEN, pid, 0)
    except ProcessLookupError:
        return None


def send(pidfd: int, number: int) -> bool:
    """Whether the process was still there."""
    try:
        _syscall(_PIDFD_SEND_SIGNAL, pidfd, number, None, 0)
    except ProcessLookupError:
        return False
    return True
