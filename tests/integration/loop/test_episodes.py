# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The same node, GPU or alert again, after an incident of it has ended."""

from __future__ import annotations

import datetime as dt

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.requests import from_group
from fleet import TAINT
from loop import Controller, alive, reachable_until

pytestmark = pytest.mark.timeout(900)
MIB = 1 << 20
KILLED = -9


@pytest.fixture
def controller(tmp_path):
    with Controller(tmp_path / "controller") as made:
        made.ledger(write=True).set_mode("act", "tests", "the test needs it")
        yield made


def test_a_bare_host_again(controller, tmp_path):
    """S12, S16: a newly sick GPU has an incident of its own; what was contained stays so while its node is off, and is no swallower after."""
    node = controller.node("bare-1", gpus=4)
    reachable_until(controller, "bare-1", tmp_path / "down")
    node.xid(3, 48)
    node.row_remap(3, failure=True)
    first = controller.remediate(node="bare-1", reconcile="false")
    assert first.ok, first.output
    [old] = controller.incidents()
    assert (old["state"], old["gpu"]) == ("contained", controller.uuid("bare-1", 3)), first.output

    pid = node.start([1], "train", 40_000 * MIB)
    node.xid(1, 48)
    node.row_remap(1, failure=True)
    second = controller.remediate(node="bare-1")
    assert second.ok, second.output
    found = {one["gpu"]: one for one in controller.incidents() if one["state"] != "no_action"}
    assert set(found) == {controller.uuid("bare-1", gpu) for gpu in (1, 3)}
    assert {one["state"] for one in found.values()} == {"contained"}, second.output
    again = found[old["gpu"]]
    assert (again["id"], again["verdict"], again["changes"]) == (old["id"], old["verdict"], old["changes"])
    assert again["stages"]["verify"]["attempts"] == 2
    assert not alive(pid)

    (tmp_path / "down").touch()
    group = controller.ledger(write=True).open_incident(
        from_group("controller", "here", ["bare-1", "bare-2"], "unknown", dt.datetime.now(dt.timezone.utc))
    )
    off = controller.remediate(node="bare-1", gpu=old["gpu"])
    assert off.ok, off.output
    [still] = [one for one in controller.incidents() if one["id"] == old["id"]]
    assert (still["state"], still["stages"]["verify"]["error_kind"]) == ("contained", "node_silent"), off.output
    assert "Not seen again since" in still["reason"] and "the node does not answer" in still["reason"]
    assert [one["topic"] for one in still["notifications"]] == ["contained", "contained"]

    reconciled = controller.play("reconcile")
    assert reconciled.ok, reconciled.output
    [ended] = [one for one in controller.incidents() if one["id"] == group.record["id"]]
    assert ended["state"] == "held_for_human" and "look at the controller first" in ended["reason"]


def test_no_time_for_a_diagnosis(fleet):
    """S16, S17: the alert alone taints where the policy is certain of it; the next episode is looked at, and lifts no quarantine."""
    fleet.gpu_nodes("lost", "link")
    fleet.set("act")
    lost, link = fleet.alert("lost", 0, 79), fleet.alert("link", 0, 74)
    fleet.before["Fence"] = "kill -KILL 0"
    assert fleet.remediate(alert_file=fleet.together(lost, link)).status == KILLED
    fleet.before.clear()
    late = fleet.remediate(alert_file=fleet.together(lost, link), limits={"diagnose_seconds": 0})

    assert late.ok, late.output
    found = {one["node"]: one for one in fleet.incidents()}
    assert (fleet.objects.taints("lost"), fleet.objects.taints("link")) == ([TAINT], [])
    assert found["lost"]["state"] == "quarantined_overdue", late.output
    assert "the alert alone stands in" in found["lost"]["reason"]
    assert (found["link"]["state"], found["link"]["reason"]) == ("held_for_human", "no verdict: no time was left")

    for name in ("lost", "link"):
        again = fleet.remediate(node=name, gpu=fleet.uuid(name, 0))
        assert again.ok, again.output
    after = {one["node"]: one for one in fleet.incidents()}
    assert {name: one["id"] for name, one in after.items()} == {name: one["id"] for name, one in found.items()}
    assert (after["link"]["state"], after["link"]["round"]) == ("no_action", 2)
    assert (after["lost"]["state"], after["lost"]["round"]) == ("held_for_human", 2)
    assert "only release.yml lifts it" in after["lost"]["reason"]
    assert fleet.objects.taints("lost") == [TAINT]


def test_a_lock_that_cannot_be_kept(fleet, tmp_path):
    """S5: the trouble is kept with the incident whose stage it was, not with the one before it, whose stage was over already."""
    [node] = fleet.gpu_nodes("gpu-1")
    fleet.set("act")
    kubeconfig, away = tmp_path / "kubeconfig", tmp_path / "away"
    kubeconfig.write_text(fleet.cluster.kubeconfig.read_text())
    fleet.variables["gpuops_kubeconfig"] = str(kubeconfig)
    for gpu in (0, 1):
        node.xid(gpu, 48)
    alerts = [fleet.alert("gpu-1", gpu, 48) for gpu in (0, 1)]
    first = fleet.remediate(alert_file=alerts[0])
    assert first.ok, first.output

    # What is contained already comes last: the new one's diagnosis, the old one's, which is over, and then what the new one needs next
    times = f"echo >> {tmp_path}/times; [ $(wc -l < {tmp_path}/times) != 3 ]"
    fleet.before = {"Keep the lock": f"{times} || mv {kubeconfig} {away}", "Keep that it failed": f"mv {away} {kubeconfig}"}
    second = fleet.remediate(alert_file=fleet.together(*alerts))

    assert second.ok, second.output
    old, new = fleet.incidents()
    assert (old["state"], old["stages"]["diagnose"]["outcome"], old["stages"]["verify"]["attempts"]) == ("contained", "ok", 2)
    isolated = new["stages"]["isolate"]
    assert (isolated["outcome"], isolated["error_kind"]) == ("failed", "bad_connection"), second.output
    assert (new["state"], new["gpu"]) == ("held_for_human", fleet.uuid("gpu-1", 1))
    assert new["reason"].startswith("isolate failed: no Kubernetes connection")
    assert sorted(fleet.incidents_on("gpu-1")) == sorted([old["id"], new["id"]])
