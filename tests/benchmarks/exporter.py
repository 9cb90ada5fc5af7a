# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a node's exporter costs with 8 GPUs of 7 MIG instances each and 1000 containers; the node is simulated, its file of containers made up."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from gpusim import instances
from gpusim.node import Node
from node_exporter import NodeExporter

GPUS, INSTANCES, CONTAINERS = 8, 7, 1000
ROUNDS, PAUSE_SECONDS = 60, 1.0


def _fill(exporter: NodeExporter) -> None:
    """As root's reader would write it."""
    state = json.loads(exporter.state_file.read_text())
    gpus, ids = state["gpus"], range(INSTANCES)
    owner = {"pod_uid": "12345678-9abc-def0-1234-56789abcdef0", "unit": None, "memory_bytes": 64 << 20}
    state["owners"] = [
        {**{name: gpus[number % GPUS][name] for name in ("uuid", "pci_bus_id")}, "gi": 7 + ids[number % INSTANCES], "container_id": f"{number:064x}", **owner}
        for number in range(CONTAINERS)
    ]  # fmt: skip
    state["written_seconds"] = time.time() + 3600  # it is not to grow stale meanwhile
    exporter.state_file.write_text(json.dumps(state))


def _spent(pid: int) -> tuple[float, float]:
    """CPU seconds of a process, and of the children that it has waited for."""
    user, system, children_user, children_system = map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15])
    return (user + system) / 100, (children_user + children_system) / 100


def measure() -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="gpuops-bench-") as folder:
        node = Node(Path(folder) / "nodes", "bench")
        node.create(gpus=GPUS)
        exporter = NodeExporter(Path(folder) / "exporter", node, interval_seconds=5.0)
        try:
            for gpu in range(GPUS):
                instances.set_mode(node, gpu, True)
                for start in range(INSTANCES):
                    instances.create(node, gpu, "1g.18gb", start)
            states = []
            for _round in range(6):
                exporter.read_state()
                states.append(json.loads(exporter.state_file.read_text())["cost"]["cpu_seconds"])
            _fill(exporter)
            exporter.start()
            assert exporter.process
            pid, scrapes = exporter.process.pid, []
            began, before = time.monotonic(), _spent(pid)
            for _round in range(ROUNDS):
                asked = time.perf_counter()
                text = exporter.text()
                scrapes.append((time.perf_counter() - asked) * 1e3)
                time.sleep(PAUSE_SECONDS)
            seconds = time.monotonic() - began
            own, readers = (100 * (now - then) / seconds for now, then in zip(_spent(pid), before))
            status = Path(f"/proc/{pid}/status").read_text()
            assert text.count("gpuops_container_memory_used_bytes{") == CONTAINERS
            return {
                "scrapes": scrapes,
                "page_bytes": len(text),
                "own_percent": own,
                "readers_percent": readers,
                "resident_mib": int(status.partition("VmHWM:")[2].split()[0]) / 1024,
                "state_seconds": statistics.median(after - earlier for earlier, after in zip(states[1:], states[2:])),
            }
        finally:
            exporter.kill()
            node.destroy()


def show() -> None:
    found = measure()
    scrapes = found["scrapes"]
    print(f"\n| the exporter: {GPUS} GPUs, {INSTANCES} MIG instances each, {CONTAINERS} containers | |\n| --- | --- |")
    print(
        f"| a scrape, {len(scrapes)} of them: min, median, max | {min(scrapes):.1f}, {statistics.median(scrapes):.1f}, {max(scrapes):.1f} ms |"
    )
    print(f"| the page | {found['page_bytes'] / 1024:.0f} KiB |")
    print(f"| of one core, its own | {found['own_percent']:.1f} % |")
    print(f"| of one core, its readings every 5 s of NVML, which is simulated | {found['readers_percent']:.1f} % |")
    print(f"| most memory | {found['resident_mib']:.0f} MiB |")
    print(f"| root's reader, every 10 s, CPU time of one reading | {found['state_seconds'] * 1e3:.0f} ms |", flush=True)
