# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A rulebook whose processes are killed at a chosen point of a run, and what has to hold afterwards, whoever was killed.

Each case has a node of its own. After it, what a service manager would start again is started again; reconcile runs once the dead runs' locks
have lapsed, as its timer would have it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible_collections.gpuops.remediation.plugins.module_utils._errors import RemediationError
from cluster.faults import Admission, admission
from cluster.objects import wait_until
from fleet import TAINT, Fleet
from gpusim.state import is_alive
from loop import Controller
from postgresql import Server
from trigger import Rulebook

# Where a run stands when somebody dies: just before this task.
BOUNDARIES = {
    "accepted": "Open an incident for each fault, or find the one already open",
    "detect": "Knock",
    "diagnose": "Begin isolate",
    "written ahead": "End them",
    "done, not kept": "Keep what was read back",
    "isolate": "Begin taint",
    "taint": "Begin evict",
    "evict": "Begin verify",
    "verify": "End each incident in the state that its stages amount to",
}
IN_PROCESSES = ("written ahead", "done, not kept")  # where processes are ended: on bare hosts
# On Kubernetes, or while the node is written and the ledger has not kept it: by the event source's fence, or by the run's taint stage.
FENCED, TAINTED = "fenced, not kept", "tainted, not kept"
# The others are fenced at once for a lost GPU; here the run has a taint to write, for a fault that only the node can confirm.
BY_THE_RUN = ("isolate", TAINTED, "taint")
ROOM = 1000  # a dead run's nodes keep their room until reconcile, which comes once all have been killed
LEFT_SECONDS = 90.0  # without a word or an end, and a run hangs
TARGETS = ("rulebook", "rulebook alone", "playbook", "worker", "group", "postgresql")


@dataclass(frozen=True)
class Case:
    """who: is killed, or for PostgreSQL stopped without a goodbye and started again. boundary: of BOUNDARIES, FENCED or TAINTED."""

    who: str
    how: signal.Signals
    boundary: str

    def __str__(self) -> str:
        return f"{self.who}, {self.how.name}, after {self.boundary}"


class Crashes:
    """A controller with its rulebook, which stays from case to case until one kills it."""

    def __init__(self, controller: Controller, postgresql: Server | None = None) -> None:
        self.controller, self.postgresql = controller, postgresql
        self.cases: dict[str, Case] = {}  # by node
        self.pods: dict[str, str] = {}  # on each node's GPU, on Kubernetes
        self.hung: list[str] = []  # the last nodes of runs that did not end
        self._stop, self._standing = controller.directory / "stop", controller.directory / "standing"
        self._told = controller.directory / "told"
        self._told.touch()
        controller.variables["gpuops_notify_command"] = ["sh", "-c", 'printf "%s\\n" "$(cat)" >> "$0"', str(self._told)]
        controller.variables["gpuops_max_parallel_nodes"] = ROOM
        hook = controller.directory / "stand.sh"
        stop, standing = shlex.quote(str(self._stop)), shlex.quote(str(self._standing))
        hook.write_text(
            f'[ "$(cat {stop} 2>/dev/null)" = "$1 $HOST" ] || exit 0\n'
            f"echo $$ > {stop}; mv {stop} {standing}\n"
            f"while [ -e {standing} ]; do sleep 0.05; done\n"
        )
        controller.before = {task: shlex.join(["sh", str(hook), boundary]) for boundary, task in BOUNDARIES.items()}
        fences = (
            {"gpuops_fence_in": "source", "gpuops_kubeconfig": str(controller.cluster.kubeconfig)} if isinstance(controller, Fleet) else {}
        )
        self.rulebook = Rulebook(controller, gpuops_trigger_window_seconds=0.1, gpuops_max_parallel_nodes=ROOM, **fences)
        self.rulebook.environment["JAVA_TOOL_OPTIONS"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # it starts often and never runs long

    @contextlib.contextmanager
    def running(self) -> Iterator[Crashes]:
        """On Kubernetes with the nodes' kubelets."""
        kubelet: AbstractContextManager[Any] = self.controller.kubelet() if isinstance(self.controller, Fleet) else contextlib.nullcontext()
        with kubelet:
            try:
                self.rulebook.start()
                yield self
            finally:
                self._standing.unlink(missing_ok=True)
                self.rulebook.kill()
                self._end_left(signal.SIGKILL)

    def crash(self, case: Case, nodes: int = 1) -> None:
        """An alert of each node is posted in one message, the run comes to the boundary, somebody dies, and what has to be there is there again."""
        alerts = [self._sick(case) for _node in range(nodes)]
        last = list(self.cases)[-1]
        self._wait_for_runs()  # of an earlier case, whose end here would be another death
        with self._brought_to(case.boundary, last) as there:
            self.rulebook.post(self.controller.together(*alerts))
            wait_until(there, f"{case}: the run gets there\n{self.rulebook.log}", 200)
            self._kill(case)
            if case.who == "rulebook":
                self._end_left(signal.SIGTERM)  # as systemd does when the main process of a service is gone
        if not self._left_ends():
            self.hung.append(last)
            self._end_left(signal.SIGKILL)
        if self.postgresql and not self.postgresql.runs:
            self.postgresql.start()
        if not self.rulebook.runs:
            self.rulebook.start()

    @contextlib.contextmanager
    def _brought_to(self, boundary: str, node: str) -> Iterator[Callable[[], Any]]:
        """Inside, the run of the node comes to the boundary and no further; yields whether it is there."""
        if boundary not in BOUNDARIES:
            assert isinstance(self.controller, Fleet)
            objects = self.controller.objects
            with self._kept_from_the_ledger(self.controller, node):
                yield lambda: TAINT in objects.taints(node)
            return
        self._stop.write_text(f"{boundary} {'localhost' if boundary == 'accepted' else node}")
        try:
            yield self._standing.exists
        finally:
            self._standing.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _kept_from_the_ledger(self, fleet: Fleet, node: str) -> Iterator[None]:
        """From the moment when the node is about to be written nobody writes to the ledger."""
        held, over = threading.Event(), threading.Event()

        def hold() -> None:
            with contextlib.suppress(RemediationError), fleet.ledger(write=True).write():  # PostgreSQL may be stopped meanwhile
                held.set()
                over.wait()

        holder = threading.Thread(target=hold)

        def before(request: Any) -> None:
            if request["name"] == node and not held.is_set():
                holder.start()
                held.wait(30)

        with admission(fleet.cluster, "nodes", Admission(before=before)):
            try:
                yield
            finally:
                over.set()
                if holder.ident:
                    holder.join()

    def _left_ends(self) -> bool:
        """Whether all runs do; one that says nothing for so long hangs."""
        said, since = -1, time.monotonic()
        while self._playbooks():
            if said != (said := self.rulebook.log.stat().st_size):
                since = time.monotonic()
            if time.monotonic() - since > LEFT_SECONDS:
                return False
            time.sleep(0.2)
        return True

    def _end_left(self, number: signal.Signals) -> None:
        """All but a rulebook that lives."""
        assert self.rulebook.process is not None
        for pid in set(self.processes()) - ({self.rulebook.process.pid} if self.rulebook.runs else set()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def another(self, case: Case) -> None:
        """An alert of a node that nobody has hurt, while all is being taken up again."""
        self.rulebook.post(self._sick(case))

    def reconcile(self) -> None:
        """Once nobody works any more, and the locks of the dead have lapsed."""
        self._wait_for_runs()
        wait_until(lambda: not self.controller.ledger().busy_nodes(), "the end of the dead runs' locks", 60)
        run = self.controller.play("reconcile", timeout_seconds=900)
        assert run.ok, run.output

    def _wait_for_runs(self) -> None:
        wait_until(lambda: not self._playbooks(), "the end of all runs", 300)

    def faults(self) -> dict[str, str]:
        """By node, what has been lost, left, or done twice; nothing is as it should be."""
        waiting, _oldest = self.controller.ledger().waiting()
        everywhere = [f"{len(waiting)} messages without a decision"] if waiting else []
        everywhere += [
            f"process {pid} is left: {words[:200]}" for pid, words in self.processes().items() if pid not in self.rulebook.family()
        ]
        told: defaultdict[str, list[str]] = defaultdict(list)
        for message in map(json.loads, self._told.read_text().splitlines()):
            if "node" in message["payload"]:
                told[message["payload"]["node"]].append(message["topic"])
            else:
                everywhere.append(f"people were told {message}")
        found = {}
        for node, case in self.cases.items():
            incidents = self.controller.incidents(node)
            wrong = [*everywhere, *(["its run hung until it was killed"] if node in self.hung and case.who != "rulebook alone" else [])]
            if [one["state"] for one in incidents] != ["contained"]:
                wrong.append("ended as %s" % [(one["state"], one["reason"]) for one in incidents])
            if told[node] != ["contained"]:
                wrong.append(f"people were told {told[node]}")
            wrong += [f"{what}: {count} times" for what, count in self._writes(node).items() if count != 1]
            wrong += self._left_on(node)
            if wrong:
                found[node] = "; ".join(wrong)
        return found

    def notes(self) -> dict[str, str]:
        """By node, what is no fault of ours: ansible-core may wait for ever once its terminal is gone, until the service manager ends it."""
        return {
            node: f"ended by the service manager after {LEFT_SECONDS:.0f} s"
            for node, case in self.cases.items()
            if node in self.hung and case.who == "rulebook alone"
        }

    def processes(self) -> dict[int, str]:
        """What this controller has started, directly or not, and is alive."""
        mark = f"TMPDIR={self.controller.directory}/tmp\0".encode()
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if mark in (path / "environ").read_bytes() + b"\0":
                    found[int(path.name)] = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        return found

    def _sick(self, case: Case) -> Path:
        name = f"case-{len(self.cases)}"
        self.cases[name] = case
        if isinstance(self.controller, Fleet):
            self.pods[name], alert = self._sick_in(self.controller, name, case)
        else:
            _pid, alert = self.controller.sick(name)
        self.controller.inventory()
        return alert

    def _sick_in(self, fleet: Fleet, name: str, case: Case) -> tuple[str, Path]:
        """With a pod on the GPU that fails."""
        [node] = fleet.gpu_nodes(name, gpus=1)
        fleet.know_nodes()
        [pod] = fleet.objects.deployment(name, node=name)
        wait_until(lambda: node.state()["processes"], f"the process of {name}'s pod", 60)
        xid = 136 if case.boundary in BY_THE_RUN else 79
        node.xid(0, xid)
        if xid == 79:
            node.lost(0)
        return pod["metadata"]["name"], fleet.alert(name, 0, xid)

    def _kill(self, case: Case) -> None:
        playbooks = self._playbooks()
        if self._standing.exists():
            playbook = int(self._standing.read_text())
            while playbook not in playbooks or playbooks[playbook] in playbooks:
                playbook = _parent(playbook)
        else:  # the only run that there is, unless the event source is at work
            playbook = next((pid for pid, parent in playbooks.items() if parent not in playbooks), 0)
        assert self.rulebook.process is not None
        if case.who.startswith("rulebook"):
            self.rulebook.process.send_signal(case.how)
            self.rulebook.process.wait(60)
        elif case.who == "playbook":
            os.kill(playbook, case.how)
        elif case.who == "worker":
            self._standing.unlink(missing_ok=True)
            os.kill(
                wait_until(lambda: [pid for pid, parent in self._playbooks().items() if parent == playbook], "a worker", 60)[0], case.how
            )
        elif case.who == "group":
            for pid in self.rulebook.family():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, case.how)
            self.rulebook.process.wait(60)
        else:
            assert self.postgresql is not None
            self.postgresql.stop()

    def _playbooks(self) -> dict[int, int]:
        """Each process of ansible-playbook, with its parent."""
        found = {}
        for pid, words in self.processes().items():
            if any(word.endswith("/ansible-playbook") for word in words.split()[:2]):
                with contextlib.suppress(OSError):
                    found[pid] = _parent(pid)
        return found

    def _writes(self, node: str) -> Counter[str]:
        """What was written to the node or about it, by what it was."""
        if isinstance(self.controller, Fleet):
            writes = self.controller.writes("nodes", "pods/eviction")
            done = Counter(f"{entry.resource} {entry.name}" for entry in writes if entry.code in (200, 201))
            pods = {
                what for what in done if what.startswith(f"pods/eviction {node}-")
            }  # also of a pod that came after the one that was there
            return Counter({what: done[what] for what in {f"nodes {node}", f"pods/eviction {self.pods[node]}"} | pods})
        return Counter(entry["action"] for entry in self.controller.journal(node) if entry["status"] == "applied")

    def _left_on(self, node: str) -> list[str]:
        """What should have ended there, or is not there."""
        if isinstance(self.controller, Fleet):
            taints, pods = self.controller.objects.taints(node), [pod["metadata"]["name"] for pod in self.controller.objects.pods_on(node)]
            return ([] if taints == [TAINT] else [f"its taints are {taints}"]) + ([f"pods are left: {pods}"] if pods else [])
        return [f"process {entry['pid']} holds its GPU" for entry in self.controller.nodes[node].state()["processes"] if is_alive(entry)]


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
