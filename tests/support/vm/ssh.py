# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Commands in a virtual machine, as root, over one connection that is kept."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from vm.qemu import VmError


class Ssh:
    """`folder` holds the connection's socket, so its path is short."""

    def __init__(self, image: Path, folder: Path, port: int) -> None:
        options = {
            "IdentityFile": image / "id",
            "IdentitiesOnly": "yes",
            "UserKnownHostsFile": image / "known_hosts",
            "HostKeyAlias": "vm",
            "LogLevel": "ERROR",
            "ControlPath": folder / "ssh",
        }
        self.arguments = ["-F", "none", *(f"-o{name}={value}" for name, value in options.items())]
        self._command = ["ssh", *self.arguments, "-p", str(port), "root@127.0.0.1"]

    def command(self, script: str) -> list[str]:
        return [*self._command, script]

    def run(self, script: str, stdin: bytes | None = None, check: bool = True, timeout_seconds: float = 300) -> str:
        """What a shell there says, standard error included."""
        done = subprocess.run(
            self.command(script),
            input=stdin if stdin is not None else b"",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout_seconds,
            check=False,
        )
        said = done.stdout.decode(errors="replace")
        assert done.returncode == 0 or not check, f"{script}: {done.returncode} {said}"
        return said.strip()

    def connect(self, alive: Callable[[], bool], timeout_seconds: float) -> None:
        """QEMU accepts connections before sshd does, so that a try that is early takes as long as its own limit."""
        deadline = time.monotonic() + timeout_seconds
        while alive() and time.monotonic() < deadline:
            with contextlib.suppress(subprocess.SubprocessError):
                self._open(120)
                return
            time.sleep(0.2)
        raise VmError("the machine does not answer")

    def _open(self, timeout_seconds: float) -> None:
        """In the background, with none of our own streams: it would hold them open."""
        master = [*self._command[:-1], "-M", "-N", "-f", self._command[-1]]
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        subprocess.run(master, timeout=timeout_seconds, check=True, **streams)

    def close(self) -> None:
        subprocess.run([*self._command[:-1], "-O", "exit", self._command[-1]], capture_output=True, check=False)
