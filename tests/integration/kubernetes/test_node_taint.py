# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""node_taint on a real control plane; the API server's audit log says what was written."""

from __future__ import annotations

import json
import time

import pytest
from cluster.faults import Admission, admission, too_many_requests
from responder import TAINT, Responder, after, meanwhile

MAINTENANCE = {"key": "maintenance", "value": "rack", "effect": "NoExecute", "timeAdded": "2026-01-02T03:04:05Z"}


@pytest.fixture
def node(cluster):
    return cluster.objects.make_node("gpu-1")


@pytest.fixture
def objects(cluster):
    return cluster.objects


def taint_list(objects):
    return objects.node("gpu-1")["spec"].get("taints", [])


def test_four_runs(responder, objects, node):
    """Predict, do, again, predict again; then the same for release."""
    objects.api.patch("Node", "gpu-1", {"spec": {"taints": [MAINTENANCE]}})
    incident = responder.incident("gpu-1", node)
    ours = {"key": "gpu.unhealthy", "value": "true", "effect": "NoSchedule"}
    for state, taints, left in (("present", [MAINTENANCE, ours], f'["{incident}"]'), ("absent", [MAINTENANCE], None)):
        run = {"incident_id": incident, "state": state, "uid": node}
        written = len(responder.writes())
        predicted = responder.taint(check_mode=True, **run)
        assert len(responder.writes()) == written
        done, again, predicted_again = responder.taint(**run), responder.taint(**run), responder.taint(check_mode=True, **run)
        assert [each["changed"] for each in (predicted, done, again, predicted_again)] == [True, True, False, False]
        assert predicted["diff"] == done["diff"]
        assert (predicted["actions"], predicted["after"]) == (done["actions"], done["after"])
        assert (taint_list(objects), responder.incidents_on("gpu-1")) == (taints, left)
        assert [entry.code for entry in responder.writes()[written:]] == [200]
    assert [change.status for change in responder.ledger.changes(incident)] == ["reverted"]


def test_a_concurrent_writers_taint_survives(cluster, responder, objects, node):
    """S7: it is written while our own write is on its way; the server refuses ours, and we start again."""
    other = Admission(before=lambda request: objects.taint("gpu-1", "node.example/flaky"), times=1)
    with admission(cluster, "nodes", other):
        assert responder.taint()["changed"]
    assert sorted(objects.taints("gpu-1")) == sorted(["node.example/flaky=:NoSchedule", TAINT])
    assert [entry.code for entry in responder.writes()] == [409, 200]


def test_a_server_in_trouble(cluster, responder, node):
    with admission(cluster, "nodes", Admission(status=500, times=2)):
        assert responder.taint()["changed"]
    assert [entry.code for entry in responder.writes()] == [500, 500, 200]
    with admission(cluster, "nodes", Admission(status=500)):
        result = responder.taint(state="absent", deadline_seconds=2)
    assert (result["error_kind"], result["changed"]) == ("api_unavailable", False)
    assert "failed calling webhook" in result["error"]


def test_a_server_that_is_busy(cluster, responder, node):
    """429 with Retry-After, until the deadline or until there is room."""
    with too_many_requests(cluster, verbs=["patch"], resources=["nodes"]):
        assert responder.taint(deadline_seconds=2)["error_kind"] == "api_unavailable"
    assert responder.taint()["changed"]


def test_the_api_hangs_for_10_seconds(cluster, responder, objects, node):
    cluster["kube-apiserver"].pause()
    begun = time.monotonic()
    with meanwhile(after(10, cluster["kube-apiserver"].resume)):
        assert responder.taint()["changed"]
    assert 10 <= time.monotonic() - begun < 20
    assert objects.taints("gpu-1") == [TAINT]


def test_deleted_and_recreated(responder, objects, node):
    """S6."""
    objects.delete_node("gpu-1")
    assert responder.taint(uid=node)["error_kind"] == "node_gone"
    objects.make_node("gpu-1")
    assert responder.taint(uid=node)["error_kind"] == "node_recreated"
    assert responder.writes() == []


def test_opted_out(responder, objects):
    """S4."""
    objects.make_node("gpu-1", labels={"gpuops.remediation/managed": "false"})
    assert responder.taint()["error_kind"] == "not_managed"
    assert responder.writes() == []


@pytest.mark.parametrize("when", ["before", "during"])
def test_an_admins_cordon_survives(responder, objects, node, when):
    """S6."""
    incident = responder.incident("gpu-1", node)
    if when == "before":
        objects.cordon("gpu-1")
    responder.taint(incident_id=incident)
    if when == "during":
        objects.cordon("gpu-1")
    responder.taint(incident_id=incident, state="absent")
    assert objects.node("gpu-1")["spec"]["unschedulable"]
    assert TAINT not in objects.taints("gpu-1")
    assert not any("unschedulable" in entry.request["spec"] for entry in responder.writes())


def test_our_own_cordon_is_undone(responder, objects, node):
    incident = responder.incident("gpu-1", node)
    assert responder.drain(node="gpu-1", cordon=True, incident_id=incident)["changed"]
    assert objects.node("gpu-1")["spec"]["unschedulable"]
    responder.taint(incident_id=incident, state="absent")
    assert "unschedulable" not in objects.node("gpu-1")["spec"]


@pytest.mark.parametrize("first", [0, 1])
def test_two_incidents_at_once_released_in_both_orders(responder, objects, node, first):
    """S9."""
    incidents = [responder.incident("gpu-1", node, f"GPU-{number}") for number in range(2)]
    nodes = [{"name": "gpu-1", "uid": node, "incident_id": incident} for incident in incidents]
    assert [each["error"] for each in responder.taint_nodes(nodes=nodes)["nodes"]] == [None, None]
    assert sorted(json.loads(responder.incidents_on("gpu-1"))) == sorted(incidents)
    released, other = incidents[first], incidents[1 - first]
    responder.taint(incident_id=released, state="absent")
    assert (objects.taints("gpu-1"), responder.incidents_on("gpu-1")) == ([TAINT], f'["{other}"]')
    responder.taint(incident_id=other, state="absent")
    assert (objects.taints("gpu-1"), responder.incidents_on("gpu-1")) == ([], None)


def test_somebody_elses_taint_of_our_key_survives_the_release(responder, objects, node):
    """S7, S9."""
    theirs = {"key": "gpu.unhealthy", "value": "rack-work", "effect": "NoSchedule", "timeAdded": "2026-01-02T03:04:05Z"}
    objects.api.patch("Node", "gpu-1", {"spec": {"taints": [theirs]}})
    incident = responder.incident("gpu-1", node)
    responder.taint(incident_id=incident)
    assert objects.taints("gpu-1") == [TAINT]
    responder.taint(incident_id=incident, state="absent")
    assert taint_list(objects) == [theirs]


def test_a_human_wins(responder, objects, node):
    """S6: what somebody took off is not put back."""
    incident = responder.incident("gpu-1", node)
    responder.taint(incident_id=incident)
    objects.untaint("gpu-1", "gpu.unhealthy")
    assert responder.taint(incident_id=incident)["error_kind"] == "human_override"
    assert objects.taints("gpu-1") == []


def test_the_mode_forbids(responder, objects, node):
    """S4."""
    responder.ledger.set_mode("observe", "test", "test")
    result = responder.taint(incident_id=responder.incident("gpu-1", node))
    assert result["error_kind"] == "mode_forbids"
    assert responder.writes() == []


def test_the_breaker_trips(responder, objects):
    """S8: three nodes are tainted, the others are left as they are; releases still work."""
    uids = objects.make_nodes(*[f"gpu-{number}" for number in range(1, 7)])
    nodes = [{"name": name, "uid": uid, "incident_id": responder.incident(name, uid)} for name, uid in uids.items()]
    result = responder.taint_nodes(nodes=nodes)
    assert (result["error_kind"], result["changed"]) == ("breaker_tripped", True)
    tainted = [name for name in uids if objects.taints(name) == [TAINT]]
    assert len(tainted) == len(responder.writes()) == 3
    assert sorted(each["name"] for each in result["nodes"] if not each["error"]) == tainted
    released = responder.taint_nodes(nodes=[each for each in nodes if each["name"] in tainted], state="absent")
    assert "error_kind" not in released


def test_fifty_nodes_in_one_call(responder, objects):
    uids = objects.make_nodes(*[f"gpu-{number:02}" for number in range(50)])
    nodes = [
        {"name": name, "uid": uid, "incident_id": responder.incident(name, uid), "groups": {"fleet": 1000}} for name, uid in uids.items()
    ]
    nodes.insert(7, {"name": "gpu-99"})
    begun = time.monotonic()
    result = responder.taint_nodes(nodes=nodes)
    assert time.monotonic() - begun < 30
    assert [each["name"] for each in result["nodes"]] == [each["name"] for each in nodes]
    assert [(each["name"], each["error_kind"]) for each in result["nodes"] if each["error"]] == [("gpu-99", "node_gone")]
    assert [entry.code for entry in responder.writes()] == [200] * 50
    assert all(objects.taints(name) == [TAINT] for name in uids)


def test_noexecute_only_when_asked(responder, objects, node):
    objects.pod("infer", node="gpu-1")
    responder.taint()
    assert {entry.request["spec"]["taints"][0]["effect"] for entry in responder.writes()} == {"NoSchedule"}
    responder.taint(taints=[{"key": "gpu.unhealthy", "value": "true", "effect": "NoExecute"}])
    assert sorted(objects.taints("gpu-1")) == ["gpu.unhealthy=true:NoExecute", TAINT]


def test_nothing_secret_is_told(cluster, node, tmp_path):
    responder = Responder(cluster, tmp_path)
    assert cluster.admin.token not in str(responder.taint())
    (tmp_path / "kubeconfig").write_text(cluster.kubeconfig.read_text().replace("token:", "token: x"))
    refused = responder.taint_nodes(nodes=[{"name": "gpu-1"}], kubeconfig=str(tmp_path / "kubeconfig"))
    assert refused["error_kind"] == "forbidden"
