# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""S19: an operator goes on without the ledger, for one node, and nothing of it is lost."""

from __future__ import annotations

import contextlib
import json
import time
from datetime import timedelta

import pytest
from fleet import TAINT
from loop import Controller, alive

pytestmark = pytest.mark.timeout(900)
MIB = 1 << 20
KILLED = -9
LEASE_SECONDS = 30
GLASS = {"break_glass": True, "who": "jane", "why": "the database is down"}


@pytest.fixture
def controller(tmp_path):
    with Controller(tmp_path / "controller") as made:
        made.variables["gpuops_break_glass_dir"] = str(made.directory / "glass")
        yield made


@contextlib.contextmanager
def away(controller):
    """No ledger meanwhile."""
    ledger = controller.directory / "ledger.db"
    ledger.rename(aside := ledger.with_name("aside"))
    ledger.mkdir()
    try:
        yield
    finally:
        ledger.rmdir()
        aside.rename(ledger)


def test_breaking_the_glass(controller, tmp_path):
    """S19: without the ledger nothing is changed; with an operator's word one node is, and the ledger takes it over with all that belongs to it."""
    node = controller.node("bare-1", gpus=4)
    pid = node.start([3], "train", 40_000 * MIB)
    node.xid(3, 48)
    sick = {"node": "bare-1", "gpu": controller.uuid("bare-1", 3)}
    told = tmp_path / "told"
    tell = {"notify_command": ["tee", "-a", str(told)]}

    controller.before = {"Begin isolate": "kill -KILL 0"}
    whole = controller.remediate(**sick, **GLASS)
    assert whole.status == KILLED and "the glass stays whole" in whole.output, whole.output
    [known] = controller.incidents()
    assert (known["state"], known["mode"]) == ("running", "observe"), "the ledger's mode holds"
    controller.before = {}

    with away(controller):
        for refused in ({}, {**GLASS, "alert_file": str(controller.alert("bare-1", 3, 48))}, {"break_glass": True}):
            run = controller.remediate(**sick, **refused)
            assert not run.ok and ("for one node, by somebody, for a reason" if refused else "nothing is changed") in run.output, run.output
        assert alive(pid) and controller.journal("bare-1") == []
        assert not (controller.directory / "glass").exists()

        controller.before = {"End them": "kill -KILL 0"}
        assert controller.remediate(**sick, **GLASS).status == KILLED
        controller.before = {}
        status = controller.play("status")
        assert not status.ok and f"sqlite:///{controller.directory}/glass/bare-1.db" in status.output, status.output
        broken = controller.remediate(**sick, **GLASS, **tell)
        assert broken.ok and not alive(pid), broken.output
        assert "once the ledger is back, run reconcile" in broken.output
        assert "the glass was broken by jane (the database is down): " in controller.journal("bare-1")[-1]["why"]
        assert [path.name for path in (controller.directory / "glass").glob("*.db")] == ["bare-1.db"]

    taken = controller.play("reconcile", **tell)
    assert taken.ok, taken.output
    incidents = {one["state"]: one for one in controller.incidents()}
    assert incidents.keys() == {"no_action", "contained"} and incidents["no_action"]["id"] == known["id"]
    incident = incidents["contained"]
    assert [(one["stage"], one["outcome"]) for one in incident["timeline"]] == [
        ("detect", "ok"),
        ("diagnose", "ok"),
        ("isolate", "ok"),
        ("taint", "skipped"),
        ("evict", "skipped"),
        ("verify", "ok"),
    ]
    [change] = incident["changes"]
    assert (change["status"], change["owners"], change["before"]["cgroups"][0]["holders"]) == ("applied", [incident["id"]], [pid])
    assert list((controller.directory / "glass").iterdir()) == []
    ledger = controller.ledger()
    assert (ledger.mode(), [slot.node for slot in slots(ledger)]) == ("observe", ["bare-1"])

    idle = controller.play("reconcile", **tell)
    assert idle.ok and idle.changed("localhost") == 0, idle.output
    topics = [(one["topic"], one["incident_id"]) for one in map(json.loads, told.read_text().replace("}{", "}\n{").splitlines())]
    assert sorted(topic for topic, about in topics if about == incident["id"]) == ["contained", "glass_broken"], "once"

    node.reset(3)
    released = controller.play("release", incident_id=incident["id"])
    assert released.ok, released.output
    assert {one["state"] for one in controller.incidents()} == {"no_action", "released"}


def test_dies_behind_the_broken_glass(controller):
    """S5, S9, S19: between a write and its commit; the ledger takes it over once nobody is at work, and goes on where it stopped."""
    node = controller.node("bare-1", gpus=4)
    pid = node.start([3], "train", 40_000 * MIB)
    node.xid(3, 48)
    controller.ledger(write=True).set_mode("act", "tests", "the test needs it")
    with away(controller):
        controller.before = {"Keep what was read back": "kill -KILL 0"}
        assert controller.remediate(node="bare-1", gpu=controller.uuid("bare-1", 3), **GLASS).status == KILLED
        controller.before = {}
    assert not alive(pid)
    early = controller.play("reconcile")
    assert early.ok and "is at work on node bare-1" in early.output and controller.incidents() == [], early.output

    time.sleep(LEASE_SECONDS)
    run = controller.play("reconcile")
    assert run.ok, run.output
    [incident] = controller.incidents()
    assert (incident["state"], incident["mode"]) == ("contained", "act"), incident["reason"]
    assert [change["status"] for change in incident["changes"]] == ["applied"]
    assert [cgroup["holders"] for cgroup in incident["changes"][0]["before"]["cgroups"]] == [[pid]]
    assert list((controller.directory / "glass").iterdir()) == []


def test_on_kubernetes(fleet):
    """S5, S8, S19: the Lease guards, the taint takes the slot, and is taken off by the ledger that heard of it later."""
    fleet.variables["gpuops_break_glass_dir"] = str(fleet.directory / "glass")
    [node] = fleet.gpu_nodes("gpu-1")
    fleet.objects.deployment("infer", 1)
    fleet.gpu_nodes("gpu-2")
    fleet.set("fence")
    with fleet.kubelet():
        node.xid(0, 79)
        node.lost(0)
        with away(fleet):
            broken = fleet.remediate(node="gpu-1", gpu=0, **GLASS)
        assert broken.ok and fleet.objects.pods_on("gpu-1") == [], broken.output
        assert TAINT in fleet.objects.taints("gpu-1") and "leases" in [entry.resource for entry in fleet.writes()]
        node.reboot()
        assert fleet.play("reconcile").ok
        [incident] = fleet.incidents()
        assert (incident["state"], fleet.incidents_on("gpu-1")) == ("contained", [incident["id"]])
        assert [slot.node for slot in slots(fleet.ledger())] == ["gpu-1"]
        released = fleet.play("release", incident_id=incident["id"])
    assert released.ok and fleet.objects.taints("gpu-1") == [], released.output


def slots(ledger):
    with ledger.read() as connection:
        return ledger._slots(connection, ledger.now() - timedelta(hours=1))
