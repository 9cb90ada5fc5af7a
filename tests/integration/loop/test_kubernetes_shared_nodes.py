# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The playbooks where a device plugin hands the GPUs out: the node is tainted, and only those leave it who have the sick GPU (S11)."""

from __future__ import annotations

import pytest
from cluster.objects import wait_until
from fleet import TAINT


def work(fleet, name, *counts):
    """Pods with so many GPUs each on a node; by their names, the GPUs' indexes once the kubelet has given them all."""
    for number, count in enumerate(counts):
        fleet.objects.deployment(f"{name}-{number}", gpus=count, node=name)
    node = fleet.nodes[name]
    pods = wait_until(lambda: found if len(found := node.state()["pods"]) == len(counts) else None, f"the GPUs of {name} given")
    return {record["name"]: record["gpus"] for record in pods.values()}


def names(pods):
    return sorted(pod["name"] for pod in pods)


def there(fleet, name):
    return sorted(pod["metadata"]["name"] for pod in fleet.objects.pods_on(name))


@pytest.mark.timeout(600)
def test_seven_of_eight_work_on(fleet):
    """One pod a GPU and one with two; beside it a node whose socket is away, which its checkpoint stands in for, and one that tells nothing."""
    fleet.gpu_nodes("gpu-1", gpus=8)
    fleet.gpu_nodes("socketless", gpus=3)
    fleet.gpu_nodes("mute", gpus=3, gpuops_kubelet_dir=str(fleet.directory / "none"))
    fleet.nodes["socketless"].pod_resources("absent")
    fleet.set("act", nodes=10)
    with fleet.kubelet():
        given = {
            "gpu-1": work(fleet, "gpu-1", 1, 1, 1, 2, 1, 1, 1),
            "socketless": work(fleet, "socketless", 1, 2),
            "mute": work(fleet, "mute", 1, 2),
        }
        sick = {name: next(gpus[-1] for gpus in given[name].values() if len(gpus) == 2) for name in given}
        holders = {name: [pod for pod, gpus in given[name].items() if sick[name] in gpus] for name in given}
        for name, gpu in sick.items():
            fleet.nodes[name].xid(gpu, 48)
        alerts = {name: fleet.alert(name, gpu, 48) for name, gpu in sick.items()}

        predicted = fleet.remediate("--check", "--diff", alert_file=alerts["gpu-1"])
        assert predicted.ok, predicted.output
        assert f"default/{holders['gpu-1'][0]}" in predicted.output and fleet.writes() == []
        assert not any(f"default/{pod}" in predicted.output for pod in set(given["gpu-1"]) - set(holders["gpu-1"])), predicted.output

        run = fleet.remediate(alert_file=fleet.together(*alerts.values()), timeout_seconds=400)

    assert run.ok, run.output
    found = {one["node"]: one for one in fleet.incidents()}
    assert {name: one["state"] for name, one in found.items()} == dict.fromkeys(given, "contained"), run.output
    assert all(fleet.objects.taints(name) == [TAINT] for name in given)
    evict = {name: one["stages"]["evict"] for name, one in found.items()}
    assert {name: evict[name]["data"]["attribution"] for name in given} == {"gpu-1": "kubelet", "socketless": "kubelet", "mute": "requests"}
    for name, source in (("gpu-1", "pod_resources"), ("socketless", "checkpoint")):
        assert evict[name]["data"]["allocations"]["source"] == source
        assert names(evict[name]["data"]["evicted"]) == holders[name]
        assert there(fleet, name) == sorted(set(given[name]) - set(holders[name])), "all others work on"
    assert names(evict["mute"]["data"]["evicted"]) == sorted(given["mute"]) and there(fleet, "mute") == []
    assert evict["gpu-1"]["reason"] is None
    assert evict["socketless"]["reason"].startswith("who has which GPU is told by the checkpoint: ")
    assert "nobody told who has the sick one: pod_resources: " in evict["mute"]["reason"]
