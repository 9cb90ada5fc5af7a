# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A storm: as many nodes at once, fenced by the event source on a real control plane. Latency from the POST to the API server's answer."""

from __future__ import annotations

import datetime as dt
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from alerts import recorded, rewritten
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.store import Ledger
from cluster import ACCOUNT, Cluster, audit
from cluster.objects import wait_until
from trigger import Source

TAINT = "gpu.unhealthy=true:NoSchedule"


def storm(nodes: int, singles: int) -> dict[str, list[float]]:
    """Seconds from the POST: of each single node, then to the first and the last of all at once, in a message a node."""
    with tempfile.TemporaryDirectory(prefix="gpuops-storm-") as folder, Cluster(Path(folder) / "cluster") as cluster:
        names = [f"gpu-{number}" for number in range(nodes + singles)]
        uids = cluster.objects.make_nodes(*names)
        url = f"sqlite:///{folder}/ledger.db"
        ledger = Ledger.open(url)
        ledger.configure("fence", {"nodes": len(names)}, False, "benchmark", "to fence them all")
        ledger.keep_nodes({name: {"host": name, "uid": uids[name], "managed": True, "groups": {"fleet": len(names)}} for name in names})
        with Source(Path(folder), url, fence_in="source", kubeconfig=str(cluster.kubeconfig)).running() as source:
            print(source.log)
            alone = []
            for name in names[nodes:]:
                posted = _post(source, name)
                alone.append(_tainted(cluster, [name])[name] - posted)
                time.sleep(1)
            began = time.time()
            with ThreadPoolExecutor(max_workers=50) as pool:
                list(pool.map(lambda name: _post(source, name), names[:nodes]))
            answered = time.time() - began
            tainted = _tainted(cluster, names[:nodes])
            fenced = sorted(at - began for at in tainted.values())
            assert source.metric('gpuops_trigger_fences_total{outcome="fenced"}') == len(names)
        assert ledger.undecided() and len(ledger.overview()["incidents"]) == len(names)
        ledger.close()
    return {"one alone": alone, "all answered": [answered], "first and last of all": [fenced[0], statistics.median(fenced), fenced[-1]]}


def _post(source: Source, node: str) -> float:
    """When it was sent."""
    message = rewritten(
        recorded("firing-single"), {"node": node, "xid": "79", "gpu": None, "pci_bus_id": "0000:19:00.0"}, annotations={"xid": None}
    )
    began = time.time()
    status, body = source.post(message)
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
