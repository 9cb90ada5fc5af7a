# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""An MPS control daemon in memory, as far as plans and their steps need one. How the real one answers is tested elsewhere."""

from __future__ import annotations

from ansible_collections.gpuops.remediation.plugins.module_utils._mps.control import Control
from ansible_collections.gpuops.remediation.plugins.module_utils._mps.errors import NoDaemon

UUID = "GPU-8eac62e3-13fd-aa5e-0cc8-34028f41c9d0"


class FakeMps(Control):
    """`servers`: by pid, the state and the clients. Everything that was asked is in `asked`."""

    def __init__(self, servers=None, running=True):
        super().__init__("none", "/pipes", devices=("0", UUID))
        object.__setattr__(self, "fake", {"servers": servers or {}, "running": running, "values": {}})
        object.__setattr__(self, "asked", [])

    def of_device(self, uuid):
        self.ask("device_query")
        return self

    def ask(self, command, timeout_seconds=None):
        self.asked.append(command)
        if not self.fake["running"]:
            raise NoDaemon("nobody answers")
        verb, *words = command.split()
        known = getattr(self, f"_{verb}", None)
        if known:
            return known(*words)
        if verb.startswith("set_"):
            *names, value = words
            self.fake["values"][(verb[4:], *names)] = "" if value == "0G" else value
            return ""
        default = "100.0" if "percentage" in verb else "0" if "priority" in verb else ""
        return self.fake["values"].get((verb[4:], *words), default) + "\n"

    def _device_query(self):
        return ""

    def _get_server_list(self):
        return "".join(f"{pid}\n" for pid in self.fake["servers"])

    def _get_server_status(self, pid):
        return self.fake["servers"][int(pid)][0] + "\n"

    def _get_client_list(self, pid):
        return "".join(f"{one}\n" for one in self.fake["servers"][int(pid)][1])

    def _ps(self):
        return "".join(f"{pid} 1 {server} {UUID[:22]} ? ?\n" for server, pid in self.fake.get("ghosts", []))

    def _terminate_client(self, server, pid):
        return "0\n" if int(pid) in self.fake["servers"][int(server)][1] else f"Invalid process {pid}!\n1\n"

    def _quit(self):
        self.fake["running"] = False
        return ""
