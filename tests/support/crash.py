# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A rulebook whose processes are killed at a chosen point of a run, and what has to hold afterwards, whoever was killed.

Each case has a node of its own. After it, what a service manager would start again is started again; reconcile runs once the dead runs' locks
have lapsed, as its timer would have it.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cluster.objects import wait_until
from fleet import Fleet
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
LEFT_SECONDS = 90.0  # in which a run that has lost its rulebook comes to its end
TARGETS = ("rulebook", "rulebook alone", "playbook", "worker", "group", "postgresql")


@dataclass(frozen=True)
class Case:
    """who: is killed, or for PostgreSQL stopped without a goodbye and started again. boundary: of BOUNDARIES."""

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
        self.hung: list[str] = []  # the nodes whose run did not end
        self._stop, self._standing = controller.directory / "stop", controller.directory / "standing"
        hook = controller.directory / "stand.sh"
        stop, standing = shlex.quote(str(self._stop)), shlex.quote(str(self._standing))
        hook.write_text(
            f'[ "$(cat {stop} 2>/dev/null)" = "$1 $HOST" ] || exit 0\n'
            f"echo $$ > {stop}; mv {stop} {standing}\n"
            f"while [ -e {standing} ]; do sleep 0.05; done\n"
        )
        controller.before = {task: shlex.join(["sh", str(hook), boundary]) for boundary, task in BOUNDARIES.items()}
        self.rulebook = Rulebook(controller, gpuops_trigger_window_seconds=0.1)

    @contextlib.contextmanager
    def running(self) -> Iterator[Crashes]:
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
        self._stop.write_text(f"{case.boundary} {'localhost' if case.boundary == 'accepted' else last}")
        self.rulebook.post(self.controller.together(*alerts))
        wait_until(self._standing.exists, f"{case}: the run gets there\n{self.rulebook.log}", 200)
        self._kill(case)
        if case.who == "rulebook":
            self._end_left(signal.SIGTERM)  # as systemd does when the main process of a service is gone
        self._standing.unlink(missing_ok=True)
        try:
            wait_until(lambda: not self._playbooks(), "the end of what was left", LEFT_SECONDS)
        except TimeoutError:
            self.hung.append(list(self.cases)[-1])
            self._end_left(signal.SIGKILL)
        if self.postgresql and not self.postgresql.runs:
            self.postgresql.start()
        if not self.rulebook.runs:
            self.rulebook.start()

    def _end_left(self, number: signal.Signals) -> None:
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def another(self, case: Case) -> None:
        """An alert of a node that nobody has hurt, while all is being taken up again."""
        self.rulebook.post(self._sick(case))

    def reconcile(self) -> None:
        """Once nobody works any more, and the locks of the dead have lapsed."""
        wait_until(lambda: not self._playbooks(), "the end of all runs", 300)
        wait_until(lambda: not self.controller.ledger().busy_nodes(), "the end of the dead runs' locks", 60)
        run = self.controller.play("reconcile", timeout_seconds=900)
        assert run.ok, run.output

    def faults(self) -> dict[str, str]:
        """By node, what has been lost, left, or done twice; nothing is as it should be."""
        waiting, _oldest = self.controller.ledger().waiting()
        everywhere = [f"{len(waiting)} messages without a decision"] if waiting else []
        everywhere += [
            f"process {pid} is left: {words[:200]}" for pid, words in self.processes().items() if pid not in self.rulebook.family()
        ]
        found = {}
        for node in self.cases:
            incidents = self.controller.incidents(node)
            wrong = [*everywhere, *(["its run hung until it was killed"] if node in self.hung else [])]
            if [one["state"] for one in incidents] != ["contained"]:
                wrong.append("ended as %s" % [(one["state"], one["reason"]) for one in incidents])
            told = Counter(one["topic"] for incident in incidents for one in incident["notifications"])
            wrong += [f"people were told {count} times: {topic}" for topic, count in told.items() if count > 1]
            wrong += [f"{what}: {count} times" for what, count in self._writes(node).items() if count > 1]
            if wrong:
                found[node] = "; ".join(wrong)
        return found

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
            [node] = self.controller.gpu_nodes(name, gpus=1)
            node.xid(0, 48)
            alert = self.controller.alert(name, 0, 48)
        else:
            _pid, alert = self.controller.sick(name)
        self.controller.inventory()
        return alert

    def _kill(self, case: Case) -> None:
        playbooks, playbook = self._playbooks(), int(self._standing.read_text())
        while playbook not in playbooks or playbooks[playbook] in playbooks:
            playbook = _parent(playbook)
        assert self.rulebook.process is not None
        if case.who.startswith("rulebook"):
            self.rulebook.process.send_signal(case.how)
            self.rulebook.process.wait(60)
        elif case.who == "playbook":
            os.kill(playbook, case.how)
        elif case.who == "worker":
            self._standing.unlink()
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
            return Counter("taint" for entry in self.controller.writes("nodes") if entry.name == node and entry.code == 200)
        return Counter(entry["action"] for entry in self.controller.journal(node) if entry["status"] == "applied")


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
