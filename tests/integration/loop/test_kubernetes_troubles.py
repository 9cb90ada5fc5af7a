# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The playbooks on a real control plane when others write too, and when servers, nodes and pods do not do their part."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from pathlib import Path

from cluster import audit
from cluster.faults import Admission, admission
from cluster.objects import wait_until
from fleet import TAINT, side_by_side

CORDON = "node.kubernetes.io/unschedulable=:NoSchedule"


@contextmanager
def beside(call):
    """`call` in a thread; its error, if any, is the test's."""
    errors = []

    def run():
        try:
            call()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    yield
    thread.join()
    assert errors == []


def test_two_incidents_on_a_node_and_an_admin(fleet):
    """S5, S6, S9: from one message and from two runs at once; released in both orders; a human wins, and keeps the own cordon."""
    for node in fleet.gpu_nodes("one", "two", "freed"):
        node.xid(0, 48)
        node.xid(1, 48)
    fleet.objects.cordon("one")
    fleet.set("act")
    freed = fleet.alert("freed", 0, 48)
    message = fleet.together(fleet.alert("one", 0, 48), fleet.alert("one", 1, 48), fleet.alert("two", 0, 48), freed)
    other = fleet.alert("two", 1, 48)

    for run in side_by_side(
        lambda: fleet.remediate(alert_file=message, lock_wait_seconds=300),
        lambda: fleet.remediate(alert_file=other, lock_wait_seconds=300),
    ):
        assert run.ok, run.output

    assert set(fleet.ended().values()) == {"contained"} and len(fleet.incidents()) == 5
    ids = {(one["node"], one["gpu"]): one["id"] for one in fleet.incidents()}
    one, two = ([ids[name, fleet.uuid(name, gpu)] for gpu in (0, 1)] for name in ("one", "two"))
    assert sorted(fleet.incidents_on("one")) == sorted(one) and sorted(fleet.incidents_on("two")) == sorted(two)

    fleet.objects.untaint("freed", "gpu.unhealthy")
    for name in ("one", "two"):
        for gpu in (0, 1):
            fleet.nodes[name].reset(gpu)
    since = audit.now()

    def release(name, first, last):
        run = fleet.play("release", incident_id=first)
        assert run.ok, run.output
        assert (TAINT in fleet.objects.taints(name), fleet.incidents_on(name)) == (True, [last])
        run = fleet.play("release", incident_id=last)
        assert run.ok, run.output

    def again():
        run = fleet.remediate(alert_file=freed)
        assert run.ok, run.output

    side_by_side(lambda: release("one", *one), lambda: release("two", *reversed(two)), again)
    assert [fleet.objects.taints(name) for name in ("one", "two", "freed")] == [[CORDON], [], []]
    assert [fleet.incidents_on(name) for name in ("one", "two")] == [[], []]
    assert {state for (name, _gpu), state in fleet.ended().items() if name != "freed"} == {"released"}
    assert fleet.ended()["freed", fleet.uuid("freed", 0)] == "cancelled_by_human"
    assert [entry for entry in fleet.writes("nodes", since=since) if entry.name == "freed"] == []
    assert fleet.incidents_on("freed") == [ids["freed", fleet.uuid("freed", 0)]]

    for run in [fleet.play("reconcile") for _twice in range(2)]:
        assert run.ok, run.output
    [forgotten] = [entry for entry in fleet.writes("nodes", since=since) if entry.name == "freed"]
    assert (fleet.incidents_on("freed"), fleet.objects.taints("freed")) == ([], [])
    assert set(forgotten.request["metadata"]) == {"annotations", "resourceVersion", "uid"} and not forgotten.request["spec"]


def test_a_cluster_in_trouble(fleet, cluster):
    """S6, S7: errors and another writer while nodes are fenced; nodes deleted and recreated; the API away while a budget refuses."""
    names = ("budget", "plain", "gone", "again")
    fleet.gpu_nodes(*names)
    for name in names:
        fleet.nodes[name].xid(0, 48)
    fleet.objects.deployment("strict", node="budget")
    fleet.objects.pdb("strict", min_available=1)
    fleet.set("act", nodes=10)
    taken = []

    def take(request):
        name = request["name"].removeprefix("gpuops-")
        if name in ("gone", "again") and name not in taken:
            taken.append(name)
            fleet.objects.delete_node(name)
            if name == "again":
                fleet.objects.make_node(name)

    # The API is away just when "plain" comes to its last stage, longer than a lock lives and than any one request is waited for.
    pid, back = cluster["kube-apiserver"].pid, fleet.directory / "back"
    stop = f"kill -STOP {pid}; (sleep 31; kill -CONT {pid}; touch {back}) >/dev/null 2>&1 &"
    fleet.before["Keep who was moved, and who stays"] = f'[ "$HOST" != plain ] || {{ {stop} }}'

    def allow():
        wait_until(back.exists, "the API is back", 250)
        refused = {"resource": "pods/eviction", "code": 429, "since": fleet.begun}
        wait_until(lambda: cluster.audit(**refused), "an eviction is refused", 60)
        fleet.objects.api.patch("PodDisruptionBudget", "strict", {"spec": {"minAvailable": 0}})

    writer = Admission(before=lambda request: fleet.objects.taint(request["name"], "node.example/flaky"), times=1)
    with (
        admission(cluster, "nodes", Admission(status=500, times=2)),
        admission(cluster, "nodes", writer),
        admission(cluster, "leases", Admission(before=take)),
        beside(allow),
    ):
        run = fleet.remediate(alert_file=fleet.together(*(fleet.alert(name, 0, 48) for name in names)))

    assert run.ok, run.output
    assert {one["node"]: one["state"] for one in fleet.incidents()} == {
        "budget": "contained", "plain": "contained", "gone": "cancelled_by_human", "again": "cancelled_by_human",
    }, run.output  # fmt: skip
    assert {500, 409, 200} <= {entry.code for entry in fleet.writes("nodes")}
    flaky = {name: ["node.example/flaky=:NoSchedule"] * (name == writer.seen[0]["name"]) for name in names}
    assert sorted(fleet.objects.taints("budget")) == sorted([TAINT, *flaky["budget"]])
    assert sorted(fleet.objects.taints("plain")) == sorted([TAINT, *flaky["plain"]])
    assert fleet.objects.taints("again") == [], "another node"
    assert fleet.incidents_on("again") == []
    assert fleet.objects.pods_on("budget") == []


def test_ten_nodes_at_once(fleet):
    """S12, S16: one whose NVML hangs, and one whose pod never ends, cost the other eight nothing."""
    names = [f"gpu-{number}" for number in range(10)]
    fleet.gpu_nodes(*names, gpus=1)
    hung, endless, *others = names
    fleet.host_variables[endless]["gpuops_limits"] = {"evict_seconds": 15, "verify_seconds": 5}
    fleet.host_variables[hung]["gpuops_limits"] = {"verify_seconds": 5}
    fleet.objects.deployment("stalled", node=hung)
    fleet.objects.deployment("endless", node=endless, stops_after="never", finalizers=["example.com/stuck"])
    fleet.set("act", nodes=10)
    for name in names:
        fleet.nodes[name].xid(0, 48)
    fleet.nodes[hung].hang("all", None)

    with fleet.kubelet():
        wait_until(lambda: fleet.nodes[endless].state()["processes"], "the endless pod's process holds its GPU")
        run = fleet.remediate(alert_file=fleet.together(*(fleet.alert(name, 0, 48) for name in names)), timeout_seconds=290)

    assert run.ok, run.output
    found = {one["node"]: one for one in fleet.incidents()}
    assert {name: one["state"] for name, one in found.items()} == {
        **dict.fromkeys(others, "contained"), hung: "held_for_human", endless: "quarantined_overdue",
    }, run.output  # fmt: skip
    assert "endless-" in found[endless]["reason"] and "finalizers example.com/stuck" in found[endless]["reason"]
    assert found[endless]["stages"]["verify"]["error_kind"] == "evict_incomplete", "its process has outlived SIGTERM"
    assert "default/stalled-" in found[hung]["reason"] and fleet.objects.pods_on(hung), "a hanging NVML is no proof that the work is dead"
    assert all(fleet.objects.taints(name) == [TAINT] for name in names)
    seconds = {name: {stage: each["seconds"] for stage, each in one["stages"].items()} for name, one in found.items()}
    assert seconds[hung]["diagnose"] >= 20 and seconds[endless]["evict"] >= 15
    for name in others:
        assert seconds[name]["diagnose"] < 20 and seconds[name]["evict"] < 15
        assert found[name]["budget"]["within"]


def test_work_that_stays(fleet):
    """Contained is what is proven: a pod that comes back at once or after its eviction is named, and who stays is not waited for."""
    names = ("back", "late", "kept")
    fleet.gpu_nodes(*names)
    tolerates = {"tolerations": [{"key": "gpu.unhealthy", "operator": "Exists"}]}
    fleet.objects.deployment("back", node="back", **tolerates)
    fleet.objects.deployment("late", 0, node="late", wait=False, **tolerates)
    fleet.objects.pod("notebook", node="kept")
    fleet.set("act", nodes=10)
    for name in names:
        fleet.nodes[name].xid(0, 48)
    evicted, there = fleet.directory / "evicted", fleet.directory / "there"
    fleet.before["Keep who was moved, and who stays"] = (
        f'[ "$HOST" != late ] || {{ touch {evicted}; until [ -e {there} ]; do sleep .2; done; }}'
    )

    def come():
        wait_until(evicted.exists, "the pods of late are evicted", 120)
        fleet.objects.api.patch("Deployment", "late", {"spec": {"replicas": 1}})
        fleet.objects.wait_for_pods("late", 1)
        there.touch()

    with fleet.kubelet(), beside(come):
        run = fleet.remediate(alert_file=fleet.together(*(fleet.alert(name, 0, 48) for name in names)))

    assert run.ok, run.output
    found = {one["node"]: one for one in fleet.incidents()}
    assert {name: found[name]["state"] for name in names} == {
        "back": "quarantined_overdue", "late": "quarantined_overdue", "kept": "held_for_human",
    }, run.output  # fmt: skip
    stages = {name: found[name]["stages"] for name in names}
    assert {name: stages[name]["evict"]["outcome"] for name in names} == {"back": "failed", "late": "ok", "kept": "ok"}
    for name, who in zip(names, ("back-", "late-", "notebook")):
        assert f"default/{who}" in found[name]["reason"]
        assert fleet.objects.taints(name) == [TAINT]
    assert stages["late"]["verify"]["error_kind"] == "evict_incomplete"
    assert "tolerates the node's taints" in found["late"]["reason"]
    assert [pod["name"].partition("-")[0] for pod in stages["late"]["verify"]["data"]["left"]] == ["late"]
    assert all(stages[name][stage]["seconds"] < 40 for name in names for stage in ("evict", "verify"))  # of 240 and 60


CLOSED = {
    "ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1,
    "ansible_ssh_common_args": "-o ConnectTimeout=2 -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null",
}  # fmt: skip


def test_silent_nodes(fleet):
    """S12: what the policy is certain of is done blind, by its row; two silent nodes are the controller's trouble."""
    fleet.gpu_nodes("lost", "sick", **CLOSED)
    for name in ("lost", "sick"):
        fleet.objects.deployment(name, node=name)
    fleet.set("act")
    lost, sick = fleet.alert("lost", 0, 79), fleet.alert("sick", 0, 48)

    for run in side_by_side(lambda: fleet.remediate(alert_file=lost), lambda: fleet.remediate(alert_file=sick)):
        assert run.ok, run.output

    assert [fleet.objects.taints(name) for name in ("lost", "sick")] == [[TAINT], [TAINT]]
    assert {entry.name.partition("-")[0] for entry in fleet.writes("pods/eviction")} == {"lost"}, "only Xid 79 is evict_blind"
    assert fleet.ended() == {
        ("lost", fleet.uuid("lost", 0)): "quarantined_overdue",  # nobody could prove that the GPU is free
        ("sick", fleet.uuid("sick", 0)): "held_for_human",  # whether to move the work
    }

    since = audit.now()
    both = fleet.remediate(alert_file=fleet.together(fleet.alert("lost", 1, 74), fleet.alert("sick", 1, 74)))
    assert both.ok, both.output
    assert {entry.resource for entry in fleet.writes(since=since)} == {"leases"}, "the locks, under which the incidents ended"
    new = fleet.incidents()[2:]
    assert sorted(one["kind"] for one in new) == ["fault", "fault", "group"]
    assert {one["state"] for one in new} == {"held_for_human"}
    assert {tuple(one["nodes"]) for one in new if one["kind"] == "group"} == {("lost", "sick")}


def test_disks_on_which_no_lock_can_be_kept(fleet):
    """S5, S12, S16: under the Lease, a node that answers is dealt with like one that does not, since no module could keep the lock there."""
    for name, xid in (("lost", 79), ("sick", 48)):
        fleet.gpu_nodes(name)
        fleet.objects.deployment(name, node=name)
        Path(fleet.host_variables[name]["gpuops_state_dir"], ".lock.json.new").mkdir(parents=True)
        fleet.nodes[name].xid(0, xid)
    fleet.set("act")
    run = fleet.remediate(alert_file=fleet.together(fleet.alert("lost", 0, 79), fleet.alert("sick", 0, 48)))
    assert run.ok, run.output
    assert [fleet.objects.taints(name) for name in ("lost", "sick")] == [[TAINT], [TAINT]]
    assert {entry.name.partition("-")[0] for entry in fleet.writes("pods/eviction")} == {"lost"}, "only Xid 79 is evict_blind"
    assert fleet.ended() == {
        ("lost", fleet.uuid("lost", 0)): "contained",  # to look is all that is asked of the node, and it shows that the GPU is free
        ("sick", fleet.uuid("sick", 0)): "held_for_human",  # whether to move the work
    }
    for incident in fleet.incidents():
        assert "cannot write" in " ".join(incident["verdict"]["reasons"])
        assert [one["topic"] for one in incident["notifications"]] == [incident["state"]]
    assert fleet.ledger().overview()["locks"] == []


def test_fences_of_silent_nodes(fleet):
    """S12: what was fenced before anybody knocked stays fenced, and says so; once the nodes answer, a diagnosis confirms or lifts it."""
    names = ("lost", "well")
    fleet.gpu_nodes(*names, **CLOSED)
    fleet.set("act")
    run = fleet.remediate(alert_file=fleet.together(*(fleet.alert(name, 0, 79) for name in names)))

    assert run.ok, run.output
    held = {one["node"]: one for one in fleet.incidents() if one["kind"] == "fault"}
    for name in names:
        assert (held[name]["state"], fleet.objects.taints(name)) == ("held_for_human", [TAINT])
        assert f"look at the controller first; node/{name}/taint/gpu.unhealthy:NoSchedule stands" in held[name]["reason"]
        assert held[name]["next_command"].endswith(f"-e gpuops_incident_id={held[name]['id']} -e gpuops_anew=true")
    assert fleet.writes("pods/eviction") == []

    for name in names:
        fleet.host_variables[name] = {}
    fleet.nodes["lost"].xid(0, 79)
    fleet.nodes["lost"].lost(0)
    for run in side_by_side(*(lambda name=name: fleet.remediate(incident_id=held[name]["id"], anew=True) for name in names)):
        assert run.ok, run.output
    assert {one["node"]: one["state"] for one in fleet.incidents() if one["kind"] == "fault"} == {
        "lost": "contained",
        "well": "fence_lifted",
    }
    assert [fleet.objects.taints(name) for name in names] == [[TAINT], []]
