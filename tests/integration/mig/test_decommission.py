# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""One instance is taken out of use, with whoever is in it; its neighbour does not notice."""

from __future__ import annotations

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.requests import Place, from_operator
from cluster import audit
from cluster.objects import wait_until
from gpusim import instances
from loop import alive, reachable_until

pytestmark = pytest.mark.timeout(600)
GB = 1 << 30


def halves(node):
    """Two instances on its first GPU; their numbers."""
    instances.set_mode(node, 0, True)
    return [instances.create(node, 0, "3g.71gb", start) for start in (0, 4)]


def test_one_that_ignores_sigterm(controller):
    """S9, S10: written ahead, ended after its time, and the instance gone within the deadline."""
    node = controller.node("bare-1", gpus=1)
    lower, upper = halves(node)
    stubborn = node.start([0], "train", 8 * GB, ends="late:600", gi=upper, ci=0)
    neighbour = node.start([0], "infer", 8 * GB, gi=lower, ci=0)
    ledger = controller.ledger(write=True)
    incident = ledger.open_incident(from_operator(Place("bare-1", "bare-1"), controller.uuid("bare-1", 0), ledger.now())).record["id"]
    asked = {
        "mig_hosts": "bare-1",
        "mig_instance": {"gpu": controller.uuid("bare-1", 0), "profile": "3g.71gb", "start": 4},
        "mig_instance_seconds": 36,
        "incident_id": incident,
        "why": "its memory is broken",
    }
    ledger.configure("observe", None, False, "tests", "the test needs it")
    forbidden = controller.play("mig_decommission", **asked)
    assert not forbidden.ok and "observe" in forbidden.output and alive(stubborn), forbidden.output
    ledger.configure("act", None, False, "tests", "the test needs it")
    foretold = controller.play("mig_decommission", "--check", "--diff", **asked)
    assert foretold.ok and alive(stubborn) and controller.incidents()[0]["changes"] == [], foretold.output

    run = controller.play("mig_decommission", **asked)

    assert run.ok, run.output
    assert (alive(stubborn), alive(neighbour)) == (False, True)
    assert [one["start"] for one in node.state()["gpus"][0]["mig"]["instances"]] == [0]
    [change] = controller.incidents()[0]["changes"]
    assert change["target"].endswith("/mig/3g.71gb@4") and change["status"] == "applied"
    assert [[one["name"] for one in change[when]["instances"]] for when in ("before", "after")] == [
        ["3g.71gb@0", "3g.71gb@4"],
        ["3g.71gb@0"],
    ]
    done = [(line["action"], line["status"]) for line in controller.journal("bare-1")]
    assert [action for action, status in done if status == "intended"] == [action for action, status in done if status == "applied"]
    assert [action for action, status in done if status == "applied"][-2:] == ["destroy_compute_instance", "destroy_gpu_instance"]
    assert {line["incident_id"] for line in controller.journal("bare-1")} == {incident}
    again = controller.play("mig_decommission", **asked)
    assert again.ok and again.changed("bare-1") == 0, again.output


def test_what_was_read_back_is_recorded_where_it_fails(controller):
    """S9: a driver that refuses to destroy the instance, of which the compute instance is made again."""
    node = controller.node("bare-1", gpus=1)
    halves(node)
    ledger = controller.ledger(write=True)
    incident = ledger.open_incident(from_operator(Place("bare-1", "bare-1"), controller.uuid("bare-1", 0), ledger.now())).record["id"]
    node.fail("nvmlGpuInstanceDestroy", "UNKNOWN", times=None)
    instance = {"gpu": controller.uuid("bare-1", 0), "profile": "3g.71gb", "start": 4}
    run = controller.play("mig_decommission", mig_hosts="bare-1", mig_instance=instance, incident_id=incident)
    assert not run.ok and "nvmlGpuInstanceDestroy" in run.output, run.output
    [change] = controller.incidents()[0]["changes"]
    assert change["status"] == "applied" and [one["name"] for one in change["after"]["instances"]] == ["3g.71gb@0", "3g.71gb@4"]


def test_a_pod_goes_by_eviction(fleet):
    [node] = fleet.gpu_nodes("gpu-1", gpus=1)
    halves(node)
    with fleet.kubelet():
        fleet.device_plugin()
        wait_until(lambda: fleet.advertised("gpu-1") == {"mig-3g.71gb": 2}, "the plugin's word")
        fleet.objects.deployment("infer", devices={"nvidia.com/mig-3g.71gb": 1})
        [record] = wait_until(
            lambda: [pod for pod in node.state()["pods"].values() if pod["name"].startswith("infer")], "the pod's process"
        )
        [process] = node.state()["processes"]
        start = next(one["start"] for one in node.state()["gpus"][0]["mig"]["instances"] if one["id"] == process["gi"])
        since = audit.now()

        run = fleet.play(
            "mig_decommission", mig_hosts="gpu-1", mig_instance={"gpu": fleet.uuid("gpu-1", 0), "profile": "3g.71gb", "start": start}
        )

        assert run.ok, run.output
        assert [entry.code for entry in fleet.writes("pods/eviction", since=since)] == [201]
        assert fleet.layout("gpu-1", 0) == [f"3g.71gb@{4 - start}"] and not alive(record["pid"])
        assert (fleet.advertised("gpu-1"), fleet.objects.taints("gpu-1")) == ({"mig-3g.71gb": 1}, [])

        since = audit.now()
        last = fleet.play(
            "mig_decommission", mig_hosts="gpu-1", mig_instance={"gpu": fleet.uuid("gpu-1", 0), "profile": "3g.71gb", "start": 4 - start}
        )
        assert "it has the last MIG device of its GPU" in last.failures[-1] and fleet.writes(since=since) == [], last.output
        assert (fleet.layout("gpu-1", 0), fleet.advertised("gpu-1")) == ([f"3g.71gb@{4 - start}"], {"mig-3g.71gb": 1})


def test_a_node_that_leaves_on_the_way(fleet, tmp_path):
    """S9, S16: the lock is given back, the taint and the ledger's record stay, and people are told; the next run ends it."""
    [node] = fleet.gpu_nodes("gpu-1", gpus=1)
    halves(node)
    ledger = fleet.ledger(write=True)
    uid = fleet.objects.node("gpu-1")["metadata"]["uid"]
    incident = ledger.open_incident(from_operator(Place("gpu-1", uid), fleet.uuid("gpu-1", 0), ledger.now())).record["id"]
    instance = {"gpu": fleet.uuid("gpu-1", 0), "profile": "3g.71gb", "start": 4}
    asked = {"mig_hosts": "gpu-1", "mig_instance": instance, "incident_id": incident}
    reachable_until(fleet, "gpu-1", tmp_path / "gone")
    with fleet.kubelet():
        fleet.device_plugin()
        wait_until(lambda: fleet.advertised("gpu-1") == {"mig-3g.71gb": 2}, "the plugin's word")
        fleet.before = {"Take the instance away": f"touch {tmp_path / 'gone'}"}
        left = fleet.play("mig_decommission", **asked)

        told = left.failures[-1]
        assert "gpu-1 cannot be reached any more" in told and "so the taint gpuops.remediation/mig-change stays" in told, left.output
        assert "the ledger has it as intended until this is run again" in told
        assert not fleet.objects.api.get("Lease", "gpuops-gpu-1", "gpuops-system")["spec"].get("holderIdentity")
        assert len(fleet.objects.taints("gpu-1")) == 1
        assert [(one["target"].split("/")[2], one["status"]) for one in fleet.incidents()[0]["changes"]] == [
            ("gpu", "intended"),
            ("taint", "applied"),
        ]

        fleet.before = {}
        (tmp_path / "gone").unlink()
        again = fleet.play("mig_decommission", **asked)
        assert again.ok and (fleet.layout("gpu-1", 0), fleet.objects.taints("gpu-1")) == (["3g.71gb@0"], []), again.output
        assert [one["status"] for one in fleet.incidents()[0]["changes"]] == ["applied", "reverted"]
