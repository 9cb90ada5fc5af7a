# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""The clients of MPS servers: their GPU work ended by their server, their processes by a signal, and a server in FAULT brought back.

Three orders to the control daemon are harmful and never given. terminate_client for a server in FAULT blocks the daemon until that client has gone,
and leaves the server in FAULT for good. terminate_client for a client that was terminated already blocks it until that client has gone. And for one
that is frozen it blocks the daemon and the neighbours' work.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Callable, Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup import around, proof
from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.act import StillHeld
from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.paths import owner_of, process_path
from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.proof import Target
from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.state import Cgroups, wait
from ansible_collections.gpuops.remediation.plugins.module_utils._converge import Step
from ansible_collections.gpuops.remediation.plugins.module_utils._mps import grammar
from ansible_collections.gpuops.remediation.plugins.module_utils._mps.control import Control
from ansible_collections.gpuops.remediation.plugins.module_utils._mps.errors import ClientStopped, NoServer, ServerFault
from ansible_collections.gpuops.remediation.plugins.module_utils._mps.terminated import Terminated
from ansible_collections.gpuops.remediation.plugins.module_utils._node import pidfd
from ansible_collections.gpuops.remediation.plugins.module_utils._node.journal import Journal
from ansible_collections.gpuops.remediation.plugins.module_utils._node.node import Node
from ansible_collections.gpuops.remediation.plugins.module_utils._node.procfs import ProcFs

TERMINATE, END = "terminate_client", "end"
_TERMINATE_SECONDS = 15.0
_KILL_SECONDS = 5.0
_RENEW_SECONDS = 5.0


@dataclass(frozen=True)
class Want:
    """`pids` (pid and start_ticks) are who is terminated; a recovery concerns all clients of each server in FAULT."""

    state: str
    pids: Sequence[Mapping[str, int]] = ()
    end_process: bool = False
    grace_seconds: float = 10.0
    protect: Sequence[str] = ()

    @classmethod
    def from_params(cls, params: Mapping[str, Any]) -> Want:
        names = ("state", "end_process", "grace_seconds", "protect")
        return cls(pids=params["pids"] or (), **{name: params[name] for name in names})

    @property
    def recovered(self) -> bool:
        return self.state == "recovered"


@dataclass(frozen=True)
class Client:
    """`process` is /proc's record; with `lingers` there is none, and its server has not noticed."""

    server: int
    process: Mapping[str, Any]
    terminated: bool
    lingers: bool

    @property
    def pid(self) -> int:
        return int(self.process["pid"])

    def show(self) -> dict[str, Any]:
        return {"server": self.server, **self.process, "terminated": self.terminated, "lingers": self.lingers}


@dataclass(frozen=True)
class State:
    status: Mapping[int, str]
    clients: Sequence[Client]

    def show(self) -> dict[str, Any]:
        return {
            "servers": [{"pid": pid, "status": status} for pid, status in self.status.items()],
            "clients": [one.show() for one in self.clients],
        }


def read(control: Control, proc: ProcFs, terminated: Terminated) -> State:
    status: dict[int, str] = {}
    clients = []
    for server in control.servers():
        with contextlib.suppress(NoServer):
            status[server] = control.status(server)
            for pid in control.clients(server):
                found = {"pid": pid, **proc.describe(pid)}
                clients.append(Client(server, found, terminated.has(pid, found["start_ticks"]), found["start_ticks"] is None))
    if any(one == grammar.FAULT for one in status.values()):
        known = {client.pid for client in clients}
        ghosts = [(row.server, row.pid) for row in control.rows() if row.lingers and row.pid not in known]
        clients += [Client(server, {"pid": pid, **proc.describe(0)}, False, True) for server, pid in ghosts]
    return State(status, clients)


class ClientTask:
    def __init__(
        self, node: Node, control: Control, want: Want, journal: Journal, guard: Callable[[], None], timeout_seconds: float
    ) -> None:
        self._node = node
        self._control = control
        self._want = want
        self._journal = journal
        self._guard = guard
        self._deadline = time.monotonic() + timeout_seconds
        self._terminated = Terminated(node.state, node.proc)
        self._pidfds: dict[tuple[int, int], int] = {}
        self._renewed = time.monotonic()

    @contextlib.contextmanager
    def holding(self) -> Iterator[ClientTask]:
        """Every process that may be touched is held by a descriptor until all is done."""
        try:
            yield self
        finally:
            for descriptor in self._pidfds.values():
                os.close(descriptor)

    def read(self) -> State:
        self._guard()
        return read(self._control, self._node.proc, self._terminated)

    # --- plan ---

    def plan(self, have: State) -> list[Step]:
        if self._want.state == "listed":
            return []
        return self._plan_recovery(have) if self._want.recovered else self._plan_termination(have)

    def _plan_recovery(self, have: State) -> list[Step]:
        """The work of every client is lost already: there is nothing for the server to terminate, only processes to end."""
        steps = []
        for server, status in have.status.items():
            if status != grammar.FAULT:
                continue
            clients = [one for one in have.clients if one.server == server]
            self._refuse_lingering(server, clients)
            self._prove(clients)
            steps.append(_end(server, clients))
        return steps

    @staticmethod
    def _refuse_lingering(server: int, clients: Sequence[Client]) -> None:
        gone = [one.pid for one in clients if one.lingers]
        if gone:
            raise ServerFault(
                f"MPS server {server} stays in FAULT: it has not let go of {', '.join(map(str, gone))}, which have ended. "
                "Only another daemon helps: restart its unit",
                clients=gone,
            )

    def _plan_termination(self, have: State) -> list[Step]:
        chosen = self._chosen(have)
        steps = []
        for one in chosen:
            if not one.terminated:
                if have.status[one.server] != grammar.ACTIVE:
                    raise ServerFault(
                        f"MPS server {one.server} is {have.status[one.server]}: told to terminate a client it would never answer again",
                        clients=[other.pid for other in have.clients if other.server == one.server],
                    )
                self._hold(one)
                self._refuse_stopped(one.pid)
                steps.append(Step(TERMINATE, f"client {one.pid} of server {one.server}", {"terminated": False}, {"terminated": True}))
        if self._want.end_process and chosen:
            self._prove(chosen)
            steps += [_end(server, [one for one in chosen if one.server == server]) for server in sorted({one.server for one in chosen})]
        return steps

    def _chosen(self, have: State) -> list[Client]:
        """Those that live still. One that lives and is nobody's client was named by mistake, and then nothing is done."""
        clients = {(one.pid, one.process["start_ticks"]): one for one in have.clients}
        alive = [(one["pid"], one["start_ticks"]) for one in self._want.pids if self._node.proc.alive(one["pid"], one["start_ticks"])]
        strays = [{"pid": pid, **self._node.proc.describe(pid)} for pid, ticks in alive if (pid, ticks) not in clients]
        if strays:
            told = ", ".join(str(one["pid"]) for one in strays)
            raise proof.NotProven(f"pid {told} is no client of this MPS daemon", suspects=proof.suspects(strays, "is no client"))
        return [clients[key] for key in alive]

    def _refuse_stopped(self, pid: int) -> None:
        """It has to take part in its termination."""
        found = self._node.proc.process(pid)
        path = process_path(found.cgroups) if found else None
        if found and (found.state in "Tt" or (path and Cgroups.at(self._node.cgroup_root).frozen(path))):
            raise ClientStopped(
                f"client {pid} is frozen or stopped: its server would wait for it, and its neighbours too. Thaw it first", client=pid
            )

    def _hold(self, client: Client) -> Optional[float]:
        """Its start, once a descriptor holds it and /proc still tells the same."""
        key = (client.pid, int(client.process["start_ticks"]))
        if key not in self._pidfds:
            descriptor = pidfd.open_pid(client.pid)
            if descriptor is None:
                return None
            self._pidfds[key] = descriptor
        found = self._node.proc.process(client.pid)
        return found.start_time if found and found.start_ticks == key[1] else None

    def _prove(self, clients: Sequence[Client]) -> None:
        now = time.time()
        starts = {one.pid: start for one in clients for start in [self._hold(one)] if start is not None}
        cgroups, targets = Cgroups.at(self._node.cgroup_root), []
        for path in sorted({one.process["cgroup"] or "/" for one in clients}):
            owner = owner_of(path)
            holders = [one.process for one in clients if (one.process["cgroup"] or "/") == path]
            targets.append(Target(owner.path if owner else path, holders, around.members(cgroups, owner.path) if owner else []))
        proof.require(targets, around.this_task(), proof.Rules(now, self._want.protect), starts)

    def predict(self, have: State, steps: Sequence[Step]) -> State:
        ended = {pid for step in steps if step.action == END for pid in step.before["processes"]}
        named = {step.target for step in steps if step.action == TERMINATE}
        clients = [
            Client(one.server, one.process, one.terminated or f"client {one.pid} of server {one.server}" in named, one.lingers)
            for one in have.clients
            if one.pid not in ended
        ]
        status = {server: grammar.ACTIVE if self._want.recovered else state for server, state in have.status.items()}
        return State(status, clients)

    # --- apply ---

    def apply(self, step: Step) -> None:
        self._guard()
        self._journal.intended(step.action, step.target, step.before, step.after)
        if step.action == TERMINATE:
            words = step.target.split()
            self._terminate(int(words[4]), int(words[1]))
        else:
            self._end(step)
        self._journal.applied(step.action, step.target, step.before, step.after)

    def _terminate(self, server: int, pid: int) -> None:
        """Written down first: told twice, the daemon hangs."""
        ticks = next(ticks for held, ticks in self._pidfds if held == pid)
        if not self._node.proc.alive(pid, ticks):
            return
        self._refuse_stopped(pid)
        self._terminated.add(pid, ticks)
        self._control.terminate_client(server, pid, max(1.0, min(_TERMINATE_SECONDS, self._deadline - time.monotonic())))

    def _end(self, step: Step) -> None:
        """By SIGTERM, and whoever lives on by SIGKILL; then the server, which notices at once, is waited for."""
        held = {key: descriptor for key, descriptor in self._pidfds.items() if key[0] in step.before["processes"]}

        def gone() -> bool:
            self._renew()
            return not any(self._node.proc.alive(*key) for key in held)

        for number, seconds in ((signal.SIGTERM, self._want.grace_seconds), (signal.SIGKILL, _KILL_SECONDS)):
            for descriptor in held.values():
                pidfd.send(descriptor, number)
            if wait(gone, min(time.monotonic() + seconds, self._deadline)):
                break
        else:
            left = [key[0] for key in held if self._node.proc.alive(*key)]
            raise StillHeld(f"clients have not ended in time: {', '.join(map(str, left))}", changed=True, left=left)
        server = int(step.target.split()[1])
        if not wait(lambda: self._let_go(server, step.before["processes"]), self._deadline):
            raise ServerFault(f"MPS server {server} has not let go of its clients in time", changed=True, clients=step.before["processes"])

    def _renew(self) -> None:
        """While something is waited for."""
        if time.monotonic() - self._renewed > _RENEW_SECONDS:
            self._guard()
            self._renewed = time.monotonic()

    def _let_go(self, server: int, pids: Sequence[int]) -> bool:
        self._renew()
        try:
            listed = set(self._control.clients(server)) & set(pids)
            return not listed and (not self._want.recovered or self._control.status(server) == grammar.ACTIVE)
        except NoServer:
            return True


def _end(server: int, clients: Sequence[Client]) -> Step:
    return Step(END, f"server {server}", {"processes": sorted(one.pid for one in clients)}, {"processes": []})
