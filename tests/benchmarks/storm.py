# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A storm: as many nodes at once, fenced by the event source on a real control plane, and then worked off by the runs."""

from __future__ import annotations

import datetime as dt
import json
import statistics
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from alerts import recorded, rewritten
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.store import Ledger
from cluster import ACCOUNT, Cluster, audit
from cluster.objects import wait_until
from fleet import TAINT, Fleet
from trigger import Rulebook, Source, request


def show(nodes: int = 200, singles: int = 10) -> None:
    alone, answered, fenced = fence(nodes, singles)
    print("\n| nodes fenced by the event source, since their POST | first | median | last | unit |\n| --- | --- | --- | --- | --- |")
    print(f"| one alone, {singles} times | {min(alone):.3f} | {statistics.median(alone):.3f} | {max(alone):.3f} | s |")
    print(
        f"| {nodes} at once, all answered after {answered:.2f} s | {fenced[0]:.3f} | {statistics.median(fenced):.3f} | {fenced[-1]:.3f} | s |"
    )


def fence(nodes: int, singles: int) -> tuple[list[float], float, list[float]]:
    """Seconds from the POST to the API server's answer for single nodes; until all at once were answered; from the first POST to each of these."""
    with tempfile.TemporaryDirectory(prefix="gpuops-storm-") as folder, Cluster(Path(folder) / "cluster") as cluster:
        names = [f"gpu-{number}" for number in range(nodes + singles)]
        uids = cluster.objects.make_nodes(*names)
        url = f"sqlite:///{folder}/ledger.db"
        ledger = Ledger.open(url)
        ledger.configure("fence", {"nodes": len(names)}, False, "benchmark", "to fence them all")
        ledger.keep_nodes({name: {"host": name, "uid": uids[name], "managed": True, "groups": {"fleet": len(names)}} for name in names})
        with Source(Path(folder), url, fence_in="source", kubeconfig=str(cluster.kubeconfig)).running() as source:
            alone = []
            for name in names[nodes:]:
                posted = _post(source.args["port"], name)
                alone.append(_tainted(cluster, [name])[name] - posted)
                time.sleep(1)
            began = time.time()
            with ThreadPoolExecutor(max_workers=50) as pool:
                list(pool.map(lambda name: _post(source.args["port"], name), names[:nodes]))
            answered = time.time() - began
            fenced = sorted(at - began for at in _tainted(cluster, names[:nodes]).values())
            assert source.metric('gpuops_trigger_fences_total{outcome="fenced"}') == len(names)
        assert len(ledger.overview()["incidents"]) == len(names)
        ledger.close()
    return alone, answered, fenced


def work_off(nodes: int, parallel: int = 5) -> None:
    """The same with machines behind the nodes, of which every fifth has lost its GPU, and the whole rulebook."""
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
        with Rulebook(fleet, **variables).running() as rulebook:
            began, most = time.time(), 0
            with ThreadPoolExecutor(max_workers=50) as pool:
                list(pool.map(lambda name: _post(rulebook.variables["gpuops_trigger_port"], name), names))
            fenced = max(at - began for at in _tainted(cluster, names).values())
            while time.time() - began < 60 + 30 * nodes:
                states = Counter(one["state"] for one in fleet.ledger().overview(closed=True)["incidents"])
                most = max(most, len(fleet.ledger().busy_nodes()))
                if not states["running"] and not states["fenced_waiting"]:
                    break
                time.sleep(1)
        print(
            f"| {nodes} nodes, {parallel} at a time | fenced after {fenced:.1f} s | all ended after {time.time() - began:.0f} s | {dict(states)} | at most {most} locked |"
        )


def _post(port: int, node: str) -> float:
    """When it was sent."""
    labels = {"node": node, "xid": "79", "gpu": None, "pci_bus_id": "0000:00:06.0"}
    message = rewritten(recorded("firing-single"), labels, annotations={"xid": None})
    began = time.time()
    status, body = request(port, "POST", "/alerts", json.dumps(message).encode())
    assert status == 200, body
    return began


def _tainted(cluster: Cluster, names: list[str]) -> dict[str, float]:
    """When the API server had written each, by its audit log."""
    wanted = set(names)

    def written() -> dict[str, Any]:
        entries = cluster.audit(verb=audit.WRITES, user=ACCOUNT)
        found = {entry.name: entry for entry in entries if entry.resource == "nodes" and entry.code == 200 and entry.name in wanted}
        return found if len(found) == len(wanted) else {}

    found = wait_until(written, "all nodes fenced", 60)
    assert all(TAINT in cluster.objects.taints(name) for name in names)
    return {name: dt.datetime.fromisoformat(entry.answered).timestamp() for name, entry in found.items()}
