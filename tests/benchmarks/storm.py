# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A storm: as many nodes at once, fenced by the event source on a real control plane, and then worked off by the runs."""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from ansible_collections.gpuops.remediation.plugins.module_utils._incident.keys import ENDED_OPEN_STATES
from cluster import Cluster
from cluster.objects import wait_until
from fence_storm import PCI, killed_amid, post, prepared, tainted
from fleet import Fleet
from http_answers import answering
from loop import Run
from monitoring import job, running_prometheus
from trigger import Rulebook, Source


def show(nodes: int = 200, singles: int = 10, more: int = 20) -> None:
    print("\n| nodes fenced by the event source, since their POST | first | median | last | unit |\n| --- | --- | --- | --- | --- |")
    for asks in (False, True):
        alone, answered, fenced = fence(nodes, singles, asks)
        what = "confirmed by a Prometheus" if asks else "without a Prometheus"
        print(f"| one alone, {singles} times, {what} | {min(alone):.3f} | {statistics.median(alone):.3f} | {max(alone):.3f} | s |")
        figures = f"{fenced[0]:.3f} | {statistics.median(fenced):.3f} | {fenced[-1]:.3f}"
        print(f"| {nodes} at once, all answered after {answered:.2f} s, {what} | {figures} | s |", flush=True)
    print(killed(nodes, more))


def fence(nodes: int, singles: int, asks: bool) -> tuple[list[float], float, list[float]]:
    """Seconds from the POST to the API server's answer for single nodes; until all at once were answered; from the first POST to each of these."""
    with tempfile.TemporaryDirectory(prefix="gpuops-storm-") as folder, Cluster(Path(folder) / "cluster") as cluster:
        names = [f"gpu-{number}" for number in range(nodes + singles)]
        url = f"sqlite:///{folder}/ledger.db"
        ledger = prepared(cluster, url, names)
        with (
            _prometheus(Path(folder), names if asks else ()) as prometheus_url,
            Source(
                Path(folder), url, fence_in="source", kubeconfig=str(cluster.kubeconfig), prometheus_url=prometheus_url
            ).running() as source,
        ):
            alone = []
            for name in names[nodes:]:
                posted = post(source.port, name)
                alone.append(tainted(cluster, [name])[name] - posted)
                time.sleep(1)
            began = time.time()
            with ThreadPoolExecutor(max_workers=50) as pool:
                list(pool.map(lambda name: post(source.port, name), names[:nodes]))
            answered = time.time() - began
            fenced = sorted(at - began for at in tainted(cluster, names[:nodes]).values())
            assert source.metric('gpuops_trigger_fences_total{outcome="fenced"}') == len(names)
        said = {ledger.story(one["id"])["stages"]["detect"]["data"]["witness"] for one in ledger.overview()["incidents"]}
        assert said == {"confirmed" if asks else None}
        assert len(ledger.overview()["incidents"]) == len(names)
        ledger.close()
    return alone, answered, fenced


@contextmanager
def _prometheus(folder: Path, names: Sequence[str]) -> Iterator[str]:
    """The URL of one that knows the fault of each node, as its exporter has it; empty without nodes."""
    if not names:
        yield ""
        return
    lines = []
    for name in names:
        lines += [f'gpuops_nvml_up{{node="{name}"}} 1', f'gpuops_source_age_seconds{{node="{name}",source="kernel_log"}} 5']
        lines.append(f'gpuops_xid_events_total{{node="{name}",pci_bus_id="{PCI}",xid="79"}} 1')
    with answering() as exporter:
        exporter.by_path["/metrics"] = "\n".join(lines) + "\n"
        port = int(exporter.url.rsplit(":", 1)[1])
        with running_prometheus(folder / "prometheus", [job("gpuops_exporter", port, interval_seconds=5)]) as prometheus:
            wait_until(lambda: len(prometheus.query("gpuops_xid_events_total")) == len(names), "all nodes scraped", 60)
            yield prometheus.url


def killed(nodes: int, more: int) -> str:
    with tempfile.TemporaryDirectory(prefix="gpuops-storm-") as folder, Cluster(Path(folder) / "cluster") as cluster:
        url = f"sqlite:///{folder}/ledger.db"
        source = Source(Path(folder), url, fence_in="source", kubeconfig=str(cluster.kubeconfig))
        fenced = killed_amid(cluster, source, url, nodes, more)
    return f"\nkilled when {fenced} of {nodes} nodes were fenced, back at once, {more} new alerts meanwhile: {nodes + more} nodes, each fenced once"


@contextmanager
def _reconciled(fleet: Fleet, seconds: float) -> Iterator[None]:
    """A run with each full minute at which none is at work, as the role's timer has it; the last is awaited."""
    over = threading.Event()

    def runs() -> Iterator[Run]:
        while not over.wait(60 - time.time() % 60):
            yield fleet.play("reconcile", timeout_seconds=seconds)

    with ThreadPoolExecutor(max_workers=1) as pool:
        ended = pool.submit(lambda: [run.output for run in runs() if not run.ok])
        try:
            yield
        finally:
            over.set()
    assert not ended.result(), ended.result()


def work_off(nodes: int = 200, parallel: int = 5) -> None:
    """The same with machines behind the nodes, of which every fifth has lost its GPU, the whole rulebook, which starts two runs, and reconcile."""
    with (
        tempfile.TemporaryDirectory(prefix="gpuops-storm-") as folder,
        Cluster(Path(folder) / "cluster") as cluster,
        Fleet(Path(folder) / "controller", cluster) as fleet,
    ):
        names = [f"gpu-{number}" for number in range(nodes)]
        for number, node in enumerate(fleet.gpu_nodes(*names, gpus=1, gpuops_max_parallel_nodes=parallel)):
            if number % 5 == 0:
                node.xid(0, 79)
                node.lost(0)
        fleet.set("act", nodes=nodes)
        inventory = {name: {"host": name, "uid": fleet.objects.node(name)["metadata"]["uid"], "groups": {"fleet": nodes}} for name in names}
        fleet.ledger(write=True).keep_nodes(inventory)
        fleet.more_environment["ANSIBLE_FORKS"] = str(parallel)
        variables = {"gpuops_fence_in": "source", "gpuops_kubeconfig": str(cluster.kubeconfig), "gpuops_max_parallel_nodes": parallel}
        with Rulebook(fleet, **variables).running() as rulebook, _reconciled(fleet, seconds=60 + 30 * nodes):
            began, most = time.time(), 0
            with ThreadPoolExecutor(max_workers=50) as pool:
                for half in (names[::2], names[1::2]):
                    list(pool.map(lambda name: post(rulebook.port, name), half))
                    time.sleep(2)  # longer than a batch's window
            fenced = max(at - began for at in tainted(cluster, names).values())
            while time.time() - began < 60 + 30 * nodes:
                states = Counter(one["state"] for one in fleet.ledger().overview(closed=True)["incidents"])
                most = max(most, len(fleet.ledger().busy_nodes()))
                if not states["running"] and not states["fenced_waiting"]:
                    break
                time.sleep(1)
        assert set(states) <= ENDED_OPEN_STATES | {"no_action", "fence_lifted"} and states.total() == nodes, states
        assert most <= parallel, most
        print(
            f"{nodes} nodes, {parallel} at a time: fenced after {fenced:.1f} s, all ended after {time.time() - began:.0f} s, {dict(states)}"
        )
        print(f"at most {most} locked at once")
