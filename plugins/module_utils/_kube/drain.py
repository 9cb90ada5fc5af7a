# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Evicts pods from one node, and watches until they are gone."""

from __future__ import annotations

import contextlib
import os
import platform
import threading
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ansible_collections.gpuops.remediation.plugins.module_utils._converge import Outcome
from ansible_collections.gpuops.remediation.plugins.module_utils._errors import RemediationError
from ansible_collections.gpuops.remediation.plugins.module_utils._gpu import resources
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.deadline import Deadline
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.devices import DeviceHolders
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.errors import ApiUnavailable, EvictIncomplete, KubeError, NotFound
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.evictions import (
    Pod,
    Selection,
    attribution,
    budgets_that_block,
    claims,
    describe,
    eviction,
    moves,
    settled,
    terminating,
    tolerates,
    uid,
    why_left,
)
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.nodes import NodeWriter, refuse_overridden
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.taints import Node, Taint, show

ROUND_SECONDS = 1.0
AGAIN_SECONDS = 2.0  # between two tries for one pod
RENEW_SECONDS = 5.0
SETTLE_SECONDS = 5.0  # how long the scheduler may take for the successors
SIDE_BY_SIDE = 8
NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class Drain:
    """One drain of one node. What has happened so far is in `report()`, also when an error ends it."""

    def __init__(self, writer: NodeWriter, selection: Selection, own_namespace: str, holders: DeviceHolders | None = None) -> None:
        self._writer = writer
        self._api = writer.api
        self._deadline: Deadline = writer.deadline
        self._permit = writer.permit
        self._selection = selection
        self._given = selection.uids
        self._holders = holders
        self._tolerant: set[str] = set()  # of the holders, who would get the GPU again
        self._own_namespace = own_namespace
        self._asking = threading.Lock()  # each eviction asks the ledger and the lock, one after another
        self._renewed = self._deadline.clock()
        self._in_force = {part: change.wanted for part, change in self._permit.changes().items() if change.status == "applied"}
        self._attribution = attribution(selection)
        self._node_ready = True
        self._taints: Sequence[Taint] = ()
        self._first: set[str] = set()  # what was on the node when we came
        self._known: set[str] = set()  # what was in the namespaces concerned
        self._leaving: dict[str, Pod] = {}  # everything that had or has to go
        self._left: list[Pod] = []
        self._kept: list[tuple[Pod, str]] = []
        self._accepted: set[str] = set()
        self._refusals: dict[str, str] = {}
        self._not_before: dict[str, float] = {}
        self._moved: list[dict[str, Any]] = []
        self._blocked: list[dict[str, Any]] = []

    def run(self) -> dict[str, Any]:
        """The report, when nothing that is meant is left except what was kept."""
        try:
            self._look()
            self._remember()
            if self._writer.check_mode:
                self._predict()
                return self.report()
            while self._left:
                if not self._deadline.left() or self._hopeless():
                    with contextlib.suppress(KubeError):
                        self._follow(0)
                    raise EvictIncomplete(self._told())
                self._evict()
                self._deadline.pause(ROUND_SECONDS)
                self._look()
            self._follow(SETTLE_SECONDS)
            return self.report()
        except RemediationError as error:
            error.details.update(self.report())
            raise

    def look(self) -> dict[str, Any]:
        """The report, when nothing that is meant is there except what stays on purpose. Nothing is asked for."""
        try:
            if self._permit.renew_lock:
                self._permit.renew_lock()
            self._look()
            for pod in self._left:
                if self._comes_back(pod):
                    self._refusals[uid(pod)] = f"it tolerates the {self._kept_by}"
            if self._left:
                raise EvictIncomplete(self._told())
            return self.report()
        except RemediationError as error:
            error.details.update(self.report())
            raise

    def report(self) -> dict[str, Any]:
        left = {uid(pod) for pod in self._left}
        gone = [pod for key, pod in self._leaving.items() if key not in left or self._writer.check_mode]
        return {
            "attribution": self._attribution,
            "changed": bool(self._accepted) or (self._writer.check_mode and bool(gone)),
            "evicted": [describe(pod) for pod in gone],
            "left": [] if self._writer.check_mode else [{**describe(pod), "why": self._why(pod)} for pod in self._left],
            "kept": [{**describe(pod), "why": why} for pod, why in self._kept],
            "moved": self._moved,
            "blocked": self._blocked,
        }

    def _look(self) -> None:
        """Read node and pods; stop when the node is no longer ours to drain."""
        try:
            node = self._writer.read()
            refuse_overridden(node, self._in_force)
            self._node_ready, self._taints = node.ready, node.taints
            pods = self._pods(fieldSelector=f"spec.nodeName={node.name}")
        except ApiUnavailable as error:
            if not self._left:
                raise
            raise EvictIncomplete(f"{self._told()}; as last seen, then {error}") from error
        self._attribute(node, pods)
        if not self._first:
            self._first = {uid(pod) for pod in pods}
            self._complete_selection(pods)
        meant = [pod for pod in pods if self._selection.meant(pod)]
        kept = {uid(pod): why for pod in meant for why in [self._selection.why_kept(pod)] if why}
        self._kept = [(pod, kept[uid(pod)]) for pod in meant if uid(pod) in kept]
        self._left = [pod for pod in meant if uid(pod) not in kept]
        self._leaving.update((uid(pod), pod) for pod in self._left)
        for pod in self._left:
            if uid(pod) not in self._first and not terminating(pod) and self._comes_back(pod):
                self._refusals[uid(pod)] = f"came after the drain began, and would come again: it tolerates the {self._kept_by}"
                self._not_before[uid(pod)] = float("inf")

    def _attribute(self, node: Node, pods: Collection[Pod]) -> None:
        """Anew in each look: a claim that several pods share may have one more by now. What was certain once is never guessed again."""
        if self._holders is None or self._selection.scope != "gpu":
            return
        uids = self._holders.uids(node.name, pods)
        if uids is not None:
            self._tolerant = {key for key, again in uids.items() if again}
            self._selection = replace(self._selection, uids={*uids, *(self._given or ())})
            self._attribution = "claims"
        elif self._attribution == "claims":
            raise EvictIncomplete(f"whose the GPU of node {node.name} is can no longer be told by the claims")

    def _comes_back(self, pod: Pod) -> bool:
        return tolerates(pod, self._taints) and (self._attribution != "claims" or uid(pod) in self._tolerant)

    @property
    def _kept_by(self) -> str:
        return "device's taint" if self._attribution == "claims" else "node's taints"

    def _hopeless(self) -> bool:
        """Whether all that is left came back and would again: waiting changes nothing."""
        return all(self._not_before.get(uid(pod)) == float("inf") and not terminating(pod) for pod in self._left)

    def _evict(self) -> None:
        now = self._deadline.clock()
        due = [pod for pod in self._left if not terminating(pod) and self._not_before.get(uid(pod), 0.0) <= now]
        # Whoever was asked least lately comes first, so that one pod's refusals cannot keep others from their turn.
        due.sort(key=lambda pod: self._not_before.get(uid(pod), 0.0))
        if due:
            with ThreadPoolExecutor(max_workers=SIDE_BY_SIDE) as pool:
                list(pool.map(self._evict_one, due))
        elif now - self._renewed > RENEW_SECONDS:
            self._ask()

    def _evict_one(self, pod: Pod) -> None:
        self._ask()
        self._not_before[uid(pod)] = self._deadline.clock() + AGAIN_SECONDS
        path = f"/api/v1/namespaces/{quote(pod['metadata']['namespace'], safe='')}/pods/{quote(pod['metadata']['name'], safe='')}/eviction"
        try:
            self._api.request("POST", path, self._deadline, eviction(pod, self._deadline.left()))
        except NotFound:
            pass
        except KubeError as error:
            # Not an end: a budget may allow it later, a webhook may recover. A 409 says that another pod has the name now.
            self._refusals[uid(pod)] = "; ".join(error.causes) or str(error)
            self._not_before[uid(pod)] = self._deadline.clock() + max(AGAIN_SECONDS, error.retry_after or 0.0)
        else:
            self._accepted.add(uid(pod))

    def _ask(self) -> None:
        with self._asking:
            self._permit.check("node")
            self._renewed = self._deadline.clock()

    def _remember(self) -> None:
        self._known = set(self._first)
        for namespace in sorted({pod["metadata"]["namespace"] for pod in self._left}):
            self._known.update(uid(pod) for pod in self._pods(namespace))

    def _follow(self, seconds: float) -> None:
        """See where the evicted work went."""
        left = {uid(pod) for pod in self._left}
        evicted = [pod for key, pod in self._leaving.items() if key not in left]
        until = self._deadline.clock() + seconds
        while evicted:
            now = [pod for namespace in sorted({pod["metadata"]["namespace"] for pod in evicted}) for pod in self._pods(namespace)]
            self._moved = moves(evicted, now, self._known)
            if settled(self._moved) or self._deadline.clock() >= until or not self._deadline.left():
                return
            self._deadline.pause(ROUND_SECONDS / 2)

    def _predict(self) -> None:
        """What stands in the way, without asking for a single eviction."""
        if self._left:
            self._permit.check("node")
        for namespace in sorted({pod["metadata"]["namespace"] for pod in self._left}):
            path = f"/apis/policy/v1/namespaces/{quote(namespace, safe='')}/poddisruptionbudgets"
            self._blocked += budgets_that_block(self._left, self._api.get(path, self._deadline)["items"])

    def _complete_selection(self, pods: Sequence[Pod]) -> None:
        """What the pods alone do not say: which ResourceClaims hold a GPU, and which pods are the responder's."""
        here = os.environ.get("POD_NAMESPACE") or (NAMESPACE_FILE.read_text(encoding="utf-8") if NAMESPACE_FILE.exists() else "")
        own = [
            uid(pod)
            for pod in pods
            if pod["metadata"]["namespace"] == self._own_namespace
            or (pod["metadata"]["namespace"], pod["metadata"]["name"]) == (here, os.environ.get("POD_NAME") or platform.node())
        ]
        guess = self._selection.scope == "gpu" and self._selection.uids is None
        names = sorted({name for pod in pods for name in claims(pod)}) if guess else []
        self._selection = replace(self._selection, own_uids=own, gpu_claims=[name for name in names if self._holds_gpu(name)])

    def _holds_gpu(self, claim: str) -> bool:
        namespace, name = claim.split("/")
        path = f"/apis/resource.k8s.io/v1/namespaces/{quote(namespace, safe='')}/resourceclaims/{quote(name, safe='')}"
        try:
            status: Mapping[str, Any] = self._api.get(path, self._deadline).get("status") or {}
        except NotFound:
            return False
        results = ((status.get("allocation") or {}).get("devices") or {}).get("results") or ()
        return any(result["driver"] == resources.DRIVER for result in results)

    def _pods(self, namespace: str = "", **query: str) -> list[Pod]:
        where = f"/namespaces/{quote(namespace, safe='')}" if namespace else ""
        return list(self._api.get(f"/api/v1{where}/pods", self._deadline, **query)["items"])

    def _why(self, pod: Pod) -> str:
        return why_left(pod, self._refusals.get(uid(pod)), self._node_ready)

    def _told(self) -> str:
        names = "; ".join(f"{pod['metadata']['namespace']}/{pod['metadata']['name']}: {self._why(pod)}" for pod in self._left[:5])
        return f"{len(self._left)} pods are left on node {self._writer.name}: {names}"


def result_of(report: dict[str, Any], cordoned: Outcome[Node] | None) -> dict[str, Any]:
    """The module's return values."""
    evicted = [f"{pod['namespace']}/{pod['name']}" for pod in report["evicted"]]
    kept = [f"{pod['namespace']}/{pod['name']}" for pod in report["kept"]]
    cordon: dict[str, Any] = cordoned.result(show) if cordoned else {"changed": False, "actions": [], "before": {}, "after": {}}
    evictions = [
        {"action": "evict", "target": f"pod/{name}", "before": pod["uid"], "after": None} for name, pod in zip(evicted, report["evicted"])
    ]
    return {
        **report,
        "changed": report["changed"] or cordon["changed"],
        "actions": [*cordon["actions"], *evictions],
        "diff": {"before": {**cordon["before"], "pods": sorted([*evicted, *kept])}, "after": {**cordon["after"], "pods": sorted(kept)}},
    }
