# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The playbooks on a real control plane, from the alert to the release; the API server's audit log says what was written."""

from __future__ import annotations

from pathlib import Path

from cluster import audit
from fleet import TAINT, side_by_side

XIDS = Path(__file__).resolve().parents[2] / "fixtures" / "xid"


def test_a_lost_gpu_from_alert_to_release(fleet):
    """S9, S11, S17: fenced at once, its pod moved as the budget allows, released after the reboot, and nothing of an admin's touched."""
    [node] = fleet.gpu_nodes("gpu-1")
    fleet.objects.deployment("infer", 2)
    fleet.objects.pdb("infer", min_available=1)
    fleet.gpu_nodes("gpu-2")
    fleet.objects.api.patch("Node", "gpu-1", {"metadata": {"labels": {"team": "vision"}}})
    fleet.objects.taint("gpu-1", "node.example/slow-disk", effect="PreferNoSchedule")
    fleet.set("act")
    with fleet.kubelet():
        [holder] = [record["name"] for record in node.state()["pods"].values() if record["gpus"] == [0]]
        node.xid(0, 79)
        node.lost(0)
        alert = fleet.alert("gpu-1", 0, 79)

        run = fleet.remediate(alert_file=alert)

        assert run.ok, run.output
        [incident] = fleet.incidents()
        assert (incident["state"], incident["gpu"]) == ("contained", fleet.uuid("gpu-1", 0)), run.output
        assert incident["budget"]["within"]
        assert TAINT in fleet.objects.taints("gpu-1") and fleet.incidents_on("gpu-1") == [incident["id"]]
        assert [entry.resource for entry in fleet.writes()][:2] == ["nodes", "leases"], "fenced before the diagnosis took the lock"
        assert len(fleet.writes("nodes")) == 1, "the diagnosis confirmed the fence"
        assert [[pod["metadata"]["labels"]["app"] for pod in fleet.objects.pods_on(name)] for name in ("gpu-1", "gpu-2")] == [["infer"]] * 2
        evicted = incident["stages"]["evict"]["data"]
        assert ([pod["name"] for pod in evicted["evicted"]], {each["to_node"] for each in evicted["moved"]}) == ([holder], {"gpu-2"})
        assert [entry.code for entry in fleet.writes("pods/eviction")].count(201) == 1

        since = audit.now()
        again = fleet.remediate(alert_file=alert)
        assert again.ok, again.output
        assert fleet.writes("nodes", "pods/eviction", since=since) == []
        assert [each["id"] for each in fleet.incidents()] == [incident["id"]]

        fleet.objects.cordon("gpu-1")
        refused = fleet.play("release", incident_id=incident["id"])
        assert not refused.ok and "is lost" in refused.output
        node.reboot()
        released = fleet.play("release", incident_id=incident["id"])
    assert released.ok, released.output
    assert fleet.incidents()[0]["state"] == "released"
    after = fleet.objects.node("gpu-1")
    assert fleet.incidents_on("gpu-1") == []
    assert after["metadata"]["labels"]["team"] == "vision"
    assert after["spec"]["unschedulable"]
    assert sorted(taint["key"] for taint in after["spec"]["taints"]) == ["node.example/slow-disk", "node.kubernetes.io/unschedulable"]


def test_what_the_node_says_decides(fleet):
    """A crash taints nothing (S14); a fence for nothing is lifted; an alert without a GPU is about every sick one, also after a kill."""
    crashed, _well, _two = fleet.gpu_nodes("crash", "well", "two", gpus=3)
    fleet.set("act")
    for line in (XIDS / "h200-580.kmsg").read_text().splitlines():
        crashed.log(line.partition("] ")[2].replace("0000:00:06", crashed.state()["gpus"][0]["pci_bus_id"][:-2]))
    for gpu in (1, 2):
        fleet.nodes["two"].xid(gpu, 48)
    fleet.objects.taint("well", "node.example/flaky")
    message = fleet.together(fleet.alert("crash", 0, 13), fleet.alert("well", 0, 79), fleet.alert("two", None, None))

    fleet.before["Open an incident for each further sick GPU, or find it"] = "kill -KILL 0"
    assert fleet.remediate(alert_file=message).status == -9
    fleet.before.clear()
    run = fleet.remediate(alert_file=message)

    assert run.ok, run.output
    assert fleet.ended() == {
        ("crash", fleet.uuid("crash", 0)): "no_action",
        ("well", fleet.uuid("well", 0)): "fence_lifted",
        ("two", fleet.uuid("two", 1)): "contained",
        ("two", fleet.uuid("two", 2)): "contained",
    }, run.output
    assert {name: fleet.objects.taints(name) for name in ("crash", "well")} == {"crash": [], "well": ["node.example/flaky=:NoSchedule"]}
    assert len(fleet.writes("nodes")) == 4, "well: fence and lift; two: a taint that both incidents want"
    assert sorted(fleet.incidents_on("two")) == sorted(each["id"] for each in fleet.incidents("two"))
    assert "Xid 13 (4 lines), Xid 31 (1 line)" in fleet.incidents("crash")[0]["reason"]


def test_the_breaker(fleet):
    """S8: of five nodes in one message three are tainted; the others are held, and diagnosed anew after the reset."""
    names = [f"gpu-{number}" for number in range(5)]
    nodes = fleet.gpu_nodes(*names, gpus=1)
    fleet.set("act")
    for node in nodes:
        node.xid(0, 48)

    run = fleet.remediate(alert_file=fleet.together(*(fleet.alert(name, 0, 48) for name in names)))

    tainted = [name for name in names if TAINT in fleet.objects.taints(name)]
    assert len(tainted) == len(fleet.writes("nodes")) == 3, run.output
    held = [name for name in names if name not in tainted]
    assert {one["node"]: one["state"] for one in fleet.incidents()} == {
        **dict.fromkeys(tainted, "contained"), **dict.fromkeys(held, "held_for_human"),
    }, run.output  # fmt: skip
    assert all("breaker has tripped" in one["reason"] for one in fleet.incidents() if one["node"] in held)

    nodes[names.index(held[0])].reboot()  # what was wrong there is over, so that a replay would be wrong
    reset = fleet.play("mode", breaker_reset=True, who="tests", why="the nodes have nothing in common")
    assert reset.ok, reset.output
    again = fleet.play("reconcile")
    assert again.ok, again.output
    assert {one["node"]: one["state"] for one in fleet.incidents() if one["node"] in held} == {held[0]: "no_action", held[1]: "contained"}
    assert sorted(name for name in names if TAINT in fleet.objects.taints(name)) == sorted([*tainted, held[1]])


def test_modes(fleet):
    """S4: a prediction and observing write nothing at all; fence only taints."""
    [node] = fleet.gpu_nodes("gpu-1")
    fleet.objects.deployment("infer")
    node.xid(0, 79)
    node.lost(0)
    alert = fleet.alert("gpu-1", 0, 79)
    ledger, none = fleet.directory / "ledger.db", fleet.directory / "none" / "ledger.db"
    fleet.set("act")
    before = ledger.read_bytes()

    new, predicted = side_by_side(
        lambda: fleet.remediate("--check", "--diff", alert_file=alert, ledger_url=f"sqlite:///{none}"),
        lambda: fleet.remediate("--check", "--diff", alert_file=alert),
    )
    assert (new.ok, predicted.ok) == (True, True), new.output + predicted.output
    assert not none.parent.exists()
    assert (ledger.read_bytes(), fleet.writes()) == (before, [])
    assert "gpu.unhealthy" in predicted.output and "default/infer-" in predicted.output, "what would be done"
    assert predicted.failures == []
    assert all("mode observe does not allow this" in failure for failure in new.failures)

    fleet.set("observe")
    watched = fleet.remediate(alert_file=alert)
    assert watched.ok, watched.output
    assert fleet.incidents()[0]["state"] == "no_action"
    assert fleet.writes() == [], "neither nodes nor Leases"

    fleet.set("fence")
    fenced = fleet.remediate(alert_file=alert)
    assert fenced.ok, fenced.output
    _watched, incident = fleet.incidents()
    assert (incident["state"], incident["stages"]["evict"]["outcome"]) == ("held_for_human", "due"), fenced.output
    assert fleet.objects.taints("gpu-1") == [TAINT]
    assert fleet.writes("pods/eviction") == [] and fleet.objects.pods_on("gpu-1")
