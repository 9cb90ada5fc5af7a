# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Processes that can be ended from any other process, by pid file, without ever signalling a stranger."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from cluster.errors import ClusterError


class Component:
    """One program of the cluster, in a session of its own: Ctrl-C at a terminal does not end them all at once in any order.

    Its pid file holds the pid and the process's start time, as pids are used again.
    """

    def __init__(self, name: str, directory: Path, command: Sequence[str] = ()) -> None:
        self.name = name
        self.command = command
        self.directory = directory
        self.log = directory / f"{name}.log"
        self._pid_file = directory / f"{name}.pid"
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        if not self.command:
            raise ClusterError(f"{self.name} can be started only by the process that started the cluster")
        if self.running:
            raise ClusterError(f"{self.name} runs already in {self.directory}")
        environment = {**os.environ, "TMPDIR": str(self.directory / "tmp")}
        with self.log.open("ab") as log:
            self._child = subprocess.Popen(
                self.command, cwd=self.directory, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self._pid_file.write_text(f"{self._child.pid} {start_ticks(self._child.pid)}\n")

    @property
    def pid(self) -> int | None:
        """The pid, while the process that we started is alive."""
        with suppress(OSError, ValueError):
            pid, ticks = map(int, self._pid_file.read_text().split())
            if start_ticks(pid) == ticks:
                return pid
        return None

    @property
    def running(self) -> bool:
        return self.pid is not None

    def pause(self) -> None:
        """A process that hangs: connections are accepted by the kernel, and nobody answers."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """A process that is gone from one moment to the next."""
        self.end(signal.SIGKILL)

    def end(self, how: signal.Signals = signal.SIGTERM, patience_seconds: float = 15) -> None:
        """Ends it and waits for its end; what does not heed the signal is killed."""
        pid = self.pid
        if pid is not None:
            with suppress(ProcessLookupError):
                handle = os.pidfd_open(pid)
                try:
                    for each, seconds in ((how, patience_seconds), (signal.SIGKILL, 10)):
                        signal.pidfd_send_signal(handle, each)
                        signal.pidfd_send_signal(handle, signal.SIGCONT)  # a paused process heeds SIGTERM only then
                        if select.select([handle], [], [], seconds)[0]:
                            break
                    else:
                        raise ClusterError(f"{self.name} (pid {pid}) could not be killed")
                finally:
                    os.close(handle)
        if self._child:
            self._child.wait()
            self._child = None
        self._pid_file.unlink(missing_ok=True)

    def last_words(self) -> str:
        """The end of the log, for the person who asks why it died."""
        with suppress(OSError):
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])
        return ""

    def _signal(self, which: signal.Signals) -> None:
        pid = self.pid
        if pid is None:
            raise ClusterError(f"{self.name} does not run in {self.directory}")
        os.kill(pid, which)


def start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None for one that is gone or only waits to be reaped."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if state in "ZX" else int(fields[18])
