# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The event source, in a process of its own that shows what it hands on, or in the real ansible-rulebook."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import queue
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cluster.objects import wait_until
from loop import REPOSITORY, Controller, children
from ports import free_port

TOKEN = "a token of the tests"
_ENGINE = """
import asyncio, importlib.util, json, sys

spec = importlib.util.spec_from_file_location("alertmanager", sys.argv[1])
source = importlib.util.module_from_spec(spec)
spec.loader.exec_module(source)

async def run():
    events = asyncio.Queue(maxsize=1)  # as the engine has it
    task = asyncio.create_task(source.main(events, json.loads(sys.argv[2])))
    if "stuck" in sys.argv:
        return await task
    while True:
        reading = asyncio.create_task(events.get())
        await asyncio.wait([reading, task], return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        print(json.dumps(reading.result()), flush=True)

asyncio.run(run())
"""


def request(
    port: int, method: str, path: str, body: bytes | None = None, token: str | None = TOKEN, tls: ssl.SSLContext | None = None
) -> tuple[int, bytes]:
    """The status and body of the answer."""
    kind: Any = http.client.HTTPSConnection if tls else http.client.HTTPConnection
    connection = kind("127.0.0.1", port, timeout=30, **({"context": tls} if tls else {}))
    try:
        connection.request(method, path, body, {"Authorization": f"Bearer {token}"} if token is not None else {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def metric(port: int, name: str) -> float:
    lines = request(port, "GET", "/metrics", token=None)[1].decode().splitlines()
    [value] = [line.rsplit(" ", 1)[1] for line in lines if line.rsplit(" ", 1)[0] == name]
    return float(value)


def memory_bytes(process: subprocess.Popen[Any] | None, what: str) -> int:
    """VmRSS, or VmHWM, which is its peak."""
    assert process is not None
    status = Path(f"/proc/{process.pid}/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith(f"{what}:")]
    return int(line.split()[1]) * 1024


def cpu_seconds(process: subprocess.Popen[Any] | None) -> float:
    assert process is not None
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Source:
    def __init__(self, directory: Path, ledger_url: str, *, stuck: bool = False, **args: Any) -> None:
        self.flags = ["stuck"] if stuck else []  # an engine that takes no event
        self.args = {"tokens": [TOKEN], "port": free_port(), "ledger_url": ledger_url, "correlation_seconds": 0, **args}
        self.log = directory / "source.log"
        self.events: queue.Queue[dict[str, Any]] = queue.Queue()
        self.process: subprocess.Popen[str] | None = None

    @contextlib.contextmanager
    def running(self) -> Iterator[Source]:
        """Until it listens; it is killed at the end."""
        plugin = REPOSITORY / "extensions" / "eda" / "plugins" / "event_source" / "alertmanager.py"
        paths = os.pathsep.join(path for path in sys.path if path)
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _ENGINE, str(plugin), json.dumps(self.args), *self.flags],
                env={**os.environ, "PYTHONPATH": paths},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        reader = threading.Thread(target=self._read, args=(self.process,))
        reader.start()
        try:
            self._wait()
            yield self
        finally:
            self.kill()
            reader.join()

    @property
    def port(self) -> int:
        return int(self.args["port"])

    def _wait(self) -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            assert self.process is not None
            assert self.process.poll() is None, self.log.read_text()
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.args["port"]), 1):
                return
            time.sleep(0.05)
        raise AssertionError("the source does not listen")

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self.events.put(json.loads(line))

    def kill(self, number: int = signal.SIGKILL) -> None:
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)
        self.process.wait(30)

    def handed_on(self, count: int, seconds: float = 30) -> list[int]:
        """The inbox ids of the next events, until there are `count`."""
        found: list[int] = []
        while len(found) < count:
            found += self.events.get(timeout=seconds)["inbox_ids"]
        return found

    def request(self, *arguments: Any, **options: Any) -> tuple[int, bytes]:
        return request(self.port, *arguments, **options)

    def post(self, message: Any, **options: Any) -> tuple[int, bytes]:
        body = message if isinstance(message, bytes) else json.dumps(message).encode()
        return self.request("POST", "/alerts", body, **options)

    def metric(self, name: str) -> float:
        return metric(self.port, name)


class Rulebook:
    """The real ansible-rulebook with a rulebook of the collection, for the nodes of a controller."""

    def __init__(self, controller: Controller, *arguments: str, name: str = "gpu_alerts", **variables: Any) -> None:
        self.controller = controller
        self.name = name
        self.arguments = arguments
        self.environment: dict[str, str] = {}
        self.log = controller.directory / "rulebook.log"
        self.variables = {
            "gpuops_trigger_port": free_port(),
            "gpuops_ledger_url": controller.ledger_url,
            "gpuops_correlation": {"seconds": 0.1},
            **variables,
        }
        self.process: subprocess.Popen[bytes] | None = None
        self._runs: set[int] = set()

    @contextlib.contextmanager
    def running(self) -> Iterator[Rulebook]:
        """Until it listens; it and every run that it has started are killed at the end."""
        try:
            self.start()
            yield self
        finally:
            self.kill()

    def start(self) -> None:
        variables = self.controller.directory / "rulebook.json"
        variables.write_text(json.dumps(self.variables))
        command = [str(self.controller.programs / "ansible-rulebook"), "-r", f"gpuops.remediation.{self.name}", *self.arguments]
        command += ["-i", str(self.controller.inventory()), "--vars", str(variables), "-E", "GPUOPS_TRIGGER_TOKEN", "--print-events"]
        path = os.pathsep.join([str(self.controller.programs), os.environ["PATH"]])
        environment = {**self.controller.environment, "GPUOPS_TRIGGER_TOKEN": TOKEN, "PATH": path, **self.environment}
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                command,
                env=environment,
                cwd=self.controller.directory,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        wait_until(self._answers, "the rulebook's webhook", 120)

    @property
    def port(self) -> int:
        return int(self.variables["gpuops_trigger_port"])

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def family(self) -> set[int]:
        """Its process and all that descend from it."""
        assert self.process is not None
        return {self.process.pid, *children(self.process.pid)} if self.runs else set()

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log.read_text()
        with contextlib.suppress(OSError):
            return request(self.port, "GET", "/healthz", token=None)[0] == 200
        return False

    def kill(self, *, alone: bool = False) -> None:
        """Alone, it leaves the runs that it has started, each in a session of its own, to themselves."""
        assert self.process is not None
        self._runs |= children(self.process.pid)
        for pid in (self.process.pid, *([] if alone else self._runs)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def metric(self, name: str) -> float:
        return metric(self.port, name)

    def finished(self) -> int:
        """How many runs have come to their end."""
        return self.log.read_text().count("PLAY RECAP")

    def post(self, message: Path) -> list[int]:
        """The inbox rows of a message in a file."""
        status, body = request(self.port, "POST", "/alerts", message.read_bytes())
        assert status == 200, body
        return list(json.loads(body)["inbox_ids"])
