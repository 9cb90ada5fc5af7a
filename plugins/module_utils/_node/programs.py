# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.
"""Programs that a watched child runs. They die with it, and one that does not is written down as a child that cannot be killed is."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Sequence
from typing import Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._node.procfs import ProcFs
from ansible_collections.gpuops.remediation.plugins.module_utils._node.watchdog import PR_SET_PDEATHSIG, PROGRAM, Emit


def run(command: Sequence[str], emit: Emit, timeout_seconds: Optional[float] = None) -> tuple[int, str]:
    """Its exit status and its words. One that is late is killed, and not waited for: it may be in the driver."""
    libc, parent = ctypes.CDLL(None), os.getpid()

    def die_with_parent() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    process = subprocess.Popen(
        command, env={**os.environ, "LC_ALL": "C"}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        preexec_fn=die_with_parent,
    )  # fmt: skip
    found = ProcFs("/proc").process(process.pid)  # not reaped yet, so that the pid is its own
    emit({PROGRAM: [process.pid, found.start_ticks if found else -1]})
    try:
        words, _nothing = process.communicate(timeout=timeout_seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return process.returncode, words.strip()
