# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""One fault of many nodes, through the playbooks."""

from __future__ import annotations

import pytest
from loop import Controller, alive

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
