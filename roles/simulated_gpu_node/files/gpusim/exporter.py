# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What an exporter on a simulated node tells Prometheus, under the names of the real one; one process serves all nodes below a root.

`/metrics?node=NAME` is the exporter of one node: each node can be a target of its own. NVML's figures end with NVML. The Xids come from
the kernel log, which a hanging driver does not silence. All is read when Prometheus asks, so that every age is 0.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import resource
import signal
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from . import mig
from .kmsg import RECOVERY_TEXTS
from .node import MIB, Node, SimulatorError, nodes
from .state import is_alive

_NAMES = Path(__file__).parents[4] / "plugins/module_utils/_names.py"  # the collection's own table; no package path leads there
CALLS = (  # that it makes
    *("nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID", "nvmlDeviceGetPciInfo"),
    *("nvmlDeviceGetFieldValues", "nvmlDeviceGetRemappedRows", "nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetMemoryInfo"),
    "nvmlDeviceGetPersistenceMode",
)
WATCHDOG_SECONDS = 3.0  # a call that takes longer is given up
SOURCES = ("nvml", "state", "processes", "kernel_log")
PROBES = ("cuda_mem", "gpu_xid")  # which a simulated node does not have
PRESSURE_PERCENT = (60, 80, 95)
XID = re.compile(r"^\d+,\d+,(?P<micros>\d+),[^;]*;NVRM: Xid \(PCI:(?P<address>[0-9a-f:]+)(?: GPU-I:(?P<gi>\d+))?[^)]*\): (?P<code>\d+),")
CONTAINER = re.compile(r"pod(?P<pod>[0-9a-f_-]{36})\.slice/(?:[a-z-]+-)?(?P<id>[0-9a-f]{64})\.scope")


def names() -> Any:
    spec = importlib.util.spec_from_file_location("gpuops_names", _NAMES)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


METRICS = {metric.name: metric for metric in names().EXPORTER_METRICS}
Figure = tuple[str, tuple[Any, ...], float]  # a metric's name, its labels in their order, the value


@dataclass
class Xids:
    """Of one GPU, instance and code: how many since the boot, and when the last."""

    count: int = 0
    last: float = 0.0


def nvml_answers(state: dict[str, Any]) -> bool:
    return not state["faults"]["driver_not_loaded"] and _answers(state["faults"])


def _answers(faults: dict[str, Any]) -> bool:
    hangs = [seconds for call, seconds in faults["hang"].items() if call in ("all", *CALLS)]
    refused = any(call in ("all", *CALLS) for call in faults["no_permission"])
    return not refused and not any(seconds is None or seconds > WATCHDOG_SECONDS for seconds in hangs)


def xids(node: Node, boot_time: float) -> dict[tuple[str, str, str], Xids]:
    """By PCI address, GPU instance and code, from the kernel log of this boot."""
    found: dict[tuple[str, str, str], Xids] = {}
    for line in node.kmsg.read_text(encoding="utf-8", errors="replace").splitlines():
        if match := XID.match(line):
            instance = str(int(match["gi"])) if match["gi"] else ""
            one = found.setdefault((match["address"] + ".0", instance, match["code"]), Xids())
            one.count, one.last = one.count + 1, boot_time + int(match["micros"]) / 1e6
    return found


def figures(node: Node) -> Iterator[Figure]:
    state, model = node.state(), node.model
    answers = nvml_answers(state)
    well = [gpu for gpu in state["gpus"] if answers and not gpu["lost"] and _answers(gpu["faults"])]
    yield "gpuops_nvml_up", (node.name,), answers and all(gpu["lost"] or gpu in well for gpu in state["gpus"])
    yield from _own(node.name)
    for gpu in well:
        yield from _of_gpu((node.name, gpu["uuid"], gpu["pci_bus_id"]), state, model, gpu)
    yield from _owners(node.name, state)
    uuids = {gpu["pci_bus_id"]: gpu["uuid"] for gpu in state["gpus"]}
    for (address, instance, code), seen in xids(node, state["boot"]["time"]).items():
        labels = (node.name, uuids.get(address, ""), address, instance, code)
        yield "gpuops_xid_events_total", labels, seen.count
        yield "gpuops_xid_last_timestamp_seconds", labels, seen.last


def _own(node: str) -> Iterator[Figure]:
    """What the simulator costs is no node's, so all of it is each node's."""
    yield "gpuops_exporter_page_age_seconds", (node,), 0.0
    yield "gpuops_exporter_abandoned_readers", (node,), 0.0
    for probe in PROBES:
        yield "gpuops_probe_attached", (node, probe), 0.0
    for source in SOURCES:
        yield "gpuops_source_up", (node, source), 1.0
        yield "gpuops_source_age_seconds", (node, source), 0.0
    for part in ("exporter", "state"):
        yield "gpuops_exporter_cpu_seconds_total", (node, part), sum(os.times()[:2])
        yield "gpuops_exporter_resident_memory_bytes", (node, part), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _of_gpu(labels: tuple[str, str, str], state: dict[str, Any], model: dict[str, Any], gpu: dict[str, Any]) -> Iterator[Figure]:
    yield "gpuops_gpu_recovery_action", labels, list(RECOVERY_TEXTS).index(gpu["recovery_action"])
    yield "gpuops_gpu_row_remap_pending", labels, gpu["remapped_rows"]["pending"]
    yield "gpuops_gpu_row_remap_failed", labels, gpu["remapped_rows"]["failure"]
    for error in ("corrected", "uncorrected"):
        yield "gpuops_gpu_ecc_errors_total", (*labels, error), gpu["ecc"][f"{error}_volatile"]
    yield "gpuops_gpu_persistence_mode", labels, gpu["persistence"]
    memory = model["memory"]
    yield from _memory("gpu", labels, memory["reserved_bytes"] + mig.memory_used(state, gpu), memory["total_bytes"])
    for instance in gpu["mig"]["instances"]:
        if instance["compute"]:  # else nobody has a handle of it
            total = mig.profile(model, instance["profile"])["memorySizeMB"] * MIB
            yield from _memory("mig", (*labels, str(instance["id"])), mig.memory_used(state, gpu, instance["id"]), total)


def _memory(of: str, labels: tuple[str, ...], used: int, total: int) -> Iterator[Figure]:
    yield f"gpuops_{of}_memory_used_bytes", labels, used
    yield f"gpuops_{of}_memory_total_bytes", labels, total
    yield f"gpuops_{of}_memory_pressure", labels, sum(used / total >= percent / 100 for percent in PRESSURE_PERCENT)
    yield f"gpuops_{of}_oom_score", labels, 100 * used / total


def _owners(node: str, state: dict[str, Any]) -> Iterator[Figure]:
    sums: dict[tuple[str, ...], int] = {}
    for process in filter(is_alive, state["processes"]):
        path = process["cgroup_path"]
        found = CONTAINER.search(path)
        owner = (found["id"], found["pod"].replace("_", "-"), "") if found else ("", "", Path(path).name)
        for index in process["gpus"] if process["type"] != "monitor" else ():
            gpu = state["gpus"][index]
            key = (node, gpu["uuid"], gpu["pci_bus_id"], "" if process["gi"] is None else str(process["gi"]), *owner)
            sums[key] = sums.get(key, 0) + process["memory_bytes"]
    for labels, total in sums.items():
        yield "gpuops_container_memory_used_bytes", labels, total


class Exporter(Collector):
    def __init__(self, chosen: Iterable[Node]) -> None:
        self.nodes = list(chosen)

    def collect(self) -> Iterator[Metric]:
        families = {
            name: (CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily)(name, metric.help, labels=metric.labels)
            for name, metric in METRICS.items()
        }
        for node in self.nodes:
            with contextlib.suppress(SimulatorError, FileNotFoundError):  # it was destroyed meanwhile
                for name, labels, value in figures(node):
                    families[name].add_metric(labels, value)
        yield from families.values()


class _Handler(BaseHTTPRequestHandler):
    root: Path

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        wanted = parse_qs(url.query).get("node", [])
        chosen = [node for node in nodes(self.root) if not wanted or node.name in wanted]
        if url.path != "/metrics" or (wanted and not chosen):
            self.send_error(404)
            return
        registry = CollectorRegistry()
        registry.register(Exporter(chosen))
        body = generate_latest(registry)
        self.send_response(200)
        self.send_header("Content-Type", CONTENT_TYPE_LATEST)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """A scrape a second is no news."""


def serve(root: Path, host: str, port: int) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    handler = type("Handler", (_Handler,), {"root": root})
    with ThreadingHTTPServer((host, port), handler) as server:
        print(f"ready: http://{host}:{server.server_port}/metrics", flush=True)
        server.serve_forever()
