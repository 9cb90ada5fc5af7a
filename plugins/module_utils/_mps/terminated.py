# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Which clients were told to be terminated. MPS lists them as before until their processes end, and does not say that they were."""

from __future__ import annotations

from typing import Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._node.procfs import ProcFs
from ansible_collections.gpuops.remediation.plugins.module_utils._node.statedir import StateDir

_FILE = "mps_terminated.json"


class Terminated:
    def __init__(self, state: StateDir, proc: ProcFs) -> None:
        self._state = state
        self._proc = proc

    def has(self, pid: int, start_ticks: Optional[int]) -> bool:
        return [pid, start_ticks] in self._read()

    def add(self, pid: int, start_ticks: int) -> None:
        """Those that have ended are left out: the file stays short."""
        with self._state.locked():
            kept = [one for one in self._read() if self._proc.alive(*one)]
            self._state.write(_FILE, {"boot_id": self._proc.boot_id(), "clients": [*kept, [pid, start_ticks]]})

    def _read(self) -> list[list[int]]:
        stored = self._state.read(_FILE, {})
        return list(stored["clients"]) if stored.get("boot_id") == self._proc.boot_id() else []
