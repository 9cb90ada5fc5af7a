# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Nodes, workloads and budgets as a user makes them. Objects are the API's own JSON."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from cluster.api import Api, ApiError, Json

DEAD_LABEL = "test.gpuops.io/dead"  # on a node that no kubelet serves
STOPS_AFTER = "test.gpuops.io/stops-after"  # on a pod: how long it takes to end ("20s"), or "never"
GPU = "nvidia.com/gpu"
NOT_READY = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
Value = TypeVar("Value")


def wait_until(check: Callable[[], Value], what: str, timeout_seconds: float = 30) -> Value:
    """What `check` answers as soon as it is true."""
    deadline = time.monotonic() + timeout_seconds
    while not (value := check()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout_seconds} s: {what}")
        time.sleep(0.1)
    return value


class Objects:
    def __init__(self, api: Api) -> None:
        self.api = api

    # Nodes

    def make_node(self, name: str, **options: Any) -> str:
        """Makes one node, waits until work can go there, and returns its UID."""
        return self.make_nodes(name, **options)[name]

    def make_nodes(self, *names: str, gpus: int = 8, labels: Mapping[str, str] | None = None) -> dict[str, str]:
        room = {"cpu": "192", "memory": "2Ti", "pods": "110", **({GPU: str(gpus)} if gpus else {})}
        made = {}
        for name in names:
            metadata = {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}}
            node = self.api.create("Node", {"metadata": metadata, "status": {"capacity": room, "allocatable": room}})
            made[name] = str(node["metadata"]["uid"])
        wait_until(lambda: all(self.is_ready(name) for name in names), f"nodes {', '.join(names)} ready", 60)
        return made

    def node(self, name: str) -> Json:
        return self.api.get("Node", name)

    def is_ready(self, name: str) -> bool:
        node = self.node(name)
        conditions = {each["type"]: each["status"] for each in node["status"].get("conditions", [])}
        return conditions.get("Ready") == "True" and not any(taint.startswith(NOT_READY) for taint in _taints(node))

    def taints(self, name: str) -> list[str]:
        """As kubectl writes them: key=value:effect."""
        return _taints(self.node(name))

    def taint(self, name: str, key: str, value: str = "", effect: str = "NoSchedule") -> None:
        """Adds a taint as a careful other writer does."""
        self._change_taints(name, lambda taints: [*taints, {"key": key, "value": value, "effect": effect}])

    def untaint(self, name: str, key: str) -> None:
        self._change_taints(name, lambda taints: [taint for taint in taints if taint["key"] != key])

    def cordon(self, name: str, on: bool = True) -> None:
        self.api.patch("Node", name, {"spec": {"unschedulable": on or None}})

    def delete_node(self, name: str) -> None:
        self.api.delete("Node", name)

    def kill_node(self, name: str) -> None:
        """Its kubelet is gone: its pods stay as they are, whatever is asked of them, and the node is unreachable to Kubernetes."""
        self.api.patch("Node", name, {"metadata": {"labels": {DEAD_LABEL: "true"}}})
        # What the controller manager finds by itself after 50 s without a heartbeat.
        unknown = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": "Kubelet stopped posting node status."}
        self.api.patch("Node", name, {"status": {"conditions": [unknown]}}, subresource="status")
        wait_until(lambda: any("unreachable" in taint for taint in self.taints(name)), f"node {name} unreachable")

    def revive_node(self, name: str) -> None:
        self.api.patch("Node", name, {"metadata": {"labels": {DEAD_LABEL: None}}})
        wait_until(lambda: self.is_ready(name), f"node {name} back")

    # Devices of Dynamic Resource Allocation

    def device_class(self, driver: str = "gpu.nvidia.com") -> None:
        """With it and a claim template of its name, `pod_template(claim=...)` asks for one device of the driver."""
        expression = f"device.driver == '{driver}'"
        self.api.create("DeviceClass", {"metadata": {"name": driver}, "spec": {"selectors": [{"cel": {"expression": expression}}]}})
        request = {"name": "device", "exactly": {"deviceClassName": driver}}
        self.api.create("ResourceClaimTemplate", {"metadata": {"name": driver}, "spec": {"spec": {"devices": {"requests": [request]}}}})

    def publish(self, node: str, devices: Mapping[str, Mapping[str, str]], driver: str = "gpu.nvidia.com") -> None:
        """A driver's ResourceSlice: the attributes of each device by its name."""
        listed = [{"name": name, "attributes": {key: {"string": text} for key, text in each.items()}} for name, each in devices.items()]
        pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
        owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": self.node(node)["metadata"]["uid"]}
        metadata = {"name": f"{node}-{driver}", "ownerReferences": [owner]}
        self.api.create(
            "ResourceSlice", {"metadata": metadata, "spec": {"driver": driver, "nodeName": node, "pool": pool, "devices": listed}}
        )

    def devices_held(self) -> dict[str, tuple[str, str]]:
        """The pool and the device that each pod holds one of, by the pod's name."""
        held = {}
        for claim in self.api.list("ResourceClaim"):
            status = claim.get("status", {})
            for result in status.get("allocation", {}).get("devices", {}).get("results", []):
                held.update({user["name"]: (result["pool"], result["device"]) for user in status.get("reservedFor", [])})
        return held

    def taint_rules(self) -> list[Json]:
        return self.api.list("DeviceTaintRule")

    # Work

    def namespace(self, name: str) -> str:
        """Makes it, unless an earlier test did."""
        try:
            self.api.create("Namespace", {"metadata": {"name": name}})
        except ApiError as error:
            if error.status != 409:
                raise
        return name

    def deployment(self, name: str, replicas: int = 1, *, namespace: str = "default", wait: bool = True, **pod: Any) -> list[Json]:
        """`pod`: the options of `pod_template`. Returns its pods once they run."""
        spec = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": pod_template(name, **pod)}
        self.api.create("Deployment", {"metadata": {"name": name}, "spec": spec}, namespace)
        return self.wait_for_pods(name, replicas, namespace=namespace) if wait else []

    def daemonset(self, name: str, *, namespace: str = "default", nodes: int = 0, **pod: Any) -> list[Json]:
        """Runs on every node that matches; waits until it does on `nodes` of them."""
        spec = {"selector": {"matchLabels": {"app": name}}, "template": pod_template(name, **{"gpus": 0, **pod})}
        self.api.create("DaemonSet", {"metadata": {"name": name}, "spec": spec}, namespace)
        return self.wait_for_pods(name, nodes, namespace=namespace) if nodes else []

    def pod(self, name: str, *, namespace: str = "default", wait: bool = True, **pod: Any) -> Json:
        """A pod that no controller owns."""
        body = pod_template(name, **pod)
        body["metadata"]["name"] = name
        made = self.api.create("Pod", body, namespace)
        return self.wait_for_pods(name, 1, namespace=namespace)[0] if wait else made

    def pdb(
        self, app: str, *, namespace: str = "default", min_available: int | str | None = None, max_unavailable: int | str | None = None
    ) -> None:
        """A PodDisruptionBudget for the pods of `app`, in force on return."""
        limit = {"minAvailable": min_available, "maxUnavailable": max_unavailable}
        spec = {"selector": {"matchLabels": {"app": app}}, **{key: value for key, value in limit.items() if value is not None}}
        self.api.create("PodDisruptionBudget", {"metadata": {"name": app}, "spec": spec}, namespace)
        running = len(self.pods(app, namespace=namespace, phase="Running"))

        def in_force() -> bool:
            status = self.api.get("PodDisruptionBudget", app, namespace).get("status", {})
            return "observedGeneration" in status and status["currentHealthy"] >= running

        wait_until(in_force, f"PodDisruptionBudget {app} in force")

    def pods(self, app: str, *, namespace: str = "default", phase: str = "") -> list[Json]:
        found = self.api.list("Pod", namespace, labelSelector=f"app={app}")
        return [pod for pod in found if phase in ("", pod["status"]["phase"])]

    def pods_on(self, node: str) -> list[Json]:
        return self.api.list("Pod", fieldSelector=f"spec.nodeName={node}")

    def wait_for_pods(self, app: str, count: int, *, namespace: str = "default", timeout_seconds: float = 60) -> list[Json]:
        """Until exactly so many run; those that are being deleted do not count."""

        def running() -> list[Json]:
            found = [pod for pod in self.pods(app, namespace=namespace, phase="Running") if "deletionTimestamp" not in pod["metadata"]]
            return found if len(found) == count else []

        return wait_until(running, f"{count} pods of {app} running", timeout_seconds)

    def let_go(self, pod: Json) -> None:
        """Removes a pod that would never end by itself."""
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        if pod["metadata"].get("finalizers"):
            self.api.patch("Pod", name, {"metadata": {"finalizers": None}}, namespace)
        self.api.delete("Pod", name, namespace, gracePeriodSeconds="0")

    def delete_all(self) -> None:
        """Everything that a test made but namespaces, at once and by force: the next one finds an empty cluster."""
        spaces = [each["metadata"]["name"] for each in self.api.list("Namespace")]
        for space in spaces:
            if not space.startswith("kube-"):
                for kind in ("Deployment", "ReplicaSet", "DaemonSet", "PodDisruptionBudget", "Lease", "ResourceClaimTemplate"):
                    self.api.delete(kind, "", space, propagationPolicy="Background")
        for kind in ("Node", "DeviceTaintRule", "ResourceSlice", "DeviceClass"):
            self.api.delete(kind, "")

        def empty() -> bool:
            left = self.api.list("Pod")
            for pod in left:
                if pod["metadata"].get("finalizers"):
                    self.let_go(pod)
            for space in {pod["metadata"]["namespace"] for pod in left}:
                self.api.delete("Pod", "", space, gracePeriodSeconds="0")
            return not left

        wait_until(empty, "all pods gone")

    def _change_taints(self, name: str, change: Callable[[list[Json]], list[Json]]) -> None:
        while True:
            node = self.node(name)
            metadata = {"resourceVersion": node["metadata"]["resourceVersion"]}
            try:
                self.api.patch("Node", name, {"metadata": metadata, "spec": {"taints": change(node["spec"].get("taints", []))}})
                return
            except ApiError as error:
                if error.status != 409:
                    raise


def pod_template(
    app: str,
    *,
    gpus: int = 1,
    container_name: str = "main",
    claim: str = "",
    devices: Mapping[str, int] | None = None,
    environment: Mapping[str, str] | None = None,
    node: str | None = None,
    selector: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    stops_after: str | None = None,
    grace_seconds: int = 30,
    finalizers: Sequence[str] = (),
    tolerations: Sequence[Mapping[str, str]] = (),
) -> Json:
    """`node` pins the pod by selector: the scheduler still decides, and taints still count.

    `devices` stand in place of `gpus`; `claim` asks for a device by that ResourceClaimTemplate, in place of both.
    """
    stops = {STOPS_AFTER: stops_after} if stops_after else {}
    pinned = {"kubernetes.io/hostname": node} if node else {}
    container: Json = {"name": container_name, "image": "registry.example/inference:1"}
    wanted = {GPU: gpus} if devices is None else devices
    if claim:
        container["resources"] = {"claims": [{"name": "device"}]}
    elif any(wanted.values()):
        container["resources"] = {"limits": {name: str(count) for name, count in wanted.items()}}
    if environment:
        container["env"] = [{"name": name, "value": value} for name, value in environment.items()]
    return {
        "metadata": {
            "labels": {"app": app, **(labels or {})},
            "annotations": {**(annotations or {}), **stops},
            "finalizers": list(finalizers),
        },
        "spec": {
            "containers": [container],
            "nodeSelector": {**(selector or {}), **pinned},
            "terminationGracePeriodSeconds": grace_seconds,
            "tolerations": [dict(each) for each in tolerations],
            **({"resourceClaims": [{"name": "device", "resourceClaimTemplateName": claim}]} if claim else {}),
        },
    }


def _taints(node: Json) -> list[str]:
    return [f"{taint['key']}={taint.get('value', '')}:{taint['effect']}" for taint in node["spec"].get("taints", [])]
