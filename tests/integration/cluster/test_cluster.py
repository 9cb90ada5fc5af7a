# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The test cluster is a real one: what it schedules, refuses, ends and writes down."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from cluster import ACCOUNT, Cluster, audit
from cluster.api import Api, ApiError, path
from cluster.objects import wait_until
from cluster.processes import start_ticks
from cluster.programs import PROGRAMS


def evict(api: Api, pod: dict, **options) -> None:
    name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
    api.request("POST", path("Pod", name, namespace) + "/eviction", {"metadata": {"name": name}, "deleteOptions": options})


def test_it_is_the_pinned_release(cluster):
    pinned = PROGRAMS["kube-apiserver"].version.rpartition(".")[0]
    assert cluster.admin.request("GET", "/version")["gitVersion"].startswith(f"v{pinned}.")
    served = cluster.admin.request("GET", "/apis/resource.k8s.io/v1beta2")["resources"]
    assert "devicetaintrules" in {resource["name"] for resource in served}


def test_gpus_are_scheduled_and_counted(cluster):
    cluster.objects.make_nodes("gpu-0", "gpu-1", gpus=4)
    cluster.objects.deployment("infer", 2, gpus=4)
    assert {pod["spec"]["nodeName"] for pod in cluster.objects.pods("infer")} == {"gpu-0", "gpu-1"}

    cluster.objects.pod("late", gpus=1, wait=False)
    [condition] = wait_until(lambda: cluster.objects.pods("late")[0]["status"].get("conditions"), "the scheduler's word")
    assert condition["reason"] == "Unschedulable" and "Insufficient nvidia.com/gpu" in condition["message"]


def test_a_taint_keeps_new_pods_away_and_a_daemonset_stays(cluster):
    cluster.objects.make_nodes("gpu-0", "gpu-1")
    cluster.objects.daemonset("exporter", nodes=2)
    cluster.objects.taint("gpu-0", "gpu.unhealthy", "true")
    assert {pod["spec"]["nodeName"] for pod in cluster.objects.deployment("infer", 3)} == {"gpu-1"}
    assert [pod["metadata"]["labels"]["app"] for pod in cluster.objects.pods_on("gpu-0")] == ["exporter"]
    cluster.objects.untaint("gpu-0", "gpu.unhealthy")
    assert cluster.objects.taints("gpu-0") == []


def test_pods_end_at_once_late_or_never(cluster):
    cluster.objects.make_node("gpu-0")
    makes = {
        "soon": {},
        "late": {"stops_after": "2s"},
        "never": {"stops_after": "never"},
        "held": {"finalizers": ["test.gpuops.io/hold"]},
    }
    for name, options in makes.items():
        cluster.objects.pod(name, **options)
    me, begun = Api(cluster.kubeconfig), time.monotonic()
    for name in makes:
        evict(me, cluster.admin.get("Pod", name))
    ended = {}
    while "late" not in ended and time.monotonic() < begun + 20:
        left = {pod["metadata"]["name"] for pod in cluster.objects.pods_on("gpu-0")}
        ended.update({name: time.monotonic() - begun for name in makes.keys() - left - ended.keys()})
        time.sleep(0.05)
    assert ended.keys() == {"soon", "late"}
    assert ended["soon"] < ended["late"] and ended["late"] >= 2


def test_a_budget_refuses_an_eviction(cluster):
    cluster.objects.make_node("gpu-0")
    pods = cluster.objects.deployment("infer", 2)
    cluster.objects.pdb("infer", min_available=2)
    with pytest.raises(ApiError, match="DisruptionBudget") as refused:
        evict(Api(cluster.kubeconfig), pods[0])
    assert refused.value.status == 429
    assert len(cluster.objects.wait_for_pods("infer", 2)) == 2


def test_a_dead_node_keeps_its_pods_until_it_is_back(cluster):
    cluster.objects.make_nodes("gpu-0", "gpu-1")
    pod = cluster.objects.pod("infer", node="gpu-0")
    cluster.objects.kill_node("gpu-0")
    evict(Api(cluster.kubeconfig), pod)
    cluster.objects.pod("probe", node="gpu-1")  # the other kubelet has worked meanwhile
    evict(Api(cluster.kubeconfig), cluster.admin.get("Pod", "probe"))
    wait_until(lambda: not cluster.objects.pods("probe"), "the pod of the living node gone")
    assert cluster.objects.pods("infer")
    cluster.objects.revive_node("gpu-0")
    wait_until(lambda: not cluster.objects.pods("infer"), "the pod of the node that came back gone")


def test_the_audit_log_says_who_asked_for_what(cluster):
    cluster.objects.make_node("gpu-audited")
    [pod] = cluster.objects.deployment("audited")
    me, begun = Api(cluster.kubeconfig), audit.now()
    me.patch("Node", "gpu-audited", {"metadata": {"annotations": {"a": "b"}}})
    evict(me, pod, gracePeriodSeconds=7)
    with pytest.raises(ApiError):
        me.delete("Pod", pod["metadata"]["name"])

    patch, eviction, refused = cluster.audit(user=ACCOUNT, verb={"patch", "create", "delete"}, since=begun)
    assert (patch.resource, patch.name, patch.code) == ("nodes", "gpu-audited", 200)
    assert patch.request == {"metadata": {"annotations": {"a": "b"}}}
    assert (eviction.resource, eviction.name, eviction.code) == ("pods/eviction", pod["metadata"]["name"], 201)
    assert eviction.request["deleteOptions"] == {"gracePeriodSeconds": 7}
    assert (refused.verb, refused.resource, refused.code) == ("delete", "pods", 403)
    assert cluster.audit(name="gpu-audited", user=ACCOUNT, code=409) == []


def test_a_second_cluster_by_command(cluster, tmp_path):
    """Another process starts it beside the first one, a third one stops it; nothing is left but files."""
    directory = tmp_path / "second"

    def command(name: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "cluster", name, str(directory)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    up = command("up")
    assert up.returncode == 0, up.stderr
    second = Cluster(directory)
    try:
        assert up.stdout == f"KUBECONFIG={second.kubeconfig}\n"
        assert "already" in command("up").stderr
        assert command("status").returncode == 0
        assert second.server != cluster.server
        second.objects.make_node("only-there")
        assert cluster.admin.list("Node") == []
        assert [node["metadata"]["name"] for node in Api(second.kubeconfig).list("Node")] == ["only-there"]
        pids = [component.pid for component in second.components.values()]
    finally:
        down = command("down")
    assert down.returncode == 0, down.stderr
    assert [start_ticks(pid) for pid in pids] == [None] * 5
    assert command("status").returncode == 1
    assert cluster.ready()


def test_a_run_that_is_killed_leaves_nothing_behind(tmp_path):
    """Its guard ends the cluster and removes the temporary directory."""
    code = """
import os, signal, tempfile
from cluster import Cluster
cluster = Cluster()
cluster.start()
print(cluster.directory, *[component.pid for component in cluster.components.values()], flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(tmp_path)}
    run = subprocess.run([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True, timeout=120, check=False)
    assert run.returncode == -signal.SIGKILL
    directory, *pids = run.stdout.split()
    wait_until(lambda: not os.path.exists(directory), "the directory gone")
    assert [start_ticks(int(pid)) for pid in pids] == [None] * 5
