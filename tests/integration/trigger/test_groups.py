# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""One fault of many nodes, through the playbooks."""

from __future__ import annotations

import json
import time

import pytest
from loop import Controller, alive
from trigger import Source

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def controller(tmp_path):
    with Controller(tmp_path / "controller") as made:
        made.ledger(write=True).set_mode("act", "tests", "the test needs it")
        yield made


def test_a_crash_of_a_job_is_one_incident_of_the_job(controller):
    """The nodes are not even asked; one of them with a fault of its own is worked on beside it; a human's release closes the group's."""
    alerts, pids = [], []
    for name in ("bare-1", "bare-2", "bare-3"):
        node = controller.node(name, gpus=1, gpuops_groups={"job": "train-7"})
        pids.append(node.start([0], "train", 1 << 30))
        node.xid(0, 13)
        alerts.append(controller.alert(name, 0, 13))
    pid, broken = controller.sick("bare-4", gpuops_groups={"job": "train-7"})
    run = controller.remediate(alert_file=str(controller.together(*alerts, broken)))
    assert run.ok, run.output
    group, alone = sorted(controller.incidents(), key=lambda one: one["kind"] == "fault")
    assert (group["kind"], group["node"], group["nodes"]) == ("group", "train-7", ["bare-1", "bare-2", "bare-3"])
    assert (group["state"], group["domain"], group["changes"], group["timeline"]) == ("held_for_human", "application", [], [])
    assert (alone["node"], alone["state"]) == ("bare-4", "contained")
    assert all(alive(one) for one in pids) and not alive(pid)
    assert [controller.journal(name) for name in ("bare-1", "bare-2", "bare-3")] == [[]] * 3
    assert "train-7" in run.output and group["next_command"] in run.output
    released = controller.play("release", incident_id=group["id"])
    assert released.ok, released.output
    assert {one["id"]: one["state"] for one in controller.incidents()}[group["id"]] == "released"


def test_a_fault_of_a_rack_is_one_incident_of_the_rack(controller, tmp_path):
    """By the inventory and by a label. Three messages, one after the other, wait for each other in the event source and reach one run."""
    names = ("bare-1", "bare-2", "bare-3")
    for name in names[:2]:
        controller.node(name, gpus=1, gpuops_groups={"rack": "r12"})
    controller.node("bare-3", gpus=1)
    alerts = [controller.alert(name, 0, 74, **({"rack": "r12"} if name == "bare-3" else {})) for name in names]
    posted = []
    with Source(tmp_path, controller.ledger_url, correlation_seconds=8, window_seconds=0.1).running() as source:
        for alert in alerts:
            status, body = source.post(alert.read_bytes())
            assert status == 200 and source.events.empty(), body
            posted += json.loads(body)["inbox_ids"]
            time.sleep(1)
        assert source.events.get(timeout=60)["inbox_ids"] == posted
    run = controller.remediate(inbox_ids=posted)
    assert run.ok, run.output
    [group] = controller.incidents()
    assert (group["kind"], group["node"], group["nodes"], group["domain"]) == ("group", "r12", list(names), "nvlink")
    assert (group["state"], group["changes"]) == ("held_for_human", [])
    assert [controller.journal(name) for name in names] == [[]] * 3
