# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The playbooks where Dynamic Resource Allocation hands the GPUs out: one of sixteen is sick, and fifteen serve on."""

from __future__ import annotations

import pytest
from cluster import audit
from cluster.faults import Admission, admission
from cluster.objects import wait_until
from fleet import TAINT

DRIVER = "gpu.nvidia.com"

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def idle(fleet):
    """Two nodes of eight GPUs."""
    fleet.gpu_nodes("gpu-1", "gpu-2", gpus=8, by_claim=True)
    fleet.objects.device_class()
    fleet.set("act")
    with fleet.kubelet("--dra"):
        wait_until(lambda: len(fleet.objects.api.list("ResourceSlice")) == 2, "the GPUs published")
        yield fleet


@pytest.fixture
def claimed(idle):
    """And work on some of them."""
    idle.objects.deployment("infer", 4, claim=DRIVER)
    idle.objects.pdb("infer", max_unavailable=1)
    wait_until(lambda: sum(len(node.state()["pods"]) for node in idle.nodes.values()) == 4, "the pods' processes")
    return idle


def sick_gpu(fleet):
    """One that works: its pod, its node and its index."""
    pod, (node, device) = sorted(fleet.objects.devices_held().items())[0]
    return pod, node, int(device.removeprefix("gpu-"))


def selected(fleet):
    return [tuple(rule["spec"]["deviceSelector"][part] for part in ("driver", "pool", "device")) for rule in fleet.objects.taint_rules()]


def test_one_gpu_from_alert_to_release(claimed):
    """S7, S9, S11, S17: the GPU alone is fenced and quarantined, its pod moved, and its node never written."""
    pod, name, gpu = sick_gpu(claimed)
    others = {other: held for other, held in claimed.objects.devices_held().items() if other != pod}
    claimed.nodes[name].xid(gpu, 79)
    claimed.nodes[name].lost(gpu)

    run = claimed.remediate(alert_file=claimed.alert(name, gpu, 79))

    assert run.ok, run.output
    [incident] = claimed.incidents()
    assert (incident["state"], incident["gpu"]) == ("contained", claimed.uuid(name, gpu)), run.output
    assert selected(claimed) == [(DRIVER, name, f"gpu-{gpu}")]
    evicted = incident["stages"]["evict"]["data"]
    assert (evicted["attribution"], [each["name"] for each in evicted["evicted"]]) == ("claims", [pod])
    claimed.objects.wait_for_pods("infer", 4)
    held = claimed.objects.devices_held()
    assert {other: held[other] for other in others} == others
    assert (name, f"gpu-{gpu}") not in held.values()
    assert [entry.resource for entry in claimed.writes()][:2] == ["devicetaintrules", "leases"], "fenced before the diagnosis took the lock"

    claimed.nodes[name].reboot()
    released = claimed.play("release", incident_id=incident["id"])
    assert released.ok, released.output
    assert [(entry.verb, entry.code) for entry in claimed.writes("devicetaintrules")] == [("create", 201), ("delete", 200)]
    assert (claimed.objects.taint_rules(), claimed.writes("nodes")) == ([], [])


def test_the_whole_node(idle):
    """A fault of the node takes all of it out, and one of a GPU where its device plugin hands out GPUs too, which is said. A fence for nothing is lifted."""
    idle.gpu_nodes("well", gpus=8, by_claim=True)
    wait_until(lambda: len(idle.objects.api.list("ResourceSlice")) == 3, "its GPUs published")
    idle.objects.api.patch("Node", "gpu-1", {"status": {"capacity": {"nvidia.com/gpu": "8"}}}, subresource="status")
    idle.nodes["gpu-1"].xid(0, 48)
    idle.nodes["gpu-2"].log("nvidia-nvswitch0: SXid (PCI:0000:a6:00.0): 23001, Fatal, Link 28 egress sequence error")

    run = idle.remediate(alert_file=idle.together(idle.alert("gpu-1", 0, 48), idle.alert("gpu-2", None, None), idle.alert("well", 5, 79)))

    assert run.ok, run.output
    reasons = {one["node"]: one["stages"]["taint"]["reason"] for one in idle.incidents()}
    assert "a device plugin hands out nvidia.com/gpu too" in reasons["gpu-1"] and not reasons["gpu-2"], run.output
    assert {name: idle.objects.taints(name) for name in idle.nodes} == {"gpu-1": [TAINT], "gpu-2": [TAINT], "well": []}
    assert idle.ended()[("well", idle.uuid("well", 5))] == "fence_lifted"
    assert [entry.verb for entry in idle.writes("devicetaintrules")] == ["create", "delete"]
    assert idle.objects.taint_rules() == []


def test_an_api_that_answers_for_nodes_only(idle):
    """S16: half of the stage is the device's, and then the node is the quarantine, also at verification."""
    idle.nodes["gpu-1"].xid(0, 48)
    with admission(idle.cluster, "devicetaintrules", Admission(status=500)):
        limits = {"taint_seconds": 30, "verify_seconds": 30}
        run = idle.remediate(alert_file=idle.alert("gpu-1", 0, 48), limits=limits)
    assert run.ok, run.output
    [incident] = idle.incidents()
    assert incident["state"] == "contained", run.output
    assert "and not the GPU alone" in incident["stages"]["taint"]["reason"]
    assert (idle.objects.taints("gpu-1"), idle.objects.taint_rules()) == ([TAINT], [])


def test_the_modes(claimed):
    """S4: a prediction asks the server and keeps nothing; observing does not even ask; fence taints the device and evicts nobody."""
    _pod, name, gpu = sick_gpu(claimed)
    claimed.nodes[name].xid(gpu, 79)
    claimed.nodes[name].lost(gpu)
    alert = claimed.alert(name, gpu, 79)
    predicted = claimed.remediate("--check", "--diff", alert_file=alert)
    assert predicted.ok and predicted.failures == [], predicted.output
    assert f'"device": "gpu-{gpu}"' in predicted.output
    assert {(entry.resource, entry.verb, entry.dry_run) for entry in claimed.writes()} == {("devicetaintrules", "create", True)}

    since = audit.now()
    claimed.set("observe")
    watched = claimed.remediate(alert_file=alert)
    assert watched.ok, watched.output
    assert claimed.writes(since=since) == []

    claimed.set("fence")
    fenced = claimed.remediate(alert_file=alert)
    assert fenced.ok, fenced.output
    assert selected(claimed) == [(DRIVER, name, f"gpu-{gpu}")]
    assert claimed.writes("pods/eviction", "nodes") == []
