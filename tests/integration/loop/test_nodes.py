# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bare hosts whose driver, processes or network do not play along: each incident ends in time, in a named state, with nobody hurt."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from loop import REPOSITORY, Controller, reachable_until
from ports import free_port

pytestmark = pytest.mark.timeout(900)
MIB = 1 << 20
QUICK = {"read_seconds": 6, "grace_seconds": 2, "limits": {"isolate_seconds": 20, "verify_seconds": 6}}


@pytest.fixture
def controller(tmp_path):
    with Controller(tmp_path / "controller") as made:
        made.ledger(write=True).set_mode("act", "tests", "the test needs it")
        yield made


class Troubles:
    """Nodes, their holders and what their alerts say."""

    def __init__(self, controller):
        self.controller, self.holders, self.alerts = controller, {}, []

    def add(self, name, xid=48, gpu=0, where=None, **process):
        """A fault of a GPU that has a holder; `name` is the node too, unless it is `where`."""
        node = self.controller.nodes.get(where or name) or self.controller.node(where or name, gpus=5)
        self.holders[name] = node.start([gpu], name, 40_000 * MIB, **process)
        node.xid(gpu, xid)
        self.alerts.append(self.controller.alert(where or name, gpu, xid))
        return node

    def alive(self):
        return {name for name, pid in self.holders.items() if Path(f"/proc/{pid}").exists()}

    def remediate(self):
        run = self.controller.remediate(alert_file=str(self.controller.together(*self.alerts)), **QUICK)
        assert run.ok, run.output
        return {(one["node"], one["gpu"]): one for one in self.controller.incidents()}


def unreachable(controller, name):
    """SSH to a port where nobody listens."""
    controller.host_variables[name].update(
        ansible_connection="ssh", ansible_host="127.0.0.1", ansible_port=free_port(), ansible_ssh_common_args="-o ConnectTimeout=2"
    )


def test_each_trouble_by_itself(controller, tmp_path):
    """S10, S12, S16: five nodes in one run, one of them with five sick GPUs; each incident has a trouble of its own."""
    troubles = Troubles(controller)
    troubles.add("hangs", xid=119).hang("all", None)
    troubles.add("unloaded").driver_not_loaded()
    troubles.add("silent")
    unreachable(controller, "silent")
    troubles.add("fades")
    reachable_until(controller, "fades", tmp_path / "down")
    busy = troubles.add("early", gpu=0, where="busy")
    troubles.add("slice", gpu=1, where="busy", cgroup="system.slice")
    troubles.add("mps", gpu=2, where="busy", kind="mps")
    busy.start([2], "nvidia-cuda-mps-server", 100 * MIB)
    troubles.add("stubborn", gpu=3, where="busy", ends="never")
    troubles.add("lost", gpu=4, where="busy", xid=79).lost(4)
    files = REPOSITORY / "roles/simulated_gpu_node/files"
    late = f"{sys.executable} -m gpusim --root {busy.root} process busy start --gpu 0 --name late --memory-mib 100"
    controller.before = {
        "See what there is to end, with proof": f"[ $HOST != busy ] || [ -e {busy.path}/bin/late ] || PYTHONPATH={files} {late}",
        "End them": f"[ $HOST != fades ] || touch {tmp_path}/down",
    }

    incidents = troubles.remediate()

    ended = {node: incident["state"] for (node, _gpu), incident in incidents.items() if node != "busy"}
    assert ended == dict.fromkeys(["hangs", "unloaded", "silent", "fades"], "held_for_human")
    by_gpu = [incidents["busy", controller.uuid("busy", gpu)] for gpu in range(5)]
    assert [incident["state"] for incident in by_gpu] == [*["held_for_human"] * 4, "contained"]
    assert troubles.alive() == {*troubles.holders} - {"lost"}
    for incident in incidents.values():
        assert incident["budget"]["within"] and len(incident["notifications"]) == 1

    why = {incident["gpu"]: incident["reason"] for incident in incidents.values()}
    assert f"its device file is open in pid {troubles.holders['hangs']} (hangs)" in why["-"]
    assert f"its device file is open in pid {troubles.holders['unloaded']} (unloaded)" in why[controller.uuid("unloaded", 0)]
    for name in ("silent", "fades"):
        assert "the node does not answer" in why[controller.uuid(name, 0)]
    for gpu, words in enumerate(
        ["(late) started after", "neither one container's nor one unit's", "an MPS server is in use", "not killed in time"]
    ):
        assert words in by_gpu[gpu]["reason"]
    suspects = by_gpu[2]["stages"]["isolate"]["data"]["suspects"]
    assert {one["name"] for one in suspects} == {"mps", "nvidia-cuda-mps"}
    assert f"{troubles.holders['stubborn']} (stubborn)" in by_gpu[3]["reason"]

    assert {entry["target"].rpartition("/")[2] for entry in controller.journal("busy")} == {"stubborn.service", "lost.service"}
    for name in ("hangs", "unloaded", "silent", "fades"):
        assert controller.journal(name) == []
    [change] = incidents["fades", controller.uuid("fades", 0)]["changes"]
    assert change["status"] == "intended"  # written ahead, and nobody knows


def test_silence_is_not_a_verdict(controller):
    """S12: one silent node waits for a person unless the policy is certain; several at once are the controller's trouble first."""
    troubles = Troubles(controller)
    troubles.add("silent-1", xid=31)
    unreachable(controller, "silent-1")
    [alone] = troubles.remediate().values()
    assert (alone["state"], alone["verdict"]["action"], alone["changes"]) == ("held_for_human", "hold", [])

    troubles.alerts.clear()
    for name in ("silent-2", "silent-3"):
        troubles.add(name)
        unreachable(controller, name)
    troubles.add("answers")
    incidents = {node: incident for (node, _gpu), incident in troubles.remediate().items()}

    assert incidents.pop("answers")["state"] == "contained"
    assert incidents.pop("silent-1")["timeline"] == alone["timeline"]
    [group] = [incident for incident in incidents.values() if incident["kind"] == "group"]
    assert group["nodes"] == ["silent-2", "silent-3"]
    assert {incident["state"] for incident in incidents.values()} == {"held_for_human"}
    assert all("look at the controller first" in incident["reason"] and not incident["changes"] for incident in incidents.values())
    assert troubles.alive() == {"silent-1", "silent-2", "silent-3"}


def test_a_silent_node_that_another_run_works_on(controller):
    """S5, S12: of several silent nodes it is left to that run; it counts, and the others are people's."""
    troubles = Troubles(controller)
    for name in ("silent-1", "silent-2"):
        troubles.add(name)
        unreachable(controller, name)
    ledger = controller.ledger(write=True)
    token = ledger.take_lock("silent-1", "another", lease_seconds=600)
    incidents = {node: incident for (node, _gpu), incident in troubles.remediate().items()}
    assert {node: one["state"] for node, one in incidents.items() if one["kind"] == "fault"} == {
        "silent-1": "running",
        "silent-2": "held_for_human",
    }
    assert [one["nodes"] for one in incidents.values() if one["kind"] == "group"] == [["silent-1", "silent-2"]]
    assert [(lock["node"], lock["token"]) for lock in ledger.locks()] == [("silent-1", token)], "and no lock is kept"
