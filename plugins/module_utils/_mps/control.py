# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""The control daemon, asked by its own program: one command a time, each with a time limit, since the daemon waits for clients in some."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass, replace
from typing import Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._mps import grammar
from ansible_collections.gpuops.remediation.plugins.module_utils._mps.errors import (
    ControlHangs,
    MpsError,
    NoDaemon,
    NoProgram,
    NotUnderstood,
)
from ansible_collections.gpuops.remediation.plugins.module_utils._mps.limits import MEMORY, PRIORITY, THREADS, Settings, Value

PIPE, LOG = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
DEFAULT_PIPES = "/tmp/nvidia-mps"  # where NVIDIA's program has them unless told otherwise
_PATH = "/usr/local/nvidia/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def find_program(name: str) -> str:
    found = shutil.which(name, path=os.pathsep.join(filter(None, (os.environ.get("PATH"), _PATH))))
    if not found:
        raise NoProgram(f"there is no {name} on this node: it comes with the driver's compute utilities")
    return found


@dataclass(frozen=True)
class Control:
    """`devices` are the names by which the one device of this daemon has limits: its ordinal and its UUID, of which the last one set wins."""

    program: str
    pipe_directory: str
    timeout_seconds: float = 5.0
    devices: tuple[str, ...] = ("0",)

    def ask(self, command: str, timeout_seconds: Optional[float] = None) -> str:
        limit = self.timeout_seconds if timeout_seconds is None else timeout_seconds
        environment = {"PATH": _PATH, "LC_ALL": "C", PIPE: self.pipe_directory}
        try:
            done = subprocess.run(
                [self.program], input=f"{command}\n", env=environment, capture_output=True, text=True, timeout=limit, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise ControlHangs(
                f"the MPS control daemon of {self.pipe_directory} has not answered {command!r} within {limit:g} s: it waits for a client to end",
                command=command,
            ) from error
        except OSError as error:
            raise NoProgram(f"cannot run {self.program}: {error.strerror}") from error
        if done.returncode:
            words = (done.stderr or done.stdout).strip()
            if "Cannot find MPS control daemon" in words:
                raise NoDaemon(f"no MPS control daemon answers in {self.pipe_directory}")
            raise MpsError(f"{self.program} failed at {command!r}: {words}")
        if done.stdout.startswith("Unknown command"):
            raise NotUnderstood(f"the control daemon does not know {command!r}")
        return done.stdout

    def of_device(self, uuid: str) -> Control:
        """The same, for that device's limits."""
        return replace(self, devices=grammar.devices_of(self.ask("device_query"), uuid))

    # --- read ---

    def servers(self) -> tuple[int, ...]:
        return grammar.pids_of(self.ask("get_server_list"))

    def status(self, server: int) -> str:
        return grammar.status_of(self.ask(f"get_server_status {server}"))

    def clients(self, server: int) -> tuple[int, ...]:
        return grammar.pids_of(self.ask(f"get_client_list {server}"))

    def rows(self) -> list[grammar.Row]:
        return grammar.rows_of(self.ask("ps"))

    def defaults(self) -> dict[str, Value]:
        return {
            MEMORY: self._memory("get_default_device_pinned_mem_limit"),
            THREADS: grammar.number_of(self.ask("get_default_active_thread_percentage")),
            PRIORITY: int(grammar.number_of(self.ask("get_default_client_priority"))),
        }

    def server_settings(self, server: int) -> dict[str, Value]:
        return {
            MEMORY: self._memory(f"get_device_pinned_mem_limit {server}"),
            THREADS: grammar.number_of(self.ask(f"get_active_thread_percentage {server}")),
        }

    def _memory(self, command: str) -> Value:
        """Where the names differ it is not known which was set last: not a number is no limit that anybody wants."""
        told = {self._one_memory(f"{command} {device}") for device in self.devices}
        return told.pop() if len(told) == 1 else float("nan")

    def _one_memory(self, command: str) -> Optional[int]:
        answer = self.ask(command)
        grammar.refuse_missing(answer)
        return grammar.memory_of(answer)

    # --- write ---

    def set_defaults(self, settings: Settings) -> None:
        for name, value in settings.items():
            if name == MEMORY:
                for device in self.devices:
                    self.ask(f"set_default_device_pinned_mem_limit {device} {_memory_text(value)}")
            else:
                self.ask(f"set_default_{name} {value:g}")

    def set_server(self, server: int, settings: Settings) -> None:
        for name, value in settings.items():
            if name == MEMORY:
                for device in self.devices:
                    grammar.refuse_missing(self.ask(f"set_device_pinned_mem_limit {server} {device} {_memory_text(value)}"))
            else:
                grammar.refuse_missing(self.ask(f"set_active_thread_percentage {server} {value:g}"))

    def terminate_client(self, server: int, pid: int, timeout_seconds: float) -> None:
        answer = self.ask(f"terminate_client {server} {pid}", timeout_seconds)
        if answer.strip() != grammar.TERMINATED:
            raise MpsError(f"server {server} did not terminate client {pid}: {' '.join(answer.split())}", answer=answer)

    def quit(self) -> None:
        self.ask("quit")


def _memory_text(value: Value) -> str:
    return grammar.memory_text(None if value is None else int(value))
