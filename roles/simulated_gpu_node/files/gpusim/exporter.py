# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What an exporter on a simulated node tells Prometheus, under the names of the real one; one process serves all nodes below a root.

`/metrics?node=NAME` is the exporter of one node: each node can be a target of its own. NVML's figures end with NVML. The Xids come from
the kernel log, which a hanging driver does not silence.
"""

from __future__ import annotations

import contextlib
import re
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

from .kmsg import RECOVERY_TEXTS
from .node import Node, SimulatorError, nodes

GPU = ("node", "gpu_uuid", "pci_bus_id")
CALLS = ("nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetFieldValues")  # that it makes
WATCHDOG_SECONDS = 5.0  # a call that takes longer is given up
XID = re.compile(r"^\d+,\d+,(?P<micros>\d+),[^;]*;NVRM: Xid \(PCI:(?P<address>[0-9a-f:]+)\): (?P<code>\d+),")


@dataclass
class Xids:
    """Of one GPU and code: how many since the boot, and when the last."""

    count: int = 0
    last: float = 0.0


def nvml_answers(state: dict[str, Any]) -> bool:
    faults = state["faults"]
    every = [faults, *(gpu["faults"] for gpu in state["gpus"])]
    return not (faults["driver_not_loaded"] or _refused(faults) or any(_hangs(each) for each in every))


def _hangs(faults: dict[str, Any]) -> bool:
    hangs = [seconds for call, seconds in faults["hang"].items() if call in ("all", *CALLS)]
    return any(seconds is None or seconds > WATCHDOG_SECONDS for seconds in hangs)


def _refused(faults: dict[str, Any]) -> bool:
    return any(call in ("all", *CALLS) for call in faults["no_permission"])


def xids(node: Node, boot_time: float) -> dict[tuple[str, str], Xids]:
    """By PCI address and code, from the kernel log of this boot."""
    found: dict[tuple[str, str], Xids] = {}
    for line in node.kmsg.read_text(encoding="utf-8", errors="replace").splitlines():
        if match := XID.match(line):
            one = found.setdefault((match["address"] + ".0", match["code"]), Xids())
            one.count, one.last = one.count + 1, boot_time + int(match["micros"]) / 1e6
    return found


class Exporter(Collector):
    def __init__(self, chosen: Iterable[Node]) -> None:
        self.nodes = list(chosen)

    def collect(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("gpuops_nvml_up", "Whether NVML answers in time", labels=["node"])
        action = GaugeMetricFamily("gpuops_gpu_recovery_action", "What the driver asks for, as NVML's number; 0 is nothing", labels=GPU)
        pending = GaugeMetricFamily("gpuops_gpu_row_remap_pending", "Whether a spare memory row waits for a reset", labels=GPU)
        failed = GaugeMetricFamily("gpuops_gpu_row_remap_failed", "Whether a broken memory row could not be replaced", labels=GPU)
        ecc = CounterMetricFamily("gpuops_gpu_ecc_errors", "ECC errors since the driver was loaded", labels=[*GPU, "error"])
        events = CounterMetricFamily("gpuops_xid_events", "Xids since the boot", labels=[*GPU, "xid"])
        last = GaugeMetricFamily("gpuops_xid_last_timestamp_seconds", "When the last of these Xids came", labels=[*GPU, "xid"])
        for node in self.nodes:
            with contextlib.suppress(SimulatorError, FileNotFoundError):  # it was destroyed meanwhile
                state = node.state()
                answers = nvml_answers(state)
                up.add_metric([node.name], answers)
                for gpu in state["gpus"]:
                    if answers and not gpu["lost"] and not _refused(gpu["faults"]):
                        labels = [node.name, gpu["uuid"], gpu["pci_bus_id"]]
                        action.add_metric(labels, list(RECOVERY_TEXTS).index(gpu["recovery_action"]))
                        pending.add_metric(labels, gpu["remapped_rows"]["pending"])
                        failed.add_metric(labels, gpu["remapped_rows"]["failure"])
                        for error in ("corrected", "uncorrected"):
                            ecc.add_metric([*labels, error], gpu["ecc"][f"{error}_volatile"])
                uuids = {gpu["pci_bus_id"]: gpu["uuid"] for gpu in state["gpus"]}
                for (address, code), seen in xids(node, state["boot"]["time"]).items():
                    labels = [node.name, uuids.get(address, ""), address, code]
                    events.add_metric(labels, seen.count)
                    last.add_metric(labels, seen.last)
        yield from (up, action, pending, failed, ecc, events, last)


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
