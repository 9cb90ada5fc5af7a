# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""What an MPS control daemon has: its servers, their clients, and the limits, read in one go."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._mps import grammar
from ansible_collections.gpuops.remediation.plugins.module_utils._mps.control import Control
from ansible_collections.gpuops.remediation.plugins.module_utils._mps.errors import NoDaemon, NoServer
from ansible_collections.gpuops.remediation.plugins.module_utils._mps.limits import MEMORY, MIB, PRIORITIES, PRIORITY, Settings, Value


@dataclass(frozen=True)
class Server:
    """One in another state than ACTIVE is not asked for its settings."""

    pid: int
    status: str
    clients: tuple[int, ...]
    settings: Settings = field(default_factory=dict)


@dataclass(frozen=True)
class Daemon:
    running: bool
    defaults: Settings = field(default_factory=dict)
    servers: Sequence[Server] = ()

    @property
    def clients(self) -> list[int]:
        return [pid for server in self.servers for pid in server.clients]

    def show(self) -> dict[str, Any]:
        return {
            "running": self.running,
            "defaults": shown(self.defaults),
            "servers": [
                {"pid": one.pid, "status": one.status, "clients": list(one.clients), "settings": shown(one.settings)}
                for one in self.servers
            ],
        }


def read(control: Control) -> Daemon:
    try:
        pids = control.servers()
    except NoDaemon:
        return Daemon(False)
    return Daemon(True, control.defaults(), [server for pid in pids for server in [_server(control, pid)] if server])


def _server(control: Control, pid: int) -> Optional[Server]:
    """None where it has ended meanwhile."""
    try:
        status = control.status(pid)
        return Server(pid, status, control.clients(pid), control.server_settings(pid) if status == grammar.ACTIVE else {})
    except NoServer:
        return None


def shown(settings: Settings) -> dict[str, Any]:
    """For people and playbooks: bytes and words."""
    return {_NAMES.get(name, name): _shown(name, value) for name, value in settings.items()}


_NAMES: Mapping[str, str] = {MEMORY: "memory_limit_bytes"}


def _shown(name: str, value: Value) -> Any:
    if name == PRIORITY:
        return next((word for word, number in PRIORITIES.items() if number == value), value)
    if name == MEMORY and value is not None:
        return "conflicting" if math.isnan(value) else int(value) * MIB  # not a number: the device's two names have different limits
    return value
