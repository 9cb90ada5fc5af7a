# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The real exporter beside a test: its one file, as the role installs it, started by hand on a simulated node."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ansible_collections.gpuops.remediation.plugins.module_utils import _program
from ansible_collections.gpuops.remediation.plugins.module_utils._exporter import program
from gpusim.node import Node
from ports import free_port
from prometheus_client.parser import text_string_to_metric_families

PATHS = ("state_dir", "proc_root", "dev_root", "kmsg_path", "cgroup_root", "nvml_library")
Page = dict[tuple[str, frozenset[tuple[str, str]]], float]  # by name and labels that are not empty


def built() -> bytes:
    return _program.build(program.__name__, f"{sys.executable} -I", ("prometheus_client", "pynvml"))


class NodeExporter:
    """Both programs of one node. Readings of root's come when `read_state` is called, in place of a timer."""

    def __init__(self, folder: Path, node: Node, **settings: Any) -> None:
        self.node, self.port = node, free_port()
        self.cache = folder / "cache"
        for name in ("node", "watch"):
            (folder / name).mkdir(parents=True)
        self.program, self.state_file = folder / "gpuops-exporter", folder / "node/state.json"
        self.program.write_bytes(built())
        self.program.chmod(0o755)
        variables = node.host_variables()
        self.config = folder / "exporter.json"
        self.config.write_text(json.dumps({
            "node_name": node.name, "host": "127.0.0.1", "port": self.port, "certfile": "", "keyfile": "", "cafile": "",
            "interval_seconds": 0.5, "nvml_timeout_seconds": 4.0, "max_owners": 1000, "bpffs_dir": str(folder / "bpf"),
            "state_file": str(self.state_file), "watch_dir": str(folder / "watch"),
            "node": {name: variables[f"gpuops_{name}"] for name in PATHS}, **settings,
        }))  # fmt: skip
        self.process: subprocess.Popen[str] | None = None

    def read_state(self) -> None:
        environment = {**os.environ, program.UNPACK_DIR: str(self.cache)}
        done = subprocess.run(
            [self.program, "state", self.config], env=environment, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def start(self) -> None:
        self.process = subprocess.Popen([self.program, "export", self.config], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("ready"), line + self.process.stdout.read()

    def kill(self) -> None:
        if self.process:
            self.process.kill()
            self.process.communicate()
            self.process = None

    def text(self) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=30) as answer:
            return str(answer.read().decode())

    def page(self) -> Page:
        return parsed(self.text())


def parsed(text: str) -> Page:
    found: Page = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, frozenset((name, value) for name, value in sample.labels.items() if value))
            assert key not in found, f"{key} is there twice"
            found[key] = sample.value
    return found


@contextlib.contextmanager
def running_node_exporter(folder: Path, node: Node, **settings: Any) -> Iterator[NodeExporter]:
    exporter = NodeExporter(folder, node, **settings)
    try:
        exporter.read_state()
        exporter.start()
        yield exporter
    finally:
        exporter.kill()
