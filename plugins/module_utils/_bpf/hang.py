# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Whether a process hangs with its memory map locked.

Attaching and detaching at a function wait for the map of each process that has the file, and while they wait no process of the node can fork. What
they would wait for is waited for here first, by a child under a time limit.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.errors import ProbeError
from ansible_collections.gpuops.remediation.plugins.module_utils._node.procfs import ProcFs
from ansible_collections.gpuops.remediation.plugins.module_utils._node.statedir import StateDir
from ansible_collections.gpuops.remediation.plugins.module_utils._node.watchdog import Watchdog

_SOURCE = "memory maps"
_FILES = ("maps", "cmdline")  # the first needs the lock before Linux 6.17, the second on later ones too


class HungProcess(ProbeError):
    """Probes can neither come nor go before it has ended."""

    kind = "hung_process"


def require_none(proc: ProcFs, state: StateDir, timeout_seconds: float) -> None:
    def collect(emit: Any) -> None:
        for pid in sorted(proc.pids()):
            emit({"pid": pid})
            for name in _FILES:
                _touch(proc.root / str(pid) / name)

    answer = Watchdog(state, timeout_seconds).collect({_SOURCE: collect})[0][_SOURCE]
    if answer.why:
        pid = answer.items[-1]["pid"] if answer.items else None
        raise HungProcess(
            f"the memory map of pid {pid or 'unknown'} cannot be read ({answer.why}): attaching or detaching would wait for it, and every fork"
            " on the node with it; end that process, or reboot",
            pid=pid,
        )


def _touch(path: Path) -> None:
    try:
        with open(path, "rb", buffering=0) as file:
            file.read(64)
    except OSError:  # it has ended
        return
