# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Very many alerts at once at the event source that fences: of nodes that are the API's alone, with no machine behind them."""

from __future__ import annotations

import contextlib
import datetime as dt
import http.client
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import sqlalchemy as sa
from alerts import recorded, rewritten
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.store import Ledger
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.tables import CHANGES, INCIDENTS, SLOTS
from cluster import ACCOUNT, Cluster, audit
from cluster.faults import Admission, admission
from cluster.objects import wait_until
from fleet import TAINT
from trigger import Rulebook, Source, request

PCI = "0000:00:06.0"


def prepared(cluster: Cluster, ledger_url: str, names: Sequence[str]) -> Ledger:
    """The nodes, and a ledger that knows them and lets all of them be fenced."""
    uids = cluster.objects.make_nodes(*names)
    ledger = Ledger.open(ledger_url)
    ledger.configure("fence", {"nodes": len(names)}, False, "tests", "to fence them all")
    ledger.keep_nodes({name: {"host": name, "uid": uids[name], "managed": True, "groups": {"fleet": len(names)}} for name in names})
    return ledger


def post(port: int, node: str) -> float:
    """An Xid 79 of a node; when it was sent."""
    labels = {"node": node, "xid": "79", "gpu": None, "pci_bus_id": PCI}
    message = rewritten(recorded("firing-single"), labels, annotations={"xid": None})
    began = time.time()
    status, body = request(port, "POST", "/alerts", json.dumps(message).encode())
    assert status == 200, body
    return began


def post_until_answered(port: int, node: str) -> None:
    """As Alertmanager does where nobody listens."""

    def answered() -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException):
            return post(port, node) > 0
        return False

    wait_until(answered, f"an answer about {node}", 60)


def writes(cluster: Cluster, names: Sequence[str], code: int = 200) -> list[audit.Entry]:
    """What the collection wrote to these nodes, with that answer."""
    wanted = set(names)
    entries = cluster.audit(verb=audit.WRITES, user=ACCOUNT, resource="nodes", code=code)
    return [entry for entry in entries if entry.name in wanted]


def tainted(cluster: Cluster, names: Sequence[str], seconds: float = 60) -> dict[str, float]:
    """When the API server had written each, by its audit log."""

    def written() -> dict[str, Any]:
        found = {entry.name: entry for entry in writes(cluster, names)}
        return found if len(found) == len(set(names)) else {}

    found = wait_until(written, "all nodes fenced", seconds)
    assert all(TAINT in cluster.objects.taints(name) for name in names)
    return {name: dt.datetime.fromisoformat(entry.answered).timestamp() for name, entry in found.items()}


def storm_names(count: int) -> list[str]:
    """No other test's, whose writes are in the same audit log."""
    return [f"storm-{number}" for number in range(count)]


def killed_amid(cluster: Cluster, source: Source | Rulebook, ledger_url: str, nodes: int, more: int) -> int:
    """The source, which fences, dies amid it, and is back at once, while more alerts arrive. How many were fenced when it died.

    AssertionError where an alert is lost, or a node is written, counted or on record other than once.
    """
    names = storm_names(nodes + more)
    ledger = prepared(cluster, ledger_url, names)
    with ThreadPoolExecutor(max_workers=50) as pool:
        with _halved(cluster, nodes) as amid:
            with source.running():
                posted = [pool.submit(post_until_answered, source.port, name) for name in names[:nodes]]
                assert amid.wait(60), "the source does not fence"
            fenced = len(writes(cluster, names))
        posted += [pool.submit(post_until_answered, source.port, name) for name in names[nodes:]]
        with source.running():
            for one in posted:
                one.result()
            wait_until(lambda: list(on_record(ledger)["changes"].values()) == ["applied"] * len(names), "all fences on record", 300)
    found = on_record(ledger)
    once = dict.fromkeys(names, 1)
    # A write whose client died is answered 504, whether it was done or not. Each is a compare-and-swap of a node without the taint, so that
    # one after it which is answered 200 says that it was not.
    assert all(cluster.objects.taints(name) == [TAINT] for name in names)
    assert max(Counter(entry.name for entry in writes(cluster, names)).values()) == 1
    assert {entry.name for entry in writes(cluster, names, code=504)} | {entry.name for entry in writes(cluster, names)} == set(names)
    assert found["incidents"] == found["slots"] == once
    assert Counter(target.split("/")[1] for _id, target in found["changes"]) == once
    ledger.close()
    return fenced


@contextlib.contextmanager
def _halved(cluster: Cluster, nodes: int) -> Iterator[threading.Event]:
    """Half of the nodes can be written, and no more, however fast the machine; the event is when a third has been begun."""
    begun, lock, third, over = set[str](), threading.Lock(), threading.Event(), threading.Event()

    def before(request: Any) -> None:
        with lock:
            if len(begun) < nodes // 2:
                begun.add(request["name"])
            passes = request["name"] in begun
            if len(begun) > nodes // 3:
                third.set()
        if not passes:
            over.wait(30)

    with admission(cluster, "nodes", Admission(before=before)):
        try:
            yield third
        finally:
            over.set()


def on_record(ledger: Ledger) -> dict[str, Any]:
    """How many open incidents and breaker slots each node has, and each change's status by its id and target."""
    with ledger.read() as connection:
        incidents = connection.execute(sa.select(INCIDENTS.c.node).where(INCIDENTS.c.open_key.is_not(None))).scalars()
        slots = connection.execute(sa.select(SLOTS.c.node)).scalars()
        changes = connection.execute(sa.select(CHANGES.c.id, CHANGES.c.target, CHANGES.c.status))
        return {
            "incidents": Counter(incidents),
            "slots": Counter(slots),
            "changes": {(row.id, row.target): row.status for row in changes},
        }
