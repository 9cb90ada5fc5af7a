# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The node side of a kubelet: a real process for every GPU pod that is bound to a simulated node.

What the API server is told of nodes and pods (Ready, Running, gone) is kwok's part; both read the same annotation on how a pod ends.
A process that is killed is not started again while its pod lives, unless the node reboots.

Who has which GPU or MIG device is kept in the kubelet's checkpoint file, and told by its PodResources API. Where the device plugin has a pod
on the node, its resources are in the node's status: of a plugin that is gone none can be allocated, and what it no longer advertises keeps its
capacity, as for five minutes with a real one.
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

from . import device_plugin, dra, pod_resources
from .node import MIB, Node, SimulatorError, nodes
from .state import is_alive

STOPS_AFTER = "test.gpuops.io/stops-after"  # of a pod: a duration ("20s"), or "never"
IDLE = "test.gpuops.io/idle"  # of a pod, "true": it has its devices, and no process on them
CHECKPOINT = "var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"
POD_MEMORY = 8192 * MIB  # on each of its GPUs
WATCH_SECONDS = 5  # how soon a node that was created or rebooted meanwhile is seen
UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600}
Pod = Mapping[str, Any]  # as the API's JSON


def devices_wanted(pod: Pod) -> dict[str, int]:
    """How many by resource, of all its containers; they are kept as those of the first."""
    wanted: dict[str, int] = {}
    for container in pod["spec"]["containers"]:
        for resource, count in ((container.get("resources") or {}).get("limits") or {}).items():
            if resource.startswith(device_plugin.PREFIX) and int(count):
                wanted[resource] = wanted.get(resource, 0) + int(count)
    return wanted


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
    """Make the node's processes those of its pods, on the devices that their claims were given or, without claims, on free ones; tells what it did."""
    pods = list(pods)
    yield from _plugin(node, device_plugin.pod_on(node.name, pods))
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
        if uid not in known and starts and (devices_wanted(pod) or pod["spec"].get("resourceClaims")):
            yield _start(node, uid, pod, dra.held(pod, claims))
    _write_checkpoint(node)


def _plugin(node: Node, pod: Pod | None) -> Iterator[str]:
    """A pod that was not there before looks at the GPUs; one that runs on knows what it saw."""
    state = node.state()
    known = state["device_plugin"]
    uid = pod["metadata"]["uid"] if pod else None
    if (known["pod"] if known else None) == uid:
        return
    resources = device_plugin.devices(state, device_plugin.strategy(pod)) if pod else {}
    ever = {device_plugin.GPU_RESOURCE, *(known["ever"] if known else ()), *resources}
    with node.change() as state:
        state["device_plugin"] = {"pod": uid, "resources": resources, "ever": sorted(ever)}
    told = ", ".join(f"{len(found)} {name}" for name, found in resources.items())
    yield f"{node.name}: the device plugin {'advertises ' + (told or 'nothing') if pod else 'is gone'}"


def status(state: Mapping[str, Any]) -> dict[str, dict[str, str | None]] | None:
    """What the node's status says of the plugin's resources; None where there has been none."""
    plugin = state["device_plugin"]
    if plugin is None:
        return None
    allocatable = {name: str(len(plugin["resources"].get(name, ()))) for name in plugin["ever"]}
    return {"allocatable": dict(allocatable), "capacity": {name: allocatable[name] for name in plugin["resources"]}}


def _write_checkpoint(node: Node) -> None:
    """As the kubelet's device manager keeps it. Its checksum is not ours to make."""
    state = node.state()
    entries = [
        {"PodUID": uid, "ContainerName": record["container"], "ResourceName": resource, "DeviceIDs": {"0": devices}, "AllocResp": ""}
        for uid, record in state["pods"].items()
        for resource, devices in record["devices"].items()
    ]
    registered = (state["device_plugin"] or {"resources": {}})["resources"]
    text = json.dumps({"Data": {"PodDeviceEntries": entries, "RegisteredDevices": registered}, "Checksum": 0})
    file = node.path / CHECKPOINT
    if not file.exists() or file.read_text(encoding="utf-8") != text:
        file.parent.mkdir(parents=True, exist_ok=True)
        whole = file.with_suffix(".new")
        whole.write_text(text, encoding="utf-8")
        whole.replace(file)


def _pod_is_gone(node: Node, uid: str, record: dict[str, Any]) -> Iterator[str]:
    alive = any(entry["pid"] == record["pid"] and is_alive(entry) for entry in node.state()["processes"])
    if alive and record["ends"] == "never":
        return  # the API has forgotten it, the GPU has not
    if alive:
        node.exit(record["pid"])
    _remember(node, uid, None)
    yield f"{record['name']}: pod and process {record['pid']} are gone"


def _start(node: Node, uid: str, pod: Pod, claims: list[dict[str, Any]]) -> str:
    claimed = dra.claimed_gpus(claims)
    name, container = pod["metadata"]["name"], pod["spec"]["containers"][0]["name"]
    state = node.state()
    given: dict[str, list[str]] = {}
    if pod["spec"].get("resourceClaims"):
        whole = [gpu["index"] for gpu in state["gpus"] if not gpu["lost"] and not gpu["mig"]["current"]]
        gpus, gi, ci = [index for index in claimed if index in whole], None, None
        if not gpus or len(gpus) < len(claimed):
            return f"{name}: waits, {len(gpus)} of the {len(claimed)} GPUs of its claims are there on {node.name}"
    else:
        for resource, wanted in devices_wanted(pod).items():
            before = state["given"].get(uid, {}).get(resource, ())
            free = sorted(_free(state, resource), key=lambda one: one not in before)[:wanted]
            if len(free) < wanted:
                return f"{name}: waits, {len(free)} of {wanted} {resource} are free on {node.name}"
            given[resource] = free
        gpus, gi, ci = _where(state, [one for devices in given.values() for one in devices])
    pid = 0  # no process has that
    if (pod["metadata"].get("annotations") or {}).get(IDLE) != "true":
        pid = node.start(gpus, program(pod), POD_MEMORY, cgroup(uid, container), ends(pod), pod=uid, gi=gi, ci=ci)
    _remember(node, uid, {
        "namespace": pod["metadata"]["namespace"], "name": name, "container": container, "devices": given, "claims": claims, "gpus": gpus,
        "pid": pid, "ends": ends(pod), "terminated": False,
    })  # fmt: skip
    told = f"process {pid}" if pid else "no process"
    return f"{name}: {told} on GPU {', '.join(map(str, gpus))}{'' if gi is None else f', instance {gi}'} of {node.name}"


def _free(state: Mapping[str, Any], resource: str) -> list[str]:
    """What the plugin advertises and nobody has. Without a plugin, whole GPUs."""
    taken = {one for record in state["pods"].values() for devices in record["devices"].values() for one in devices}
    known = (state["device_plugin"] or {"resources": device_plugin.look(state, "mixed")[0]})["resources"]
    lost = {gpu["uuid"] for gpu in state["gpus"] if gpu["lost"]}
    return [one for one in known.get(resource, ()) if one not in taken | lost]


def _where(state: Mapping[str, Any], devices: list[str]) -> tuple[list[int], int | None, int | None]:
    """GPUs, or the one compute instance that a process works in, which of several MIG devices is the first."""
    for gpu in state["gpus"]:
        for instance in gpu["mig"]["instances"]:
            for compute in instance["compute"]:
                if compute["uuid"] == devices[0]:
                    return [gpu["index"]], instance["id"], compute["id"]
    gpus = [gpu["index"] for gpu in state["gpus"] if gpu["uuid"] in devices]
    if len(gpus) < len(devices):
        raise SimulatorError(f"no device {', '.join(devices)}: what the device plugin advertises is not there any more")
    return gpus, None, None


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

    def __init__(self, root: Path, cache: Path, kubeconfig: Path, context: str | None, slices: bool) -> None:
        from kubernetes import client, config

        self.root, self.cache = root, cache
        connection = config.new_client_from_config(str(kubeconfig), context=context)
        self.api, self.custom = client.CoreV1Api(connection), client.CustomObjectsApi(connection)
        self.slices = slices
        self.sliced: set[str] = set()  # uids of nodes
        self.claims: list[Pod] = []
        self.pods: dict[str, Pod] = {}
        self.said: set[str] = set()
        self.published: dict[str, Any] = {}  # of each node's status
        self.servers: dict[Path, pod_resources.Server] = {}

    def sync(self) -> None:
        if any(pod["spec"].get("resourceClaims") for pod in self.pods.values()):
            self.claims = self.custom.list_cluster_custom_object(dra.GROUP, dra.VERSION, "resourceclaims")["items"]
        for node in nodes(self.root, self.cache):
            try:
                if self.slices:
                    self._publish_slice(node)
                for line in sync(node, list(self.pods.values()), self.claims):
                    self._say(line)
                self._publish(node)
                if node.path not in self.servers:
                    self.servers[node.path] = pod_resources.Server(node)
                self.servers[node.path].sync()
            except (SimulatorError, RuntimeError, OSError) as error:  # one broken or vanished node must not stop the others
                self._say(f"{node.name}: {error}")

    def _publish(self, node: Node) -> None:
        """What the device plugin advertises, where it has changed."""
        told = status(node.state())
        if told and self.published.get(node.name) != told:
            self.api.patch_node_status(node.name, {"status": told})
            self.published[node.name] = told

    def _publish_slice(self, node: Node) -> None:
        """Once for each object that a node has been to the API server."""
        from kubernetes.client.exceptions import ApiException

        try:
            uid = str(self.api.read_node(node.name).metadata.uid)
            if uid not in self.sliced:
                self.custom.create_cluster_custom_object(dra.GROUP, dra.VERSION, "resourceslices", dra.resource_slice(node, uid))
        except ApiException as error:
            if error.status not in (404, 409):  # no node there; published by an earlier kubelet
                raise
        else:
            self.sliced.add(uid)

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


def serve(root: Path, cache: Path, kubeconfig: Path, context: str | None = None, slices: bool = False) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    kubelet = Kubelet(root, cache, kubeconfig, context, slices)
    try:
        kubelet.run()
    finally:
        for server in kubelet.servers.values():
            server.stop()
        for node in nodes(root, cache):
            stop(node)
