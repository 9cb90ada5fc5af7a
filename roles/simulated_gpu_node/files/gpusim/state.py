# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The state file of one simulated node: the only thing that its NVML library, its command and its kubelet share.

Also compiled into the library, so: standard library only, Python 3.9.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from typing import Any, Optional

EVENTS_KEPT = 256


def call_name(symbol: str) -> str:
    """What people call an NVML function: without the version in its symbol, and one name for all ways to initialise."""
    return "nvmlInit" if symbol.startswith("nvmlInit") else re.sub(r"_v\d+$", "", symbol)


def add_event(state: dict[str, Any], gpu: dict[str, Any], kind: int, data: int) -> None:
    """For whoever waits on NVML events of this GPU."""
    state["event_sequence"] += 1
    gpu["events"].append({"sequence": state["event_sequence"], "type": kind, "data": data, "gi": None, "ci": None})
    del gpu["events"][:-EVENTS_KEPT]


class StateFile:
    """One JSON file. Writers hold a lock and replace it whole, so a reader never sees half of it and never waits."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._seen: Optional[tuple[int, int, int]] = None
        self._state: dict[str, Any] = {}

    def read(self) -> dict[str, Any]:
        """The present state; parsed again only when the file is another one."""
        now = os.stat(self.path)
        seen = (now.st_ino, now.st_mtime_ns, now.st_size)
        if seen != self._seen:
            with open(self.path, encoding="utf-8") as stream:
                # The file that was opened, not the one that was looked at: it may have been replaced in between.
                opened = os.fstat(stream.fileno())
                self._state = json.load(stream)
            self._seen = (opened.st_ino, opened.st_mtime_ns, opened.st_size)
        return self._state

    @contextlib.contextmanager
    def update(self, prepare: Optional[Callable[[dict[str, Any]], None]] = None) -> Iterator[dict[str, Any]]:
        """Change the state: what the body does to the dictionary is written when it ends without an error."""
        with open(self.path + ".lock", "a", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with open(self.path, encoding="utf-8") as stream:
                state = json.load(stream)
            if prepare:
                prepare(state)
            yield state
            self.write(state)

    def write(self, state: dict[str, Any]) -> None:
        handle, temporary = tempfile.mkstemp(dir=os.path.dirname(self.path), prefix=".state")
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(json.dumps(state))
        os.chmod(temporary, 0o644)
        os.replace(temporary, self.path)


def start_ticks(pid: int) -> Optional[int]:
    """Field 22 of /proc/PID/stat, or None when the process is gone (a zombie holds no GPU: it is gone too)."""
    try:
        with open("/proc/%d/stat" % pid, encoding="utf-8", errors="replace") as stream:
            fields = stream.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def is_alive(process: dict[str, Any]) -> bool:
    """Whether a process of the state file is still there, and not another one under its number."""
    return start_ticks(process["pid"]) == int(process["start_ticks"])
