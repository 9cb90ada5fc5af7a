# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The MPS control daemon of a simulated node, and its clients."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cluster.objects import wait_until
from gpusim import mps_ask
from gpusim.node import MIB, Node


class MpsDaemon:
    def __init__(self, node: Node, folder: Path, device: str, **environment: str) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.environment = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(folder)}
        self.program = str(node.mps_control)
        self.process = subprocess.Popen(
            [self.program, "-f"], env={**self.environment, "CUDA_VISIBLE_DEVICES": device, **environment}, stdin=subprocess.DEVNULL
        )
        wait_until(lambda: mps_ask.ask(str(folder), mps_ask.CONTROL, "get_server_list\n") is not None, "the simulated MPS daemon", 30)

    def ask(self, command: str, timeout_seconds: float = 20) -> str:
        """By the program, as anybody does."""
        done = subprocess.run(
            [self.program], input=f"{command}\n", env=self.environment, capture_output=True, text=True, timeout=timeout_seconds, check=True
        )
        return done.stdout

    def play(self, do: str, **order: Any) -> dict[str, Any]:
        return mps_ask.play(str(self.folder), do, **order)

    def connect(self, name: str = "train", memory_mib: int = 1024, cgroup: str | None = None, ends: str = "normal") -> int:
        answer = self.play("connect", name=name, memory_bytes=memory_mib * MIB, cgroup=cgroup, ends=ends)
        assert "error" not in answer, answer
        time.sleep(0.03)  # so that it is older than the time taken next: the clock of process starts ticks every 10 ms
        return int(answer["pid"])

    @property
    def server(self) -> int:
        return int(self.ask("get_server_list"))


@contextlib.contextmanager
def mps_daemon(node: Node, folder: Path, device: str, **environment: str) -> Iterator[MpsDaemon]:
    daemon = MpsDaemon(node, folder, device, **environment)
    try:
        yield daemon
    finally:
        daemon.process.kill()
        daemon.process.wait()
