# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""What /proc says of a node and its processes. The root is an option, so that several simulated nodes can share one machine."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.paths import owner_of, parse_memberships, process_path
from ansible_collections.gpuops.remediation.plugins.module_utils._errors import RemediationError
from ansible_collections.gpuops.remediation.plugins.module_utils._xid.times import parse_time

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class NodeUnreadable(RemediationError):
    """The node's /proc lacks what every answer needs."""

    kind = "node_unreadable"


def isoformat(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="microseconds")


def parse_seconds(text: str) -> float:
    """Seconds since the epoch of an ISO 8601 time; one without a zone is UTC."""
    moment = parse_time(text, assume_utc=True)
    if moment is None:
        raise RemediationError(f"{text!r} is not an ISO 8601 time")
    return moment.timestamp()


@dataclass(frozen=True)
class ProcessInfo:
    pid: int
    parent: int
    state: str
    name: str
    start_ticks: int
    executable: str | None
    cgroups: Mapping[str, str]

    @property
    def start_time(self) -> float:
        """By the age of the process, not by btime, which is cut to whole seconds."""
        return time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - self.start_ticks / _TICKS_PER_SECOND)

    def record(self) -> dict[str, Any]:
        """The part of a process record that /proc knows."""
        path = process_path(self.cgroups)
        owner = owner_of(path) if path else None
        container = owner.container if owner else None
        return {
            "start_time": isoformat(self.start_time),
            "start_ticks": self.start_ticks,
            "name": self.name,
            "executable": self.executable,
            "cgroup": path,
            "container": vars(container) if container else None,
            "unit": owner.unit if owner else None,
        }


def parse_stat(text: str) -> tuple[str, str, int, int]:
    """Name, state, parent and start ticks of /proc/PID/stat; the name may hold spaces and brackets."""
    name, rest = text[text.index("(") + 1 : text.rindex(")")], text[text.rindex(")") + 2 :].split()
    return name, rest[0], int(rest[1]), int(rest[19])


class ProcFs:
    def __init__(self, root: str) -> None:
        self.root = Path(root)

    def _read(self, relative: str) -> str:
        try:
            return (self.root / relative).read_text(errors="replace")
        except OSError as error:
            raise NodeUnreadable(f"cannot read {self.root / relative}: {error}") from error

    def boot_id(self) -> str:
        return self._read("sys/kernel/random/boot_id").strip()

    def boot_time(self) -> int:
        match = re.search(r"^btime (\d+)", self._read("stat"), re.MULTILINE)
        if not match:
            raise NodeUnreadable(f"{self.root / 'stat'} has no btime")
        return int(match.group(1))

    def memory_bytes(self) -> int:
        match = re.search(r"^MemTotal:\s+(\d+) kB", self._read("meminfo"), re.MULTILINE)
        if not match:
            raise NodeUnreadable(f"{self.root / 'meminfo'} has no MemTotal")
        return int(match.group(1)) * 1024

    def pids(self) -> Iterator[int]:
        return (int(name) for name in os.listdir(self.root) if name.isdigit())

    def process(self, pid: int) -> ProcessInfo | None:
        """None when there is no such process (any more). cmdline and maps are not read: they can block on a hung process."""
        folder = self.root / str(pid)
        try:
            name, state, parent, ticks = parse_stat((folder / "stat").read_text(errors="replace"))
            cgroups = parse_memberships((folder / "cgroup").read_text(errors="replace"))
        except (OSError, ValueError):
            return None
        try:
            executable = os.readlink(folder / "exe")
        except OSError:  # a kernel thread, or a process that is just ending
            executable = None
        return ProcessInfo(pid, parent, state, name, ticks, executable, cgroups)

    def alive(self, pid: int, start_ticks: int) -> bool:
        """Whether this very process is there and not yet a zombie: a pid alone may have been given to another."""
        found = self.process(pid)
        return found is not None and found.start_ticks == start_ticks and found.state not in "ZX"

    def ancestors(self, pid: int) -> list[int]:
        """The process itself, its parent, and so on up to the first."""
        chain: list[int] = []
        found = self.process(pid)
        while found and found.pid not in chain:
            chain.append(found.pid)
            found = self.process(found.parent)
        return chain

    def describe(self, pid: int) -> dict[str, Any]:
        """The part of a process record that /proc knows; all null when the process is gone."""
        found = self.process(pid)
        return found.record() if found else dict.fromkeys(_RECORD_KEYS)

    def driver_gpus(self) -> list[dict[str, Any]]:
        """GPUs as the driver lists them without NVML: what is left when NVML hangs or has lost one."""
        found = []
        for path in sorted(self.root.glob("driver/nvidia/gpus/*/information")):
            lines = dict(line.split(":", 1) for line in path.read_text(errors="replace").splitlines() if ":" in line)
            told = {name.strip(): value.strip() for name, value in lines.items()}
            if told.get("GPU Excluded", "No") == "No":
                minor = told.get("Device Minor", "")
                found.append(
                    {
                        "uuid": told["GPU UUID"] if "?" not in told.get("GPU UUID", "?") else None,  # GPU-???????? until first used
                        "pci_bus_id": told.get("Bus Location", path.parent.name).lower(),
                        "minor": int(minor) if minor.isdigit() else None,
                        "name": told.get("Model"),
                    }
                )
        return found


_RECORD_KEYS = ("start_time", "start_ticks", "name", "executable", "cgroup", "container", "unit")
