# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From a fault to its containment, stage by stage, through the real parts: exporter, Prometheus, Alertmanager, ansible-rulebook, Kubernetes, PostgreSQL."""

from __future__ import annotations

import datetime as dt
import tempfile
import time
from pathlib import Path
from typing import Any

from cluster import Cluster
from cluster.objects import wait_until
from fleet import Fleet
from ledgers import fresh_schema
from monitoring import Prometheus
from pipeline import running_pipeline
from postgresql import running_postgresql

Stages = dict[str, list[float]]


def latency(rounds: int) -> Stages:
    """Seconds since the fault, of each round's own node: an Xid 79 with work on the GPU."""
    names = [f"gpu-{number}" for number in range(1, rounds + 1)]
    found: Stages = {}
    with tempfile.TemporaryDirectory(prefix="gpuops-latency-") as folder, running_postgresql() as server:
        directory = Path(folder)
        with Cluster(directory / "cluster") as cluster, Fleet(directory / "fleet", cluster, ledger_url=fresh_schema(server)) as fleet:
            fleet.gpu_nodes(*names, gpus=1)
            fleet.set("act", nodes=rounds)
            fleet.know_nodes()
            source = {"gpuops_fence_in": "source", "gpuops_kubeconfig": str(cluster.kubeconfig)}
            with fleet.kubelet(), running_pipeline(fleet, directory, **source) as pipeline:
                wait_until(lambda: len(pipeline.prometheus.query("gpuops_nvml_up == 1")) == rounds, "all nodes scraped", 60)
                for name in names:
                    fleet.objects.deployment(f"infer-{name}", 1, node=name)
                    for stage, seconds in _round(fleet, pipeline.prometheus, name).items():
                        found.setdefault(stage, []).append(seconds)
    return found


def _round(fleet: Fleet, prometheus: Prometheus, name: str) -> dict[str, float]:
    node = fleet.nodes[name]
    node.lost(0)
    fault = time.time()
    node.xid(0, 79)
    wait_until(lambda: fleet.ended().get((name, fleet.uuid(name, 0))) == "contained", f"{name} contained", 300)
    [incident] = fleet.incidents(name)
    [change] = incident["changes"]
    times = {
        "scraped by Prometheus": _first(prometheus, f'gpuops_xid_events_total{{node="{name}"}}'),
        "its rule evaluated": _first(prometheus, f'ALERTS{{node="{name}",alertname="GpuXidFatal",alertstate="firing"}}'),
        "Alertmanager's message committed": _time(incident["received_at"]),
        "the node fenced": _time(change["applied_at"]),
        "diagnosed on the node": _time(incident["stages"]["diagnose"]["finished_at"]),
        "its pods gone": _time(incident["stages"]["evict"]["finished_at"]),
        "contained": _time(incident["ended_at"]),
    }
    return {stage: moment - fault for stage, moment in times.items()}


def _first(prometheus: Prometheus, series: str) -> float:
    """When the first sample of a series was taken."""
    return min(float(value[0]) for one in prometheus.query(f"{series}[10m]") for value in one["values"])


def _time(text: Any) -> float:
    return dt.datetime.fromisoformat(text).timestamp()
