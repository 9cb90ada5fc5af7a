# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The MPS control daemon of a simulated node, nvidia-cuda-mps-control -f.

It answers as the one of driver 580.159.04 did (tests/fixtures/mps), and hangs where that one hung. A CUDA program cannot be its client, since there
is no libcuda: `gpusim mps` starts processes that are, through a socket of its own beside the real pipes.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import socket
import sys
import time
from pathlib import Path
from typing import Any, Callable, Optional

from . import mps_ask
from .node import MIB, Node, SimulatorError
from .process import cgroup_root
from .state import start_ticks

SERVER_MEMORY = 66 * MIB
_ROW = "%-10s%-10s%-15s%-26s%-15s%-15s\n"
_HEADING = _ROW % ("PID", "ID", "SERVER", "DEVICE", "NAMESPACE", "COMMAND")
_ENDED = object()


class Client:
    def __init__(self, number: int, pid: int) -> None:
        self.number, self.pid, self.ticks = number, pid, start_ticks(pid)
        self.terminated = self.busy = False

    @property
    def lives(self) -> bool:
        return self.ticks is not None and start_ticks(self.pid) == self.ticks

    @property
    def frozen(self) -> bool:
        with contextlib.suppress(OSError):
            path = next(line[4:] for line in Path(f"/proc/{self.pid}/cgroup").read_text().splitlines() if line.startswith("0::/"))
            return "frozen 1" in (cgroup_root() / path / "cgroup.events").read_text()
        return False


class Server:
    """`ghosts` are clients that it never lets go."""

    def __init__(self, pid: int, memory: dict[str, int], threads: float) -> None:
        self.pid, self.ticks = pid, start_ticks(pid)
        self.memory, self.threads = memory, threads
        self.clients: list[Client] = []
        self.ghosts: list[Client] = []
        self.fault = False

    def sweep(self) -> None:
        """One that ends while its work runs, and was not terminated, takes the others with it."""
        gone = [one for one in self.clients if not one.lives]
        self.clients = [one for one in self.clients if one.lives]
        self.fault = self.fault or bool(self.clients and any(one.busy and not one.terminated for one in gone))
        self.fault = self.fault and bool(self.clients or self.ghosts)


class Daemon:
    def __init__(self, node: Node, device: str) -> None:
        self.node, self.device = node, device
        self.gpu, self.gi, self.ci = self._place()
        self.memory: dict[str, int] = {}
        self.threads = _threads(os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", ""), 100.0)
        self.priority = int(os.environ.get("CUDA_MPS_CLIENT_PRIORITY", "0"))
        self.server: Optional[Server] = None
        self.numbers = 0

    def _place(self) -> tuple[int, Optional[int], Optional[int]]:
        for gpu in self.node.state()["gpus"]:
            if self.device in ("", gpu["uuid"]):
                return gpu["index"], None, None
            for instance in gpu["mig"]["instances"]:
                for compute in instance["compute"]:
                    if compute["uuid"] == self.device:
                        return gpu["index"], instance["id"], compute["id"]
        raise SimulatorError(f"no device {self.device}")

    # --- the control daemon's commands ---

    def obey(self, text: str) -> Any:
        """The answers, one after the other; `_ENDED` after a quit."""
        answers = ""
        for line in text.splitlines():
            answer = self._command(line)
            if answer is _ENDED:
                return _ENDED
            answers += answer
        return answers

    def _command(self, line: str) -> Any:
        verb, *words = line.split() or [""]
        self._sweep()
        known: Optional[Callable[..., Any]] = getattr(self, f"_do_{verb.replace('-', '_')}", None)
        return known(*words) if known else f'Unknown command "{verb}"\n'

    def _sweep(self) -> None:
        if self.server and start_ticks(self.server.pid) != self.server.ticks:
            self.server = None
        if self.server:
            self.server.sweep()

    def _until(self, condition: Callable[[], bool]) -> None:
        """Nobody is answered meanwhile."""
        while not condition():
            time.sleep(0.02)
            self._sweep()

    def _for_server(self, pid: str, work: Callable[[Server], str]) -> str:
        return work(self.server) if self.server and pid == str(self.server.pid) else f"Server {pid} not found\n"

    def _do_quit(self, *_words: str) -> Any:
        self._until(lambda: not (self.server and (self.server.clients or self.server.ghosts)))
        if self.server:
            self.node.exit(self.server.pid)
        return _ENDED

    def _do_get_server_list(self) -> str:
        return f"{self.server.pid}\n" if self.server else ""

    def _do_get_server_status(self, pid: str) -> str:
        return self._for_server(pid, lambda server: "FAULT\n" if server.fault else "ACTIVE\n")

    def _do_get_client_list(self, pid: str) -> str:
        return self._for_server(pid, lambda server: "".join(f"{one.pid}\n" for one in (*server.clients, *server.ghosts)))

    def _do_get_device_client_list(self, *_words: str) -> str:
        if not self.server:
            return ""
        return f"[0] 00:00.0, {self._name}\n" + "".join(f"{one.pid}.1\n" for one in self.server.clients)

    def _do_ps(self, *words: str) -> str:
        if not self.server:
            return "Server not found\n" if not words else "Server 0 not found\nServer 0 not found\n\n"
        rows = [self._row(one) for one in self.server.clients] + [self._row(one, "?", "?") for one in self.server.ghosts]
        return _HEADING + "".join(rows) if rows else ""

    def _row(self, client: Client, namespace: str = "", command: str = "") -> str:
        if not namespace:
            namespace = str(os.stat(f"/proc/{client.pid}/ns/pid").st_ino)
            command = os.readlink(f"/proc/{client.pid}/exe")
        return _ROW % (client.pid, client.number, self.server.pid if self.server else "", self._uuid[:22], namespace, command)

    @property
    def _uuid(self) -> str:
        return self.device or str(self.node.state()["gpus"][self.gpu]["uuid"])

    @property
    def _name(self) -> str:
        return str(self.node.model["answers"]["nvmlDeviceGetName"])

    def _do_device_query(self, *_words: str) -> str:
        row = "%-16s%-15s%-42s%-34s%s\n"
        pci = self.node.state()["gpus"][self.gpu]["pci_bus_id"]
        address = f"{pci[:7]}.{pci[8:10]}.00"
        table = row % ("Device Ordinal", "PCI IDs", "UUID", "Name", "Attributes") + row % ("0", address, self._uuid, self._name, "N/A")
        return f"Default\n{table}" + (f"\nServer {self.server.pid}\n{table}" if self.server else "")

    def _do_start_server(self, *_words: str) -> str:
        self._serve()
        return ""

    def _do_terminate_client(self, pid: str, client: str = "") -> str:
        missing = self._for_server(pid, lambda _server: "")
        if missing or not self.server:
            return f"{missing}{missing.rstrip()}!\n1\n"
        found = next((one for one in self.server.clients if str(one.pid) == client), None)
        if not found:
            return f"Invalid process {client}!\n1\n"
        if self.server.fault:
            self._until(lambda: not found.lives)
            self.server.ghosts.append(found)
            self.server.fault = True
            return "1\n"
        if found.terminated:
            self._until(lambda: not found.lives)
            return "1\n"
        self._until(lambda: not found.frozen)
        found.terminated = True
        return "0\n"

    # --- limits ---

    def _do_set_default_device_pinned_mem_limit(self, device: str = "", value: str = "") -> str:
        _set_memory(self.memory, device, value)
        return ""

    def _do_get_default_device_pinned_mem_limit(self, device: str = "") -> str:
        return _memory_text(self.memory.get(device))

    def _do_set_device_pinned_mem_limit(self, pid: str, device: str = "", value: str = "") -> str:
        def work(server: Server) -> str:
            for name in self._names(device):
                _set_memory(server.memory, name, value)
            return ""

        return self._for_server(pid, work)

    def _do_get_device_pinned_mem_limit(self, pid: str, device: str = "") -> str:
        return self._for_server(pid, lambda server: _memory_text(server.memory.get(device)))

    def _names(self, device: str) -> tuple[str, ...]:
        """A server has one limit for a device, by whichever of its names."""
        names = ("0", self._uuid)
        return names if device in names else (device,)

    def _do_set_default_active_thread_percentage(self, value: str = "") -> str:
        self.threads = _threads(value, self.threads)
        return f"{self.threads:.1f}\n"

    def _do_get_default_active_thread_percentage(self) -> str:
        return f"{self.threads:.1f}\n"

    def _do_set_active_thread_percentage(self, pid: str, value: str = "") -> str:
        def work(server: Server) -> str:
            server.threads = _threads(value, server.threads)
            return f"{server.threads:.1f}\n"

        return self._for_server(pid, work)

    def _do_get_active_thread_percentage(self, pid: str) -> str:
        return self._for_server(pid, lambda server: f"{server.threads:.1f}\n")

    def _do_set_default_client_priority(self, value: str = "") -> str:
        if value:
            number = _integer(value)
            if number not in (0, 1):
                return "Invalid priority value - must be 0 or 1!\n"
            self.priority = number
        return ""

    def _do_get_default_client_priority(self) -> str:
        return f"{self.priority}\n"

    # --- what CUDA programs do ---

    def play(self, text: str) -> str:
        """An order of `gpusim mps`, as JSON; the answer is JSON too."""
        order = json.loads(text)
        self._sweep()
        try:
            return json.dumps(getattr(self, f"_play_{order.pop('do')}")(**order))
        except SimulatorError as error:
            return json.dumps({"error": str(error)})

    @staticmethod
    def _play_hello() -> dict[str, Any]:
        return {}

    def _play_connect(self, name: str, memory_bytes: int, cgroup: Optional[str], ends: str) -> dict[str, Any]:
        server = self._serve()
        if server.fault:
            raise SimulatorError("MPS_SERVER_NOT_READY")
        limit = server.memory.get("0")
        if limit is not None and memory_bytes > limit * MIB:
            raise SimulatorError(f"OUT_OF_MEMORY: {memory_bytes // MIB} MiB of {limit}")
        self.numbers += 1
        pid = self.node.start([self.gpu], name, memory_bytes, cgroup, ends, "mps", gi=self.gi, ci=self.ci)
        server.clients.append(Client(self.numbers, pid))
        return {"pid": pid, "server": server.pid, "limit_mib": limit, "threads": server.threads}

    def _play_work(self, pid: int) -> dict[str, Any]:
        self._client(pid).busy = True
        return {}

    def _play_crash(self, pid: int) -> dict[str, Any]:
        self._client(pid)
        if self.server:
            self.server.fault = True
        return {}

    def _client(self, pid: int) -> Client:
        for one in self.server.clients if self.server else []:
            if one.pid == pid:
                return one
        raise SimulatorError(f"{pid} is no client of this daemon")

    def _serve(self) -> Server:
        if not self.server:
            pid = self.node.start(
                [self.gpu], "nvidia-cuda-mps-server", SERVER_MEMORY, "system.slice/nvidia-mps.service", gi=self.gi, ci=self.ci
            )
            names = ("0", self._uuid)
            limits = [self.memory[name] for name in self.memory if name in names]  # in the order in which they were set
            others = {name: value for name, value in self.memory.items() if name not in names}
            self.server = Server(pid, {**others, **(dict.fromkeys(names, limits[-1]) if limits else {})}, self.threads)
        return self.server


def _integer(text: str) -> int:
    """As C reads it: what is no number is 0, and what follows one is left."""
    found = re.match(r"-?\d+", text)
    return int(found.group()) if found else 0


def _set_memory(limits: dict[str, int], device: str, value: str) -> None:
    """In MiB unless a G follows the whole number; what is below zero comes round from above, and 0 is no limit."""
    if not value:
        return
    digits = re.match(r"-?\d*", value)
    unit = value[digits.end() : digits.end() + 1] if digits else ""
    mib = (_integer(value) * (1024 if unit in ("G", "g") else 1)) % (1 << 44)
    limits.pop(device, None)  # so that the last one set is the last one there
    if mib:
        limits[device] = mib


def _memory_text(mib: Optional[int]) -> str:
    if mib is None:
        return ""
    return f"{mib // 1024}G\n" if mib % 1024 == 0 else f"{mib}M\n"


def _threads(value: str, now: float) -> float:
    """What is no percentage changes nothing."""
    with contextlib.suppress(ValueError):
        number = float(value)
        return number if 0 < number <= 100 else now
    return now


def serve(node: Node) -> int:
    folder = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", mps_ask.DEFAULT_FOLDER))
    if not folder.is_dir():
        print(f"Cannot access CUDA_MPS_PIPE_DIRECTORY={folder}")
        return 1
    if "error" not in mps_ask.play(str(folder), "hello"):
        print("An instance of this daemon is already running")
        return 1
    daemon = Daemon(node, os.environ.get("CUDA_VISIBLE_DEVICES", ""))
    files = [folder / name for name in ("nvidia-cuda-mps-control.pid", "log")]
    files[0].write_text(f"{os.getpid()}\n", encoding="ascii")
    for name in ("log", "control_lock", "control_privileged"):
        (folder / name).touch()
    with contextlib.ExitStack() as stack, selectors.DefaultSelector() as selector:
        for name, answer in ((mps_ask.CONTROL, daemon.obey), (mps_ask.SIMULATOR, daemon.play)):
            (folder / name).unlink(missing_ok=True)
            listening = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            listening.bind(str(folder / name))
            os.chmod(folder / name, 0o666)
            listening.listen(64)
            selector.register(listening, selectors.EVENT_READ, answer)
        while True:
            for key, _events in selector.select():
                if not _converse(key.fileobj.accept()[0], key.data):  # type: ignore[union-attr]
                    for file in files:
                        file.unlink(missing_ok=True)
                    return 0


def _converse(connection: socket.socket, answer: Callable[[str], Any]) -> bool:
    """Whether the daemon goes on."""
    with connection, contextlib.suppress(BrokenPipeError, ConnectionResetError):
        text = b"".join(iter(lambda: connection.recv(1 << 16), b"")).decode()
        told = answer(text)
        if told is _ENDED:
            return False
        connection.sendall(told.encode())
    return True


def main() -> int:
    folder, cache, *words = sys.argv[1:]
    if words != ["-f"]:
        print("usage: nvidia-cuda-mps-control [-f]", file=sys.stderr)
        return 1
    return serve(Node(Path(folder).parent, Path(folder).name, Path(cache)))


if __name__ == "__main__":
    sys.exit(main())
