# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""What cuda_launch costs, and that it goes where that is more than it may.

Hits times what one costs on this machine, and the time that its programs took by their own clock, as a share of one CPU since the last look.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ansible_collections.gpuops.remediation.plugins.module_utils._bpf import launches, trap
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.errors import ProbeError
from ansible_collections.gpuops.remediation.plugins.module_utils._node.procfs import isoformat
from ansible_collections.gpuops.remediation.plugins.module_utils._node.statedir import StateDir

PROBE = "cuda_launch"
DEFAULT_CPU_PERCENT = 5.0
_SHORTEST_SECONDS = 1.0  # a share of less says nothing
_FILE = "probes_stopped.json"


@dataclass(frozen=True)
class Look:
    """`hit_ns` is None where it cannot be measured: the way into the kernel is not in the cost then."""

    hits: int
    programs_ns: int
    boottime_seconds: float
    hit_ns: float | None
    cpu_percent: float | None = None  # of one CPU, since the look before

    def after(self, before: Mapping[str, Any] | None) -> Look:
        """With its share, or the one before where too little time has passed. None where there is nothing to compare, or counts began anew."""
        if not before or before["hits"] > self.hits or before["programs_ns"] > self.programs_ns:
            return self
        seconds = self.boottime_seconds - before["boottime_seconds"]
        if seconds < _SHORTEST_SECONDS:
            return Look(**before)
        spent_ns = self.programs_ns - before["programs_ns"] + (self.hits - before["hits"]) * (self.hit_ns or 0.0)
        return Look(self.hits, self.programs_ns, self.boottime_seconds, self.hit_ns, spent_ns / seconds / 1e7)

    def why_not(self, most_percent: float) -> str | None:
        """Why the probe has to go, in words."""
        if self.cpu_percent is None or self.cpu_percent <= most_percent:
            return None
        return f"{PROBE} took {self.cpu_percent:.3g} % of one CPU, and may take {most_percent:g} %"

    def show(self) -> dict[str, Any]:
        return asdict(self)


def look(bpffs_dir: str, before: Mapping[str, Any] | None) -> Look | None:
    """None where the probe is not attached. `before` is what the last look showed, of this boot."""
    maps = Path(bpffs_dir) / PROBE / "maps"
    if not (maps / "launch_counters").exists():
        return None
    counts = launches.counters(maps)
    hit_ns = before["hit_ns"] if before else _hit_ns()  # once a boot: it takes a tenth of a second
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    return Look(counts["launch_hits"], counts["launch_programs_ns"], now, hit_ns).after(before)


def _hit_ns() -> float | None:
    try:
        return trap.hit_ns()
    except (ProbeError, OSError):  # before Linux 6.6, or where no memory may be executable
        return None


def stop(state: StateDir, why: str, now: float) -> None:
    """From now on, also after a reboot, until somebody asks for the probe again."""
    with state.locked():
        state.write(_FILE, {**_read(state), PROBE: {"why": why, "since": isoformat(now)}})


def ask_again(state: StateDir, probes: Collection[str]) -> None:
    with state.locked():
        kept = {name: each for name, each in _read(state).items() if name not in probes}
        if kept != _read(state):
            state.write(_FILE, kept)


def stopped(state: StateDir) -> Mapping[str, Any]:
    """By probe, why and since when."""
    return _read(state)


def _read(state: StateDir) -> dict[str, Any]:
    found: dict[str, Any] = state.read(_FILE, {})
    return found
