# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The kubelets' node side: the pure half on made-up pods, the whole on the real control plane."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import gpusim
import grpc
import nvml_child
import pytest
from gpusim import instances, kubelet, pod_resources
from gpusim.node import Node
from gpusim.state import start_ticks

pytest_plugins = ["cluster.fixtures"]


def pod(
    uid: str = "0f5a-1", gpus: int = 1, node: str = "gpu-1", stops_after: str = "", resource: str = "nvidia.com/gpu", **changes: Any
) -> dict[str, Any]:
    body: dict[str, Any] = {
        "metadata": {"uid": uid, "name": f"pod-{uid}", "namespace": "default", "annotations": {kubelet.STOPS_AFTER: stops_after}},
        "spec": {
            "nodeName": node,
            "containers": [{"name": "main", "image": "registry.example/inference:1", "resources": {"limits": {resource: str(gpus)}}}],
        },
        "status": {"phase": "Running"},
    }
    body["metadata"].update(changes)
    return body


def plugin(uid: str = "plugin-1", strategy: str = "mixed") -> dict[str, Any]:
    body = pod(uid, gpus=0, labels={"app": "nvidia-device-plugin-daemonset"})
    body["spec"]["containers"][0].update(name="nvidia-device-plugin", env=[{"name": "MIG_STRATEGY", "value": strategy}])
    return body


def checkpoint(node: Node) -> list[tuple[str, str, str, list[str]]]:
    data = json.loads((node.path / kubelet.CHECKPOINT).read_text(encoding="utf-8"))["Data"]
    return [(one["PodUID"], one["ContainerName"], one["ResourceName"], one["DeviceIDs"]["0"]) for one in data["PodDeviceEntries"]]


def deleted(body: dict[str, Any]) -> dict[str, Any]:
    return {**body, "metadata": {**body["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}}


def sync(node: Node, *pods: dict[str, Any], claims: Iterable[dict[str, Any]] = ()) -> dict[str, Any]:
    list(kubelet.sync(node, pods, claims))
    found: dict[str, Any] = node.state()["pods"]
    return found


def ended(pid: int, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while start_ticks(pid) is not None and time.monotonic() < until:
        time.sleep(0.02)
    return start_ticks(pid) is None


def test_a_pod_with_a_claim_has_the_gpu_that_the_claim_was_given(node: Node) -> None:
    """And none before: which one it gets is the scheduler's to say."""
    body = pod(gpus=0)
    body["spec"]["resourceClaims"] = [{"name": "device", "resourceClaimTemplateName": "gpu.nvidia.com"}]
    assert sync(node, body) == {}
    results = [
        {"driver": "gpu.nvidia.com", "pool": "gpu-1", "device": "gpu-1"},
        {"driver": "nic.example.com", "pool": "gpu-1", "device": "nic-0"},
    ]
    status = {"allocation": {"devices": {"results": results}}, "reservedFor": [{"resource": "pods", "name": "pod", "uid": "0f5a-1"}]}
    assert sync(node, body, claims=[{"status": {}}, {"metadata": {"name": "gpu", "namespace": "default"}, "status": status}])["0f5a-1"][
        "gpus"
    ] == [1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", "normal"), ("20s", "late:20"), ("1m30s", "late:90"), ("300ms", "late:1"), ("never", "never"), ("soon", "normal")],
)
def test_how_a_pod_ends(text: str, expected: str) -> None:
    assert kubelet.ends(pod(stops_after=text)) == expected


def test_a_pod_has_a_process_with_its_gpus(node: Node) -> None:
    record = sync(node, pod(gpus=2), pod("elsewhere", node="gpu-9"), pod("cpu-only", gpus=0))
    assert list(record) == ["0f5a-1"] and record["0f5a-1"]["gpus"] == [0, 1]
    own = Path(f"/proc/{record['0f5a-1']['pid']}/cgroup").read_text(encoding="utf-8").splitlines()[-1]
    head, _slash, scope = own.rpartition("/")
    assert head.endswith("/gpu-1/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0f5a_1.slice")
    assert scope.startswith("cri-containerd-") and scope.endswith(".scope") and len(scope) == len("cri-containerd-.scope") + 64
    assert nvml_child.ask(node.nvml_library, "result = [p.pid for p in n.nvmlDeviceGetComputeRunningProcesses(gpu(1))]") == [
        record["0f5a-1"]["pid"]
    ]
    before = node.state()["pods"]
    assert sync(node, pod(gpus=2)) == before, "again changes nothing"


def test_gpus_are_handed_out_once(node: Node) -> None:
    records = sync(node, pod("a"), pod("b"), pod("c"))
    assert [records[uid]["gpus"] for uid in records] == [[0], [1]]
    lines = list(kubelet.sync(node, [pod("a"), pod("b"), pod("c")]))
    assert lines == ["pod-c: waits, 0 of 1 nvidia.com/gpu are free on gpu-1"]
    assert sync(node, deleted(pod("a")), pod("b"), pod("c"))  # told to end
    assert ended(records["a"]["pid"], 5)
    assert sync(node, pod("b"), pod("c"))["c"]["gpus"] == [0]


def test_a_gpu_in_mig_mode_is_not_handed_out_whole(node: Node) -> None:
    instances.set_mode(node, 0, True)
    assert sync(node, pod(gpus=1))["0f5a-1"]["gpus"] == [1]


def test_a_pod_keeps_its_gpu_over_a_reboot(node: Node) -> None:
    one, two = pod("one"), pod("two")
    record = sync(node, one, two)["two"]
    sync(node, two)
    node.reboot()
    assert sync(node, two)["two"]["devices"] == record["devices"], "also while another GPU is free"


def test_a_killed_process_is_not_started_again_but_after_a_reboot_it_is(node: Node) -> None:
    first = sync(node, pod())["0f5a-1"]["pid"]
    os.kill(first, signal.SIGKILL)
    assert ended(first, 5) and sync(node, pod())["0f5a-1"]["pid"] == first
    node.reboot()
    assert sync(node, pod())["0f5a-1"]["pid"] != first


def test_a_pod_gets_a_mig_device_of_those_that_the_plugin_saw(node: Node) -> None:
    """And goes on getting them from the old layout until the plugin's pod is another one, as on a real node."""
    wanted = "nvidia.com/mig-1g.18gb"
    assert sync(node, plugin(), pod(resource=wanted)) == {}, "there is none yet"
    instances.set_mode(node, 0, True)
    gi = instances.create(node, 0, "1g.18gb")
    assert sync(node, plugin(), pod(resource=wanted)) == {}, "the plugin has not looked again"
    record = sync(node, plugin("plugin-2"), pod(resource=wanted))["0f5a-1"]
    [mig_uuid] = record["devices"][wanted]
    assert checkpoint(node) == [("0f5a-1", "main", wanted, [mig_uuid])]
    [process] = node.state()["processes"]
    assert (process["gpus"], process["gi"], process["ci"]) == ([0], gi, 0)
    assert (
        nvml_child.ask(node.nvml_library, "result = gpu(0) and n.nvmlDeviceGetUUID(n.nvmlDeviceGetMigDeviceHandleByIndex(gpu(0), 0))")
        == mig_uuid
    )
    waits = pod("two", resource=wanted)
    assert list(kubelet.sync(node, [plugin("plugin-2"), pod(resource=wanted), waits])) == [
        f"pod-two: waits, 0 of 1 {wanted} are free on gpu-1"
    ]
    assert sync(node, plugin("plugin-2")) == {} and checkpoint(node) == []


def test_a_pod_may_have_a_device_and_leave_it_idle(node: Node) -> None:
    idle = pod()
    idle["metadata"]["annotations"][kubelet.IDLE] = "true"
    record = sync(node, idle)["0f5a-1"]
    assert node.state()["processes"] == [] and checkpoint(node)[0][3] == [node.state()["gpus"][record["gpus"][0]]["uuid"]]
    assert sync(node, deleted(idle)) and sync(node) == {}


@pytest.mark.parametrize(
    ("strategy", "resources"),
    [
        ("mixed", {"nvidia.com/gpu": "1", "nvidia.com/mig-1g.18gb.me": "1", "nvidia.com/mig-3g.71gb": "1"}),
        ("single", {}),  # not all of a kind: the plugin does not start
        ("none", {"nvidia.com/gpu": "2"}),
    ],
)
def test_what_the_plugin_advertises(node: Node, strategy: str, resources: dict[str, str]) -> None:
    instances.set_mode(node, 0, True)
    instances.create(node, 0, "1g.18gb+me", 0)
    instances.create(node, 0, "1g.18gb", 1, ())
    instances.create(node, 0, "3g.71gb", 4)
    assert kubelet.status(node.state()) is None, "no plugin, no word of ours"
    sync(node, plugin(strategy=strategy))
    assert kubelet.status(node.state()) == {"allocatable": {"nvidia.com/gpu": "0", **resources}, "capacity": resources}
    sync(node)
    gone = {"allocatable": dict.fromkeys({"nvidia.com/gpu", *resources}, "0"), "capacity": {}}
    assert kubelet.status(node.state()) == gone, "what there was keeps its capacity"


@pytest.mark.parametrize("compute", [None, (), ("1c", "1c")])
@pytest.mark.parametrize("strategy", ["mixed", "single"])
def test_what_the_plugin_ends_by(node: Node, strategy: str, compute: tuple[str, ...] | None) -> None:
    """A GPU with MIG on and no MIG device; with `mixed` also a part of a GPU instance. It takes the whole GPU beside it along."""
    instances.set_mode(node, 0, True)
    if compute is not None:
        instances.create(node, 0, "2g.35gb", 2, compute)
    if strategy == "mixed":
        instances.set_mode(node, 1, False)
    elif compute:
        instances.set_mode(node, 1, True)
        instances.create(node, 1, "2g.35gb", 2, compute)
    sync(node, plugin(strategy=strategy))
    starts = strategy == "single" and bool(compute)
    resources = {"nvidia.com/gpu": "4"} if starts else {}
    assert kubelet.status(node.state()) == {"allocatable": {"nvidia.com/gpu": "0", **resources}, "capacity": resources}


def test_single(node: Node) -> None:
    for index in (0, 1):
        instances.set_mode(node, index, True)
        instances.create(node, index, "3g.71gb", 4)
    sync(node, plugin(strategy="single"), pod(gpus=2))
    assert kubelet.status(node.state()) == {"allocatable": {"nvidia.com/gpu": "2"}, "capacity": {"nvidia.com/gpu": "2"}}
    assert len(checkpoint(node)[0][3]) == 2


@pytest.mark.parametrize("stops_after", ["", "2s", "never"])
def test_ends_as_the_annotation_says(node: Node, stops_after: str) -> None:
    body = pod(stops_after=stops_after)
    pid = sync(node, body)["0f5a-1"]["pid"]
    sync(node, deleted(body))
    sync(node, deleted(body))
    assert ended(pid, 0.5) is (stops_after == "")
    assert ended(pid, 3) is (stops_after != "never")
    assert bool(sync(node)) is (stops_after == "never"), "a pod that the API forgot keeps its GPU while its process is there"
    kubelet.stop(node)
    assert start_ticks(pid) is None and node.state()["pods"] == {}


def test_a_pod_removed_by_force_takes_its_process_along(node: Node) -> None:
    pid = sync(node, pod(stops_after="1h"))["0f5a-1"]["pid"]
    assert sync(node) == {} and start_ticks(pid) is None


@pytest.fixture
def serving(cluster: Any, node: Node) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "gpusim", "--root", str(node.root), "kubelet", "--kubeconfig", str(cluster.admin_kubeconfig)]
    child = subprocess.Popen(command, cwd=Path(gpusim.__file__).parents[1], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        while "ready" not in (line := child.stdout.readline()):
            assert line, "the kubelet ended"
        yield child
    finally:
        child.terminate()
        child.wait(20)


@pytest.fixture
def server(node: Node) -> Iterator[pod_resources.Server]:
    made = pod_resources.Server(node)
    made.sync()
    yield made
    made.stop()


def ask(node: Node, method: str, request: str, answer: str, seconds: float = 5) -> Any:
    """By gRPC's own client."""
    classes = pod_resources.messages()
    folder = os.open(node.path / "var/lib/kubelet/pod-resources", os.O_PATH)
    try:
        with grpc.insecure_channel(f"unix:/proc/self/fd/{folder}/kubelet.sock") as channel:
            call = channel.unary_unary(
                f"/v1.PodResourcesLister/{method}",
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=classes[answer].FromString,
            )
            return call(classes[request](), timeout=seconds)
    finally:
        os.close(folder)


def test_the_api_tells_who_has_what(node: Node, server: pod_resources.Server) -> None:
    claim = {"driver": "gpu.nvidia.com", "pool": "gpu-1", "device": "gpu-1"}
    status = {"allocation": {"devices": {"results": [claim]}}, "reservedFor": [{"resource": "pods", "uid": "claims"}]}
    by_claim = pod("claims", gpus=0)
    by_claim["spec"]["resourceClaims"] = [{"name": "gpu"}]
    record = sync(node, plugin(), pod(), by_claim, claims=[{"metadata": {"name": "one", "namespace": "default"}, "status": status}])
    told = ask(node, "List", "ListPodResourcesRequest", "ListPodResourcesResponse")
    assert {one.name: [list(each.device_ids) for each in one.containers[0].devices] for one in told.pod_resources} == {
        "pod-0f5a-1": [record["0f5a-1"]["devices"]["nvidia.com/gpu"]],
        "pod-claims": [],
    }
    [dynamic] = next(one for one in told.pod_resources if one.name == "pod-claims").containers[0].dynamic_resources
    assert (dynamic.claim_name, dynamic.claim_resources[0].device_name) == ("one", "gpu-1")
    registered = ask(node, "GetAllocatableResources", "AllocatableResourcesRequest", "AllocatableResourcesResponse")
    assert [list(one.device_ids) for one in registered.devices] == [[gpu["uuid"]] for gpu in node.state()["gpus"]]


@pytest.mark.parametrize(("how", "code"), [("hangs", grpc.StatusCode.DEADLINE_EXCEEDED), ("unimplemented", grpc.StatusCode.UNIMPLEMENTED)])
def test_the_api_fails(node: Node, server: pod_resources.Server, how: str, code: grpc.StatusCode) -> None:
    node.pod_resources(how)
    with pytest.raises(grpc.RpcError) as caught:
        ask(node, "List", "ListPodResourcesRequest", "ListPodResourcesResponse", seconds=1)
    assert caught.value.code() is code
    node.clear()
    assert len(ask(node, "List", "ListPodResourcesRequest", "ListPodResourcesResponse").pod_resources) == 0


def test_the_api_is_absent(node: Node, server: pod_resources.Server) -> None:
    socket = node.path / pod_resources.SOCKET
    assert socket.is_socket()
    node.pod_resources("absent")
    server.sync()
    assert not socket.exists()


def wait_for_pids(node: Node, count: int, seconds: float = 10) -> list[int]:
    body = "result = sorted(p.pid for i in range(2) for p in n.nvmlDeviceGetComputeRunningProcesses(gpu(i)))"
    until = time.monotonic() + seconds
    while len(pids := nvml_child.ask(node.nvml_library, body)) != count and time.monotonic() < until:
        time.sleep(0.1)
    assert len(pids) == count
    return list(pids)


def test_pods_of_a_real_control_plane(cluster: Any, node: Node, serving: subprocess.Popen[str]) -> None:
    cluster.objects.make_node("gpu-1", gpus=2)
    cluster.objects.pod("quick", gpus=1)
    cluster.objects.pod("stuck", gpus=1, stops_after="never", grace_seconds=1)
    pids = wait_for_pids(node, 2)
    quick, stuck = (next(r["pid"] for r in node.state()["pods"].values() if r["name"] == name) for name in ("quick", "stuck"))
    assert pids == sorted([quick, stuck])
    for name in ("quick", "stuck"):
        cluster.admin.delete("Pod", name, "default")
    assert wait_for_pids(node, 1) == [stuck]
    cluster["kube-apiserver"].pause()
    try:
        time.sleep(1)
        assert serving.poll() is None
    finally:
        cluster["kube-apiserver"].resume()
    serving.terminate()
    assert serving.wait(20) == 0
    assert start_ticks(stuck) is None and not node.cgroups.joinpath("kubepods.slice").exists(), "it leaves nothing behind"
