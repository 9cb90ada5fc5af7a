# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""One MPS control daemon brought to what is wanted: its unit, its compute mode, its limits. What each change is seen by is said with it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._converge import Step
from ansible_collections.gpuops.remediation.plugins.module_utils._mps import grammar, program, state
from ansible_collections.gpuops.remediation.plugins.module_utils._mps.control import Control
from ansible_collections.gpuops.remediation.plugins.module_utils._mps.device import ComputeMode
from ansible_collections.gpuops.remediation.plugins.module_utils._mps.errors import HasClients, NoDaemon, ServerFault
from ansible_collections.gpuops.remediation.plugins.module_utils._mps.limits import PRIORITY, Settings
from ansible_collections.gpuops.remediation.plugins.module_utils._mps.state import Daemon, Server
from ansible_collections.gpuops.remediation.plugins.module_utils._mps.units import Units
from ansible_collections.gpuops.remediation.plugins.module_utils._node.journal import Journal

COMPUTE_MODE, START, STOP, DEFAULTS, SERVER = "set_compute_mode", "start", "stop", "set_defaults", "set_server"
_START_SECONDS = 20.0


@dataclass(frozen=True)
class Want:
    """`unit` is None where the daemon is started by others."""

    present: bool
    device: str
    settings: Settings
    unit: Optional[str]
    compute_mode: Optional[str] = None


@dataclass(frozen=True)
class State:
    daemon: Daemon
    compute_mode: Optional[str] = None
    unit_active: Optional[bool] = None

    def show(self) -> dict[str, Any]:
        told = self.daemon.show()
        return told if self.compute_mode is None else {**told, "compute_mode": self.compute_mode}


@dataclass
class DaemonTask:
    want: Want
    control: Control
    mode: Optional[ComputeMode]
    units: Optional[Units]
    journal: Journal
    guard: Callable[[], None]
    _named: Optional[Control] = field(default=None, init=False)

    # --- read ---

    def read(self) -> State:
        self.guard()
        active = self.units.read(self.want.unit).active if self.units and self.want.unit else None
        mode = self.mode.read() if self.mode and self.want.compute_mode else None
        try:
            daemon = state.read(self._of_device())
        except NoDaemon:
            daemon = Daemon(False)
        return State(daemon, mode, active)

    def _of_device(self) -> Control:
        self._named = self._named or self.control.of_device(self.want.device)
        return self._named

    # --- plan ---

    def plan(self, have: State) -> list[Step]:
        return self._plan_present(have) if self.want.present else self._plan_absent(have)

    def _plan_absent(self, have: State) -> list[Step]:
        """A daemon that is told to quit while it has clients answers nobody until they have gone."""
        if have.daemon.clients:
            pids = ", ".join(map(str, have.daemon.clients))
            raise HasClients(f"the MPS server has clients: {pids}", clients=have.daemon.clients)
        if not have.daemon.running and not have.unit_active:
            return []
        return [Step(STOP, self.want.unit or self.control.pipe_directory, {"running": True}, {"running": False})]

    def _plan_present(self, have: State) -> list[Step]:
        if self.want.unit is None and not have.daemon.running:
            raise NoDaemon(f"no MPS control daemon answers in {self.control.pipe_directory}")
        steps = self._plan_mode(have)
        if not have.daemon.running:
            # Its unit's program sets them, and fails the start if they are not taken
            return [
                *steps,
                Step(START, str(self.want.unit), {"running": False}, {"running": True, "defaults": state.shown(self.want.settings)}),
            ]
        defaults = _differing(self.want.settings, have.daemon.defaults)
        if defaults:
            steps.append(Step(DEFAULTS, "next_server", _of(defaults, have.daemon.defaults), state.shown(defaults)))
        for server in have.daemon.servers:
            steps += self._plan_server(server)
        return steps

    def _plan_mode(self, have: State) -> list[Step]:
        wanted = self.want.compute_mode
        if not wanted or not self.mode:
            return []
        self.mode.refuse(wanted)
        if have.compute_mode == wanted:
            return []
        self.mode.refuse_change(wanted)
        return [Step(COMPUTE_MODE, self.want.device, have.compute_mode, wanted)]

    def _plan_server(self, server: Server) -> list[Step]:
        """A running server has no priority of its own."""
        wanted = {name: value for name, value in self.want.settings.items() if name != PRIORITY}
        if wanted and server.status != grammar.ACTIVE:
            raise ServerFault(
                f"MPS server {server.pid} is {server.status}: its clients are to be ended first (mps_client with state=recovered)",
                clients=list(server.clients),
            )
        differing = _differing(wanted, server.settings)
        return [Step(SERVER, f"server {server.pid}", _of(differing, server.settings), state.shown(differing))] if differing else []

    def predict(self, have: State, steps: Sequence[Step]) -> State:
        daemon = have.daemon
        for step in steps:
            if step.action == STOP:
                daemon = Daemon(False)
            elif step.action == START:
                daemon = Daemon(True, dict(self.want.settings))
            elif step.action == DEFAULTS:
                daemon = replace(daemon, defaults={**daemon.defaults, **self.want.settings})
            elif step.action == SERVER:
                servers = [self._predicted(one) if step.target == f"server {one.pid}" else one for one in daemon.servers]
                daemon = replace(daemon, servers=servers)
        mode = self.want.compute_mode if any(step.action == COMPUTE_MODE for step in steps) else have.compute_mode
        return State(daemon, mode, have.unit_active)

    def _predicted(self, server: Server) -> Server:
        return replace(server, settings={name: self.want.settings.get(name, value) for name, value in server.settings.items()})

    # --- apply ---

    def apply(self, step: Step) -> None:
        self.guard()
        self.journal.intended(step.action, step.target, step.before, step.after)
        if step.action == COMPUTE_MODE and self.mode:
            self.mode.set(step.after)
        elif step.action == START and self.units and self.want.unit:
            self.units.start(self.want.unit)
            program.once_it_answers(self.control, _START_SECONDS)
        elif step.action == STOP:
            self._stop()
        elif step.action == DEFAULTS:
            self._of_device().set_defaults(self.want.settings)
        elif step.action == SERVER:
            wanted = {name: value for name, value in self.want.settings.items() if name != PRIORITY}
            self._of_device().set_server(int(step.target.split()[1]), wanted)
        self.journal.applied(step.action, step.target, step.before, step.after)

    def _stop(self) -> None:
        """Told to quit it ends its server first; the unit, which then has nothing left to end, only follows."""
        with contextlib.suppress(NoDaemon):
            self.control.quit()
        if self.units and self.want.unit:
            self.units.stop(self.want.unit)


def seen_by(steps: Sequence[Step], have: State) -> list[dict[str, Any]]:
    """Who sees each change: no client that runs keeps up with any."""
    clients = {f"server {one.pid}": list(one.clients) for one in have.daemon.servers}
    found = []
    for step in steps:
        if step.action == DEFAULTS:
            who = {"takes_effect": "next_server", "servers_as_before": [one.pid for one in have.daemon.servers]}
        elif step.action == SERVER:
            who = {"takes_effect": "new_clients", "clients_as_before": clients.get(step.target, [])}
        elif step.action in (START, COMPUTE_MODE):
            who = {"takes_effect": "now"}
        else:
            continue
        found.append({"action": step.action, "target": step.target, **who})
    return found


def _differing(wanted: Settings, have: Settings) -> dict[str, Any]:
    return {name: value for name, value in wanted.items() if have.get(name) != value}


def _of(names: Mapping[str, Any], have: Settings) -> dict[str, Any]:
    return state.shown({name: have[name] for name in names})
