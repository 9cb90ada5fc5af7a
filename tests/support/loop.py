# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A controller for tests and for the demo: an inventory of simulated nodes, a ledger, and the collection's playbooks run for real."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import alerts
from gpusim.node import Node

REPOSITORY = Path(__file__).resolve().parents[2]


def alive(pid: int) -> bool:
    """Whether a simulated node's process is still there, and no other one under its number: on a busy machine numbers come again in minutes."""
    try:
        program = Path(f"/proc/{pid}/exe").readlink()
    except OSError:
        return False
    return "nodes" in program.parts and program.parent.name == "bin"


def children(pid: int) -> set[int]:
    """Of a process and of theirs."""
    found: set[int] = set()
    for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, tasks.read_text().split()):
                found |= {child, *children(child)}
    return found


@dataclass
class Run:
    """A finished playbook: its exit status and what it printed."""

    status: int
    output: str

    @property
    def ok(self) -> bool:
        return self.status == 0

    @property
    def failures(self) -> list[str]:
        """What tasks said that failed, also where the playbook went on after them."""
        return re.findall(r"^(?:fatal|failed): \[.*", self.output, re.MULTILINE)

    def changed(self, host: str) -> int:
        """How many tasks changed something on `host`, as the recap counts them."""
        found = re.search(rf"^{re.escape(host)}\s+:.*changed=(\d+)", self.output, re.MULTILINE)
        return int(found[1]) if found else 0


class Controller:
    """Everything that one controller needs lies in `directory`; `close` ends the simulated nodes."""

    def __init__(self, directory: Path, *, orchestrator: str = "none", kubeconfig: Path | None = None, ledger_url: str = "") -> None:
        self.directory = directory
        self.ledger_url = ledger_url or f"sqlite:///{directory}/ledger.db"
        self.nodes: dict[str, Node] = {}
        self.programs = Path(sys.executable).parent
        self.more_environment: dict[str, str] = {}  # what differs from the tests' own
        self.before: dict[str, str] = {}  # shell commands by the name of the task before which they run
        self.host_variables: dict[str, dict[str, Any]] = {}
        self.variables: dict[str, Any] = {"gpuops_ledger_url": self.ledger_url, "gpuops_orchestrator": orchestrator}
        if kubeconfig:
            self.variables["gpuops_kubeconfig"] = str(kubeconfig)
        directory.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Controller:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        for node in self.nodes.values():
            with contextlib.suppress(Exception):
                node.destroy()

    # --- nodes

    def node(self, name: str, *, gpus: int = 8, model: str = "h200-141", **variables: Any) -> Node:
        """A new simulated node in the inventory; `variables` are host variables beside those of the simulator."""
        node = Node(self.directory / "nodes", name)
        node.create(model, gpus)
        self.nodes[name] = node
        self.host_variables[name] = {**node.host_variables(), **variables}
        return node

    def uuid(self, node: str, gpu: int) -> str:
        return str(self.nodes[node].state()["gpus"][gpu]["uuid"])

    def inventory(self) -> Path:
        path = self.directory / "inventory.json"
        simulated = {name: node.host_variables() for name, node in self.nodes.items()}
        hosts = {name: {**simulated.get(name, {}), **variables} for name, variables in self.host_variables.items()}
        whole = path.with_suffix(f".{threading.get_ident()}")  # another run may be reading it
        whole.write_text(json.dumps({"all": {"hosts": hosts, "vars": self.variables}}))
        return whole.rename(path)

    def alert(
        self,
        node: str,
        gpu: int | None,
        xid: int | None,
        *,
        recording: str = "firing-single",
        starts_at: dt.datetime | None = None,
        **labels: Any,
    ) -> Path:
        """A recorded Alertmanager message about a GPU of a node, in a file."""
        wanted = {"node": node, "xid": None if xid is None else str(xid), "gpu": None if gpu is None else str(gpu), **labels}
        if gpu is not None and node in self.nodes and "gpu_uuid" not in labels:
            wanted["gpu_uuid"] = self.uuid(node, gpu)
        message = alerts.rewritten(alerts.recorded(recording), wanted, annotations={"xid": None}, starts_at=starts_at)
        path = self.directory / f"alert-{len(list(self.directory.glob('alert-*')))}.json"
        path.write_text(json.dumps(message))
        return path

    def sick(self, name: str, **variables: Any) -> tuple[int, Path]:
        """A new node whose GPU 3 needs to be replaced: the process that runs on it, and the alert."""
        node = self.node(name, **variables)
        pid = node.start([3], "train", 40 << 30)
        node.xid(3, 48)
        node.row_remap(3, failure=True)
        return pid, self.alert(name, 3, 48)

    def together(self, *messages: Path) -> Path:
        """The alerts of several messages in one."""
        bodies = [json.loads(message.read_text()) for message in messages]
        path = messages[0].with_name("together-" + messages[0].name)
        path.write_text(json.dumps({**bodies[0], "alerts": [alert for body in bodies for alert in body["alerts"]]}))
        return path

    # --- playbooks

    def command(self, playbook: str, *arguments: str, **variables: Any) -> list[str]:
        name = playbook if "/" in playbook else f"gpuops.remediation.{playbook}"
        extra = ["-e", json.dumps({f"gpuops_{key}": value for key, value in variables.items()}, default=str)] if variables else []
        return [str(self.programs / "ansible-playbook"), "-i", str(self.inventory()), name, *extra, *arguments]

    @property
    def environment(self) -> dict[str, str]:
        temporary = self.directory / "tmp"
        temporary.mkdir(exist_ok=True)
        return {
            **os.environ,
            "ANSIBLE_CALLBACK_PLUGINS": str(REPOSITORY / "tests" / "support" / "callbacks"),
            "ANSIBLE_COLLECTIONS_PATH": str(REPOSITORY / ".ansible" / "collections"),
            "ANSIBLE_CONFIG": str(REPOSITORY / "ansible.cfg"),
            "ANSIBLE_HOME": str(self.directory / "ansible"),
            "ANSIBLE_LOCAL_TEMP": str(temporary),
            "ANSIBLE_NOCOLOR": "1",
            "TESTS_BEFORE_TASK": json.dumps(self.before),
            "TMPDIR": str(temporary),
            **self.more_environment,
        }

    def play(self, playbook: str, *arguments: str, timeout_seconds: float = 240, **variables: Any) -> Run:
        """Runs a playbook of the collection to its end; `variables` are extra vars without their prefix gpuops_."""
        with self.playing(playbook, *arguments, **variables) as process:
            output = process.communicate(timeout=timeout_seconds)[0]
        return Run(process.returncode, output)

    @contextlib.contextmanager
    def playing(self, playbook: str, *arguments: str, **variables: Any) -> Iterator[subprocess.Popen[str]]:
        """A playbook that runs; what is left of it at the end, and all that it started, is killed."""
        process = subprocess.Popen(
            self.command(playbook, *arguments, **variables),
            env=self.environment,
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            workers = children(process.pid)  # each in a session of its own
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            for pid in workers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()

    def remediate(self, *arguments: str, **variables: Any) -> Run:
        return self.play("remediate", *arguments, **variables)

    def mode(self, mode: str) -> None:
        run = self.play("mode", mode=mode, who="tests", why="the test needs it")
        assert run.ok, run.output

    # --- the ledger

    def ledger(self, *, write: bool = False) -> Any:
        from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.store import Ledger

        return Ledger.open(self.ledger_url, check_mode=not write)

    def incidents(self, node: str | None = None) -> list[dict[str, Any]]:
        """All incidents, the oldest first, each with its whole story."""
        ledger = self.ledger()
        return [ledger.story(row["id"]) for row in reversed(ledger.overview(node, closed=True)["incidents"])]

    def journal(self, node: str) -> list[Mapping[str, Any]]:
        path = Path(self.nodes[node].host_variables()["gpuops_state_dir"]) / "journal.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def reachable_until(controller: Controller, name: str, down: Path) -> None:
    """An SSH that answers until a file is there."""
    ssh = controller.directory / f"ssh-{name}"
    ssh.write_text(f'#!/bin/sh\n[ ! -e {down} ] || exit 255\nfor command; do :; done\nexec sh -c "$command"\n')
    ssh.chmod(0o755)
    controller.host_variables[name].update(ansible_connection="ssh", ansible_ssh_executable=str(ssh), ansible_pipelining=True)
