# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""One GPU out of eight, on a real control plane: the scheduler allocates, and its audit log says what was written."""

from __future__ import annotations

import pytest
from cluster import Cluster
from cluster.faults import Admission, admission
from cluster.objects import wait_until
from responder import Responder

DRIVER = "gpu.nvidia.com"
OURS = {"key": "gpu.unhealthy", "value": "true", "effect": "NoSchedule"}


@pytest.fixture
def objects(cluster):
    """Two nodes of eight GPUs each, all of them in ResourceSlices."""
    cluster.objects.make_nodes("gpu-1", "gpu-2", gpus=0)
    for node in ("gpu-1", "gpu-2"):
        cluster.objects.publish(node, {f"gpu-{number}": attributes(node, number) for number in range(8)})
    cluster.objects.device_class()
    return cluster.objects


def attributes(node, number):
    return {"uuid": f"GPU-{node}-{number}", "resource.kubernetes.io/pciBusID": f"0000:{number:02x}:00.0"}


def writes(responder):
    """What was written for good, to anything but the pods' evictions."""
    resources = ("nodes", "devicetaintrules")
    return [
        (entry.verb, entry.resource) for each in resources for entry in responder.writes(each) if not entry.dry_run and entry.code < 300
    ]


def rules(objects):
    return [(rule["spec"]["deviceSelector"], rule["spec"]["taint"]) for rule in objects.taint_rules()]


def test_four_runs(responder, objects):
    """Predict, do, again, predict again; then the same for release. The server itself is asked for the prediction."""
    node = objects.node("gpu-1")["metadata"]["uid"]
    incident = responder.incident("gpu-1", node)
    before = objects.node("gpu-1")["spec"]
    for state, verb in (("present", "create"), ("absent", "delete")):
        run = {"node": "gpu-1", "uid": node, "gpu": "GPU-gpu-1-3", "incident_id": incident, "state": state}
        written = len(writes(responder))
        predicted = responder.taint_device(check_mode=True, **run)
        assert len(writes(responder)) == written
        assert [entry.verb for entry in responder.writes("devicetaintrules") if entry.dry_run][-1] == verb
        done, again, predicted_again = (
            responder.taint_device(**run),
            responder.taint_device(**run),
            responder.taint_device(check_mode=True, **run),
        )
        assert [each["changed"] for each in (predicted, done, again, predicted_again)] == [True, True, False, False]
        assert (predicted["diff"], predicted["actions"]) == (done["diff"], done["actions"])
        assert writes(responder)[written:] == [(verb, "devicetaintrules")]
    assert (objects.taint_rules(), objects.node("gpu-1")["spec"]) == ([], before)
    assert [change.status for change in responder.ledger.changes(incident)] == ["reverted"]


def test_seven_of_eight_serve_on(responder, objects):
    """S11: the sick GPU's pod goes as its budget allows, and to a healthy GPU; the seven others take work, and the node is never written."""
    objects.deployment("infer", 7, claim=DRIVER, node="gpu-1")
    objects.pdb("infer", min_available=7)
    held = objects.devices_held()
    victim, (_pool, sick) = sorted(held.items())[0]
    uid, number = objects.node("gpu-1")["metadata"]["uid"], int(sick.removeprefix("gpu-"))
    run = {"node": "gpu-1", "uid": uid, "incident_id": responder.incident("gpu-1", uid)}
    drain = {**run, "scope": "gpu", "gpu": f"GPU-gpu-1-{number}"}
    responder.taint_device(gpu=f"00000000:{number:02X}:00.0", **run)

    blocked = responder.drain(deadline_seconds=3, **drain)
    assert (blocked["error_kind"], blocked["attribution"]) == ("evict_incomplete", "claims")
    assert [each["name"] for each in blocked["left"]] == [victim]
    assert objects.devices_held() == held, "the budget holds"
    objects.api.patch("PodDisruptionBudget", "infer", {"spec": {"minAvailable": 6}})
    drained = responder.drain(deadline_seconds=60, **drain)
    assert [each["name"] for each in drained["evicted"]] == [victim]
    assert drained["moved"][0]["to_node"] == "gpu-1"
    objects.wait_for_pods("infer", 7)
    healthy = {("gpu-1", f"gpu-{index}") for index in range(8) if index != number}
    wait_until(lambda: set(objects.devices_held().values()) == healthy, "work on all seven and nowhere else")
    assert responder.drain(state="free", **drain)["left"] == []

    objects.api.patch("Deployment", "infer", {"spec": {"replicas": 8}})
    wait_until(lambda: objects.pods("infer", phase="Pending"), "an eighth pod that finds no GPU")
    theirs = {"deviceSelector": {"driver": DRIVER, "pool": "gpu-2"}, "taint": {"key": "maintenance", "effect": "NoSchedule"}}
    objects.api.create("DeviceTaintRule", {"metadata": {"name": "theirs"}, "spec": theirs})
    responder.taint_device(state="absent", **run)
    objects.wait_for_pods("infer", 8)
    assert [rule["metadata"]["name"] for rule in objects.taint_rules()] == ["theirs"]
    assert writes(responder) == [("create", "devicetaintrules"), ("delete", "devicetaintrules")]
    assert {entry.name for entry in responder.writes("pods/eviction")} == {victim}


def test_what_noexecute_would_do(responder, objects):
    """It is asked of the server by a rule without effect, which is gone afterwards."""
    objects.deployment("infer", 8, claim=DRIVER, node="gpu-1")
    result = responder.taint_device(node="gpu-1", gpu="GPU-gpu-1-0", preview=True)
    assert "1 pod would be evicted in 1 namespace" in result["preview"]
    assert (objects.taint_rules(), len(objects.pods("infer", phase="Running"))) == ([], 8)


def test_a_human_wins(responder, objects):
    """S6: what somebody deleted is not put back, and what somebody changed is not deleted."""
    uids = {name: objects.node(name)["metadata"]["uid"] for name in ("gpu-1", "gpu-2")}
    runs = [{"node": name, "gpu": f"GPU-{name}-0", "incident_id": responder.incident(name, uid)} for name, uid in uids.items()]
    deleted, changed = (responder.taint_device(**run)["after"]["rules"][0]["name"] for run in runs)
    objects.api.delete("DeviceTaintRule", deleted)
    objects.api.patch("DeviceTaintRule", changed, {"spec": {"taint": {"value": "sent-back"}}})
    assert [responder.taint_device(**run)["error_kind"] for run in runs] == ["human_override"] * 2
    assert (
        responder.drain(node="gpu-1", scope="gpu", gpu="GPU-gpu-1-0", incident_id=runs[0]["incident_id"])["error_kind"] == "human_override"
    )
    assert not responder.taint_device(state="absent", **runs[1])["changed"]
    assert [rule["metadata"]["name"] for rule in objects.taint_rules()] == [changed]


def test_a_rule_goes_with_its_node(responder, objects):
    """S6: another machine under the name, with devices of the same names, begins clean."""
    uid = objects.node("gpu-1")["metadata"]["uid"]
    run = {"node": "gpu-1", "uid": uid, "gpu": "GPU-gpu-1-0", "incident_id": responder.incident("gpu-1", uid)}
    responder.taint_device(**run)
    objects.delete_node("gpu-1")
    wait_until(lambda: not objects.taint_rules(), "the rule gone", 60)
    assert responder.taint_device(**run)["error_kind"] == "node_gone"


def test_what_cannot_be_taken_out_alone(responder, objects):
    """A GPU that no driver lists, and one that a device plugin hands out too."""
    assert "no ResourceSlice has GPU-other" in responder.taint_device(node="gpu-1", gpu="GPU-other")["msg"]
    objects.api.patch("Node", "gpu-1", {"status": {"capacity": {"nvidia.com/gpu": "8"}}}, subresource="status")
    result = responder.taint_device(node="gpu-1", gpu="GPU-gpu-1-0")
    assert (result["error_kind"], objects.taint_rules()) == ("device_not_taintable", [])
    assert "nvidia.com/gpu" in result["msg"]


def test_a_server_in_trouble(cluster, responder, objects):
    with admission(cluster, "devicetaintrules", Admission(status=500, times=2)):
        assert responder.taint_device(node="gpu-1", gpu="GPU-gpu-1-0")["changed"]
    assert [entry.code for entry in responder.writes("devicetaintrules")] == [500, 500, 201]


@pytest.mark.parametrize("served", [None, "v1alpha3", "v1beta2"])
def test_servers_of_other_kinds(tmp_path, served):
    """Without the rules, with their older version, with nobody to act on them: the claims say for certain all the same whose pod is meant."""
    flags = {name: ["--feature-gates=DRADeviceTaintRules=false"] for name in ("kube-controller-manager", "kube-scheduler")}
    versions = ",".join(f"resource.k8s.io/{version}={str(version == served).lower()}" for version in ("v1beta2", "v1alpha3"))
    flags["kube-apiserver"] = [f"--runtime-config={versions}", f"--feature-gates=DRADeviceTaintRules={str(bool(served)).lower()}"]
    with Cluster(tmp_path / "cluster", flags=flags) as cluster:
        cluster.objects.make_nodes("gpu-1", gpus=0)
        cluster.objects.publish("gpu-1", {f"gpu-{number}": attributes("gpu-1", number) for number in range(8)})
        cluster.objects.device_class()
        cluster.objects.deployment("infer", 8, claim=DRIVER)
        responder = Responder(cluster, tmp_path)
        result = responder.taint_device(node="gpu-1", gpu="GPU-gpu-1-0")
        written = [entry.request["apiVersion"] for entry in responder.writes("devicetaintrules")]
        assert written == ([f"resource.k8s.io/{served}"] if served else [])
        why = {None: "serves no DeviceTaintRule", "v1alpha3": None, "v1beta2": "nobody has taken notice"}[served]
        assert result.get("error_kind") == (why and "device_not_taintable") and (why or "") in result.get("msg", "")
        [sick] = [pod for pod, held in cluster.objects.devices_held().items() if held == ("gpu-1", "gpu-0")]
        predicted = responder.drain(node="gpu-1", scope="gpu", gpu="GPU-gpu-1-0", check_mode=True)
        assert (predicted["attribution"], [pod["name"] for pod in predicted["evicted"]]) == ("claims", [sick])
