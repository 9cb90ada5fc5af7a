# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""node_drain on a real control plane."""

from __future__ import annotations

import pytest
from cluster.faults import Admission, admission
from responder import TAINT, after, meanwhile


@pytest.fixture
def objects(cluster):
    return cluster.objects


def names(pods):
    """The apps of pods."""
    return sorted(pod["name"].partition("-")[0] for pod in pods)


def deleted(responder):
    return [entry for entry in responder.writes("pods") if entry.verb == "delete"]


def test_what_stays_and_what_goes(responder, objects):
    """S11: by scope; DaemonSet pods, bare pods, annotated and completed pods stay."""
    objects.make_nodes("gpu-1", "gpu-2")
    objects.daemonset("agent", nodes=2)
    objects.deployment("infer", 2, node="gpu-1")
    objects.deployment("web", gpus=0, node="gpu-1")
    objects.deployment("pinned", annotations={"gpuops.remediation/evict": "never"}, node="gpu-1")
    objects.pod("notebook", node="gpu-1")
    done = objects.pod("done", node="gpu-1")
    objects.api.patch("Pod", "done", {"status": {"phase": "Succeeded"}}, subresource="status")
    responder.taint()

    predicted = responder.drain(node="gpu-1", scope="gpu", check_mode=True)
    assert (names(predicted["evicted"]), names(predicted["kept"])) == (["infer", "infer"], ["notebook", "pinned"])
    assert responder.writes("pods/eviction") == []

    gpu = responder.drain(node="gpu-1", scope="gpu", deadline_seconds=20)
    assert [pod["uid"] for pod in gpu["evicted"]] == [pod["uid"] for pod in predicted["evicted"]]
    assert {pod["name"]: pod["why"] for pod in gpu["kept"]}["notebook"] == "no controller would make it again"
    assert {move["pending"] for move in gpu["moved"]} and all("untolerated taint" in move["pending"] for move in gpu["moved"])
    again = responder.drain(node="gpu-1", scope="gpu", deadline_seconds=20)
    assert (again["changed"], len(responder.writes("pods/eviction"))) == (False, 2)

    certain = responder.drain(node="gpu-1", scope="gpu", pods=[{"uid": done["metadata"]["uid"]}], deadline_seconds=20)
    assert not certain["changed"]
    everything = responder.drain(node="gpu-1", evict_unmanaged=True, deadline_seconds=20)
    assert names(everything["evicted"]) == ["notebook", "web"]
    assert sorted(pod["metadata"]["labels"]["app"] for pod in objects.pods_on("gpu-1")) == ["agent", "done", "pinned"]
    assert deleted(responder) == []


def test_where_the_work_went(responder, objects):
    objects.make_nodes("gpu-1", "gpu-2")
    (pod,) = objects.deployment("infer")
    node = pod["spec"]["nodeName"]
    responder.taint(node)
    (move,) = responder.drain(node=node)["moved"]
    assert move["from"]["uid"] == pod["metadata"]["uid"]
    assert {node, move["to_node"]} == {"gpu-1", "gpu-2"}


def test_drains_in_trouble(cluster, responder, objects):
    """A budget that allows an eviction only after 20 s; pods that end late or never; an API that hangs for 10 s meanwhile."""
    objects.make_nodes("gpu-1", "gpu-2", "gpu-3")
    objects.deployment("strict", 2, node="gpu-1")
    objects.pdb("strict", min_available=2)
    objects.deployment("free", 2, node="gpu-1")
    objects.deployment("late", stops_after="8s", node="gpu-2")
    objects.deployment("endless", stops_after="never", finalizers=["example.com/stuck"], node="gpu-3")
    for node in ("gpu-1", "gpu-2", "gpu-3"):
        responder.taint(node)
    blocked = responder.drain(node="gpu-1", check_mode=True)["blocked"]
    assert [(each["name"], each["allowed"], len(each["pods"])) for each in blocked] == [("strict", 0, 2)]

    def allow():
        cluster.admin.patch("PodDisruptionBudget", "strict", {"spec": {"minAvailable": 0}})

    api_server = cluster["kube-apiserver"]
    with meanwhile(
        lambda: responder.drain_beside(node="gpu-1", deadline_seconds=60),
        lambda: responder.drain_beside(node="gpu-2", deadline_seconds=60),
        lambda: responder.drain_beside(node="gpu-3", deadline_seconds=25),
        after(6, api_server.pause),
        after(16, api_server.resume),
        after(20, allow),
    ) as answers:
        pass
    strict, late, endless = answers[:3]
    assert (names(strict["evicted"]), strict["left"]) == (["free", "free", "strict", "strict"], [])
    refused = [entry for entry in responder.writes("pods/eviction") if entry.code == 429]
    assert {entry.name.partition("-")[0] for entry in refused} == {"strict"}
    assert len(late["evicted"]) == 1
    assert endless["error_kind"] == "evict_incomplete"
    (left,) = endless["left"]
    assert left["name"].startswith("endless")
    assert "terminating since" in left["why"]
    assert "finalizers example.com/stuck" in left["why"]
    assert left["name"] in endless["msg"]
    assert deleted(responder) == []
    assert TAINT in objects.taints("gpu-3")


def test_a_kubelet_that_is_gone(responder, objects):
    objects.make_nodes("gpu-1")
    objects.deployment("infer")
    objects.kill_node("gpu-1")
    result = responder.drain(node="gpu-1", deadline_seconds=3)
    assert result["error_kind"] == "evict_incomplete"
    assert result["left"][0]["why"].endswith("the node's kubelet does not answer")


def test_a_failing_webhook(cluster, responder, objects):
    objects.make_node("gpu-1")
    objects.deployment("infer", 2)
    responder.taint()
    with admission(cluster, "pods/eviction", Admission(status=500, times=2)):
        assert len(responder.drain(node="gpu-1", deadline_seconds=30)["evicted"]) == 2
    assert sorted(entry.code for entry in responder.writes("pods/eviction")) == [201, 201, 500, 500]


def test_the_grace_period_is_cut_to_what_is_left(responder, objects):
    """S11."""
    objects.make_node("gpu-1")
    objects.deployment("long", grace_seconds=600)
    objects.deployment("short", grace_seconds=5)
    responder.taint()
    responder.drain(node="gpu-1", deadline_seconds=40)
    sent = {entry.name.partition("-")[0]: entry.request["deleteOptions"] for entry in responder.writes("pods/eviction")}
    assert 30 <= sent["long"]["gracePeriodSeconds"] <= 35
    assert "gracePeriodSeconds" not in sent["short"]


@pytest.mark.parametrize("what", ["taint", "node", "lock"])
def test_the_node_is_taken_from_us(responder, objects, what):
    """S5, S6: no eviction after the taint was taken off, the node recreated, or the lock taken over."""
    uid = objects.make_node("gpu-1")
    objects.deployment("strict", node="gpu-1")
    objects.pdb("strict", min_available=1)
    incident = responder.incident("gpu-1", uid)
    lock = responder.lease().take("run-1")
    responder.taint(incident_id=incident)
    take = {
        "taint": lambda: objects.untaint("gpu-1", "gpu.unhealthy"),
        "node": lambda: (objects.delete_node("gpu-1"), objects.make_node("gpu-1")),
        "lock": lambda: responder.lease().take("run-1"),
    }[what]
    locked = {"lock_token": lock.token, "lock_holder": "run-1"}
    with meanwhile(lambda: responder.drain_beside(node="gpu-1", uid=uid, incident_id=incident, deadline_seconds=30, **locked)) as answers:
        after(3, take)()
        written = len(responder.writes("pods/eviction"))
    (result,) = answers
    assert result["error_kind"] == {"taint": "human_override", "node": "node_recreated", "lock": "lock_lost"}[what]
    assert len(responder.writes("pods/eviction")) <= written + 1


def test_the_mode_forbids_evictions(responder, objects):
    """S4: fence taints and leaves what runs alone."""
    uid = objects.make_node("gpu-1")
    objects.deployment("infer")
    responder.ledger.set_mode("fence", "test", "test")
    incident = responder.incident("gpu-1", uid)
    assert responder.taint(incident_id=incident)["changed"]
    assert responder.drain(node="gpu-1", incident_id=incident)["error_kind"] == "mode_forbids"
    assert responder.writes("pods/eviction") == []
