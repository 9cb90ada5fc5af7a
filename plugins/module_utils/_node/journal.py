# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""The node's own record of what was done to it, by whom and why: a file that survives the controller, and the system log."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.gpuops.remediation.plugins.module_utils._node.node import Node
from ansible_collections.gpuops.remediation.plugins.module_utils._node.procfs import isoformat
from ansible_collections.gpuops.remediation.plugins.module_utils._node.statedir import StateDir, StateDirError

FILE = "journal.jsonl"
_LARGEST_BYTES = 8 << 20
_OLD_FILES = 4
_SYSLOG = "/dev/log"
_DAEMON_NOTICE = 3 * 8 + 5


@dataclass(frozen=True)
class Journal:
    state: StateDir
    boot_id: str
    by: str
    why: str
    incident_id: str | None = None

    @classmethod
    def from_params(cls, node: Node, params: Mapping[str, Any]) -> Journal:
        by = params["lock_holder"] or f"{os.environ.get('SUDO_USER') or 'uid ' + str(os.getuid())}, by hand"
        return cls(node.state, node.proc.boot_id(), by, params["why"], params["incident_id"])

    def intended(self, action: str, target: str, before: Any, after: Any) -> None:
        """Before the write: what cannot be written down is not done."""
        self._append("intended", action, target, before, after)

    def applied(self, action: str, target: str, before: Any, after: Any) -> None:
        self._append("applied", action, target, before, after)

    def _append(self, status: str, action: str, target: str, before: Any, after: Any) -> None:
        line = json.dumps(
            {
                "time": isoformat(time.time()),
                "boot_id": self.boot_id,
                "incident_id": self.incident_id,
                "action": action,
                "target": target,
                "before": before,
                "after": after,
                "status": status,
                "by": self.by,
                "why": self.why,
            }
        )
        try:
            with self.state.locked():
                self._rotate()
                fd = os.open(self.state.path / FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
                with open(fd, "w") as file:
                    file.write(line + "\n")
                    file.flush()
                    os.fsync(fd)
                self.state.sync()
        except OSError as error:
            raise StateDirError(f"cannot write {self.state.path / FILE}: {error}") from error
        _tell_system(line)

    def _rotate(self) -> None:
        path = self.state.path / FILE
        if not path.exists() or path.stat().st_size < _LARGEST_BYTES:
            return
        for number in range(_OLD_FILES - 1, 0, -1):
            with contextlib.suppress(FileNotFoundError):
                os.replace(f"{path}.{number}", f"{path}.{number + 1}")
        os.replace(path, f"{path}.1")
        self.state.sync()


def _tell_system(line: str) -> None:
    """The file is the record; the system log is told if it listens. syslog(3) would wait for ever for one that hangs."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log:
        log.setblocking(False)
        log.sendto(f"<{_DAEMON_NOTICE}>gpuops[{os.getpid()}]: {line}".encode(), _SYSLOG)
