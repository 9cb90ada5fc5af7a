# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The node side of a kubelet: a real process for every GPU pod that is bound to a simulated node.

What the API server is told (nodes Ready, pods Running, pods gone) is kwok's part; both read the same annotation on how a pod ends.
A process that is killed is not started again while its pod lives, unless the node reboots.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import re
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from . import dra
from .node import MIB, Node, SimulatorError, nodes
from .state import is_alive

GPU_RESOURCE = "nvidia.com/gpu"
STOPS_AFTER = "test.gpuops.io/stops-after"  # of a pod: a duration ("20s"), or "never"
POD_MEMORY = 8192 * MIB  # on each of its GPUs
WATCH_SECONDS = 5  # how soon a node that was created or rebooted meanwhile is seen
UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600}
Pod = Mapping[str, Any]  # as the API's JSON


def gpus_wanted(pod: Pod) -> int:
    limits = [(container.get("resources") or {}).get("limits") or {} for container in pod["spec"]["containers"]]
    return sum(int(limit.get(GPU_RESOURCE, 0)) for limit in limits)


def ends(pod: Pod) -> str:
    """What the pod's annotation says, as a holder wants it."""
    text: str = (pod["metadata"].get("annotations") or {}).get(STOPS_AFTER, "")
    if text == "never":
        return text
    seconds = math.ceil(sum(float(number) * UNITS[unit] for number, unit in re.findall(r"([\d.]+)(ms|s|m|h)", text)))
    return f"late:{seconds}" if seconds else "normal"


def cgroup(uid: str, container: str) -> str:
    """As systemd and containerd name it."""
    identity = hashlib.sha256(f"{uid}/{container}".encode()).hexdigest()
    pod = f"kubepods-burstable-pod{uid.replace('-', '_')}.slice"
    return f"kubepods.slice/kubepods-burstable.slice/{pod}/cri-containerd-{identity}.scope"


def program(pod: Pod) -> str:
    """The image's own name stands for what runs in it."""
    image: str = pod["spec"]["containers"][0].get("image", "")
    return re.sub(r"[^\w.-]", "_", image.rpartition("/")[2].partition(":")[0]) or "main"


def sync(node: Node, pods: Iterable[Pod], claims: Iterable[Pod] = ()) -> Iterator[str]:
    """Make the node's processes those of its pods, on the GPUs that their claims were given or, without claims, on free ones; tells what it did."""
    bound = {pod["metadata"]["uid"]: pod for pod in pods if pod["spec"].get("nodeName") == node.name}
    known: dict[str, Any] = node.state()["pods"]
    for uid, record in known.items():
        pod = bound.get(uid)
        if pod is None:
            yield from _pod_is_gone(node, uid, record)
        elif pod["metadata"].get("deletionTimestamp") and not record["terminated"]:
            with contextlib.suppress(SimulatorError):  # it may have died before
                node.terminate(record["pid"])
            _remember(node, uid, {**record, "terminated": True})
            yield f"{record['name']}: process {record['pid']} told to end"
    for uid, pod in bound.items():
        starts = pod["status"].get("phase", "Pending") in ("Pending", "Running") and not pod["metadata"].get("deletionTimestamp")
        if uid not in known and starts and (gpus_wanted(pod) or pod["spec"].get("resourceClaims")):
            yield _start(node, uid, pod, dra.claimed_gpus(pod, claims))


def _pod_is_gone(node: Node, uid: str, record: dict[str, Any]) -> Iterator[str]:
    alive = any(entry["pid"] == record["pid"] and is_alive(entry) for entry in node.state()["processes"])
    if alive and record["ends"] == "never":
        return  # the API has forgotten it, the GPU has not
    if alive:
        node.exit(record["pid"])
    _remember(node, uid, None)
    yield f"{record['name']}: pod and process {record['pid']} are gone"


def _start(node: Node, uid: str, pod: Pod, claimed: list[int]) -> str:
    name, wanted, container = pod["metadata"]["name"], gpus_wanted(pod), pod["spec"]["containers"][0]["name"]
    state = node.state()
    taken = {index for entry in state["processes"] if entry["pod"] and is_alive(entry) for index in entry["gpus"]}
    whole = [gpu["index"] for gpu in state["gpus"] if not gpu["lost"] and not gpu["mig"]["current"]]
    free = [index for index in whole if index not in taken][:wanted]
    if pod["spec"].get("resourceClaims"):
        free, wanted = [index for index in claimed if index in whole], max(1, len(claimed))  # several pods may share a claim
    if len(free) < wanted:
        return f"{name}: waits, {len(free)} of {wanted} GPUs are free on {node.name}"
    pid = node.start(free, program(pod), POD_MEMORY, cgroup(uid, container), ends(pod), pod=uid)
    _remember(node, uid, {
        "namespace": pod["metadata"]["namespace"], "name": name, "gpus": free, "pid": pid, "ends": ends(pod), "terminated": False,
    })  # fmt: skip
    return f"{name}: process {pid} on GPU {', '.join(map(str, free))} of {node.name}"


def _remember(node: Node, uid: str, record: dict[str, Any] | None) -> None:
    with node.change() as state:
        if record is None:
            state["pods"].pop(uid, None)
        else:
            state["pods"][uid] = record


def stop(node: Node) -> None:
    """End all pods' processes, whatever they were told about ending."""
    for uid, record in node.state()["pods"].items():
        with contextlib.suppress(SimulatorError):
            node.exit(record["pid"])
        _remember(node, uid, None)


class Kubelet:
    """The pods of the cluster as a watch tells them, and the nodes below a root that play them."""

    def __init__(self, root: Path, cache: Path, kubeconfig: Path, context: str | None, publish: bool) -> None:
        from kubernetes import client, config

        self.root, self.cache = root, cache
        connection = config.new_client_from_config(str(kubeconfig), context=context)
        self.api, self.custom = client.CoreV1Api(connection), client.CustomObjectsApi(connection)
        self.publish = publish
        self.published: set[str] = set()
        self.claims: list[Pod] = []
        self.pods: dict[str, Pod] = {}
        self.said: set[str] = set()

    def sync(self) -> None:
        if any(pod["spec"].get("resourceClaims") for pod in self.pods.values()):
            self.claims = self.custom.list_cluster_custom_object(dra.GROUP, dra.VERSION, "resourceclaims")["items"]
        for node in nodes(self.root, self.cache):
            try:
                if self.publish:
                    self._publish(node)
                for line in sync(node, list(self.pods.values()), self.claims):
                    self._say(line)
            except (SimulatorError, RuntimeError, OSError) as error:  # one broken or vanished node must not stop the others
                self._say(f"{node.name}: {error}")

    def _publish(self, node: Node) -> None:
        """Once for each object that a node has been to the API server."""
        from kubernetes.client.exceptions import ApiException

        try:
            uid = str(self.api.read_node(node.name).metadata.uid)
            if uid not in self.published:
                self.custom.create_cluster_custom_object(dra.GROUP, dra.VERSION, "resourceslices", dra.resource_slice(node, uid))
        except ApiException as error:
            if error.status not in (404, 409):  # no node there; published by an earlier kubelet
                raise
        else:
            self.published.add(uid)

    def _say(self, line: str) -> None:
        if line not in self.said:  # who waits is told about once
            print(f"gpusim kubelet: {line}", flush=True)
        self.said.add(line)

    def relist(self) -> str:
        answer: Any = self.api.list_pod_for_all_namespaces(_preload_content=False, _request_timeout=WATCH_SECONDS)
        answer = json.loads(answer.data)
        self.pods = {pod["metadata"]["uid"]: pod for pod in answer["items"]}
        version: str = answer["metadata"]["resourceVersion"]
        return version

    def watch(self, version: str) -> str:
        """Follow the pods for a while; returns where to go on."""
        from kubernetes import watch

        stream = watch.Watch()
        for event in stream.stream(
            self.api.list_pod_for_all_namespaces,
            resource_version=version, timeout_seconds=WATCH_SECONDS, _request_timeout=2 * WATCH_SECONDS, allow_watch_bookmarks=True,
        ):  # fmt: skip
            pod = event["raw_object"]
            version = pod["metadata"]["resourceVersion"]
            if event["type"] == "DELETED":
                self.pods.pop(pod["metadata"]["uid"], None)
            elif event["type"] in ("ADDED", "MODIFIED"):
                self.pods[pod["metadata"]["uid"]] = pod
            if event["type"] != "BOOKMARK":
                self.sync()
        return version

    def run(self) -> None:
        from kubernetes.client.exceptions import ApiException
        from urllib3.exceptions import HTTPError

        version = ""
        while True:
            try:
                version = self.watch(version) if version else self.relist()
                self.sync()
                self._say("ready")
            except (ApiException, HTTPError, OSError, ValueError) as error:  # the API server may be away; pods run on meanwhile
                print(f"gpusim kubelet: {error}".strip().splitlines()[0], file=sys.stderr, flush=True)
                version = ""
                time.sleep(1)


def serve(root: Path, cache: Path, kubeconfig: Path, context: str | None = None, publish: bool = False) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    kubelet = Kubelet(root, cache, kubeconfig, context, publish)
    try:
        kubelet.run()
    finally:
        for node in nodes(root, cache):
            stop(node)
