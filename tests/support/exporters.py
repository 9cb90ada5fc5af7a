# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""`gpusim export` beside a test, as a process that can die."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import gpusim
from ports import free_port


class ExporterProcess:
    """Of all simulated nodes below a root; killed and started again on the same port."""

    def __init__(self, root: Path, *arguments: str) -> None:
        self.root, self.arguments, self.port = root, arguments, free_port()
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "gpusim", "--root", str(self.root), "export", "--port", str(self.port), *self.arguments]
        environment = {**os.environ, "PYTHONPATH": str(Path(gpusim.__file__).parents[1])}
        self._process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line.startswith("ready"), line

    def kill(self) -> None:
        if self._process:
            self._process.kill()
            self._process.communicate()
            self._process = None


@contextlib.contextmanager
def running_exporter(root: Path, *arguments: str) -> Iterator[ExporterProcess]:
    exporter = ExporterProcess(root, *arguments)
    try:
        exporter.start()
        yield exporter
    finally:
        exporter.kill()
