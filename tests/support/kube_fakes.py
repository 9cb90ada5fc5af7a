# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""An API server in memory, a ledger in memory and a clock that only moves when somebody sleeps: what the Kubernetes units run against."""

from __future__ import annotations

import copy
import itertools
import threading
from typing import Any, Callable

from ansible_collections.gpuops.remediation.plugins.module_utils._incident.errors import UnknownChange
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.client import KubeApi
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.deadline import Deadline
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.errors import Conflict, NotFound


class Clock:
    def __init__(self) -> None:
        self.time = 0.0
        self.on_sleep: Callable[[], None] = lambda: None

    def sleep(self, seconds: float) -> None:
        self.time += seconds
        self.on_sleep()

    def deadline(self, seconds: float = 30) -> Deadline:
        return Deadline(seconds, lambda: self.time, self.sleep)


class FakeApi(KubeApi):
    """Objects by path; writes are compare-and-swap. `before` is called with each request and may write, or raise what a server would answer."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.requests: list[tuple[str, str, Any]] = []
        self.before: Callable[[str, str, Any], Any] = lambda method, path, body: None
        self._clock = clock or Clock()
        self._versions = itertools.count(1)
        self._lock = threading.RLock()

    def now(self) -> float:
        return 1_000_000.0 + self._clock.time

    def put(self, path: str, thing: dict[str, Any]) -> dict[str, Any]:
        """What any other client writes."""
        thing = copy.deepcopy(thing)
        thing["metadata"]["resourceVersion"] = str(next(self._versions))
        thing["metadata"].setdefault("uid", f"uid-{thing['metadata']['name']}")
        self.objects[path] = thing
        return copy.deepcopy(thing)

    def writes(self) -> list[tuple[str, str, Any]]:
        return [request for request in self.requests if request[0] != "GET"]

    def request(self, method: str, path: str, deadline: Deadline, body: Any = None, query: Any = None) -> dict[str, Any]:
        with self._lock:
            self.requests.append((method, path, copy.deepcopy(body)))
            answer = self.before(method, path, body)
            if answer is not None:
                return answer
            if method == "GET" and path not in self.objects and path.endswith("pods"):
                return {"items": copy.deepcopy([thing for where, thing in self.objects.items() if "/pods/" in where])}
            if method == "GET" and path.endswith(("/nodes", "/resourceslices", "/resourceclaims")):
                return {
                    "items": copy.deepcopy([thing for where, thing in self.objects.items() if path.rpartition("/")[2] in where.split("/")])
                }
            if method == "POST" and (query or {}).get("dryRun"):
                return {**copy.deepcopy(body), "metadata": {**body["metadata"], "uid": "", "resourceVersion": ""}}
            if method == "POST":
                path += "/" + body["metadata"]["name"]
                if path in self.objects:
                    raise Conflict(f"{path}: already exists", status=409)
                return self.put(path, body)
            if path not in self.objects:
                raise NotFound(f"{path}: not found", status=404)
            if method == "DELETE":  # always with a body here, so that the server does not read the address's dryRun
                there = self.objects[path]["metadata"]
                if any(there[name] != value for name, value in body["preconditions"].items()):
                    raise Conflict(f"{path}: the object has been modified", status=409)
                return copy.deepcopy(self.objects[path]) if "dryRun" in body else self.objects.pop(path)
            if method in ("PATCH", "PUT"):
                thing = self.objects[path]
                if body["metadata"]["resourceVersion"] != thing["metadata"]["resourceVersion"]:
                    raise Conflict(f"{path}: the object has been modified", status=409)
                self.put(path, merge(thing, body) if method == "PATCH" else body)
            return copy.deepcopy(self.objects[path])


def merge(thing: Any, patch: Any) -> Any:
    """RFC 7396."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(thing) if isinstance(thing, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(merged.get(key), value)
    return merged


class FakeChange:
    def __init__(self, number: int, target: str, before: Any, wanted: Any) -> None:
        self.id = number
        self.target = target
        self.before = before
        self.wanted = wanted
        self.after: Any = None
        self.status = "intended"
        self.owners: list[str] = []
        self.past_owners: set[str] = set()


class FakeLedger:
    """The changes, as the ledger keeps them; `asked` is the order of everything, `refuse` raises in its place."""

    def __init__(self, check_mode: bool = False) -> None:
        self.check_mode = check_mode
        self.rows: list[FakeChange] = []
        self.asked: list[Any] = []
        self.refuse: dict[str, Exception] = {}

    def _ask(self, what: str, *arguments: Any) -> list[FakeChange]:
        """The rows to work on: copies, where nothing of it is to stay."""
        self.asked.append((what, *arguments))
        if what in self.refuse:
            raise self.refuse[what]
        return copy.deepcopy(self.rows) if self.check_mode else self.rows

    def authorize(self, incident_id: str, write: str) -> None:
        self._ask("authorize", incident_id, write)

    def take_slot(self, incident_id: str, node: str, groups: Any) -> None:
        self._ask("take_slot", incident_id, node, groups)

    def intend(self, incident_id: str, target: str, before: Any, wanted: Any) -> FakeChange:
        rows = self._ask("intend", incident_id, target)
        row = _open(rows, target)
        if row is None:
            row = FakeChange(len(rows), target, before, wanted)
            rows.append(row)
        if incident_id not in row.owners:
            row.owners.append(incident_id)
        return row

    def applied(self, change_id: int, after: Any) -> FakeChange:
        rows = self._ask("applied", change_id)
        if not self.check_mode and rows[change_id].status != "reverted":
            rows[change_id].status, rows[change_id].after = "applied", after
        return rows[change_id]

    def open_change(self, target: str) -> FakeChange | None:
        return _open(self.rows, target)

    def disown(self, incident_id: str, target: str) -> FakeChange:
        row = _open(self._ask("disown", incident_id, target), target)
        if row is None:
            raise UnknownChange(target)
        if incident_id in row.owners:
            row.owners.remove(incident_id)
            row.past_owners.add(incident_id)
        return row

    def reverted(self, change_id: int) -> None:
        self._ask("reverted", change_id)[change_id].status = "reverted"

    def changes(self, incident_id: str) -> list[FakeChange]:
        return [row for row in self.rows if incident_id in {*row.owners, *row.past_owners}]


def _open(rows: list[FakeChange], target: str) -> FakeChange | None:
    return next((row for row in rows if row.target == target and row.status != "reverted"), None)


def pod(
    name: str,
    *,
    uid: str = "",
    node: str | None = None,
    owner: str | None = "ReplicaSet",
    owner_uid: str = "rs",
    limits: dict[str, str] | None = None,
    init_limits: dict[str, str] | None = None,
    claims: dict[str, str] | None = None,
    grace: int = 30,
    tolerations: Any = (),
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    finalizers: Any = (),
    terminating: bool = False,
    phase: str = "Running",
    conditions: Any = (),
    created: str = "2026-11-30T00:00:00Z",
    container: str = "main",
) -> dict[str, Any]:
    """A pod as the API sends it."""
    metadata: dict[str, Any] = {"name": name, "namespace": "default", "uid": uid or f"uid-{name}", "creationTimestamp": created}
    metadata.update(labels=labels or {}, annotations=annotations or {}, finalizers=list(finalizers))
    if owner:
        metadata["ownerReferences"] = [{"kind": owner, "uid": owner_uid, "controller": True}]
    if terminating:
        metadata.update(deletionTimestamp="2026-11-30T00:00:00Z", deletionGracePeriodSeconds=grace)
    spec = {
        "nodeName": node,
        "containers": [{"name": container, "resources": {"limits": limits or {}}}],
        "initContainers": [{"name": "init", "resources": {"limits": init_limits or {}}}],
        "resourceClaims": [{"name": key, "resourceClaimName": value} for key, value in (claims or {}).items()],
        "terminationGracePeriodSeconds": grace,
        "tolerations": list(tolerations),
    }
    return {"metadata": metadata, "spec": spec, "status": {"phase": phase, "conditions": list(conditions)}}


def resource_slice(node: str, devices: dict[str, dict[str, str]], driver: str = "gpu.nvidia.com") -> dict[str, Any]:
    """A driver's devices on a node, by name, with what it says of each."""
    listed = [{"name": name, "attributes": {key: {"string": text} for key, text in each.items()}} for name, each in devices.items()]
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    return {"metadata": {"name": f"{node}-{driver}"}, "spec": {"driver": driver, "nodeName": node, "pool": pool, "devices": listed}}


def claim(name: str, pool: str, device: str, pods: Any = (), driver: str = "gpu.nvidia.com") -> dict[str, Any]:
    """An allocated ResourceClaim, and the UIDs of the pods that have it."""
    results = [{"request": "device", "driver": driver, "pool": pool, "device": device}]
    reserved = [{"resource": "pods", "name": f"pod-{uid}", "uid": uid} for uid in pods]
    return {
        "metadata": {"name": name, "namespace": "default"},
        "status": {"allocation": {"devices": {"results": results}}, "reservedFor": reserved},
    }


def notice(method: str, path: str, body: Any) -> None:
    """As `FakeApi.before`: the controller manager takes notice of each new rule."""
    if method == "POST" and path.endswith("/devicetaintrules"):
        message = "Eviction only happens for the NoExecute effect."
        body["status"] = {"conditions": [{"type": "EvictionInProgress", "message": message}]}


def serve_devices(api: FakeApi, rules: str | None = "v1beta2") -> None:
    """The API server has Dynamic Resource Allocation, and the rules that taint devices in one version or in none."""
    served = {"v1": ["resourceslices", "resourceclaims"], **({rules: ["devicetaintrules"]} if rules else {})}
    for version, names in served.items():
        api.put(f"/apis/resource.k8s.io/{version}", {"metadata": {"name": version}, "resources": [{"name": name} for name in names]})
