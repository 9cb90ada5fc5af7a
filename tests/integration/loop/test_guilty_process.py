# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A policy whose rows end the process that an Xid names. The shipped one has no such row."""

from __future__ import annotations

import sys
from pathlib import Path

import gpusim
import pytest
import yaml
from gpu_evidence import POLICY_FILE
from loop import Controller, alive

pytestmark = pytest.mark.timeout(600)
MIB = 1 << 20
ACTIONS = {13: "kill", 31: "freeze"}


@pytest.fixture
def controller(tmp_path):
    with Controller(tmp_path / "controller") as made:
        made.ledger(write=True).set_mode("act", "tests", "the test needs it")
        yield made


def policy(directory):
    """A copy whose rows of these Xids say so."""
    raw = yaml.safe_load(POLICY_FILE.read_text())
    for row in raw["xids"]:
        for code in set(row["codes"]) & set(ACTIONS):
            row["decision"]["action"] = ACTIONS[code]
    (directory / "xid_policy.schema.json").write_bytes(POLICY_FILE.with_name("xid_policy.schema.json").read_bytes())
    path = directory / "policy.yml"
    path.write_text(yaml.safe_dump(raw))
    return path


def test_killed_frozen_and_thawed(controller, tmp_path):
    """S10: the suspect's cgroup and nobody else's; a freeze ends in a kill or, where the proof is gone by then, in a thaw."""
    codes = {"killed": 13, "frozen": 31, "thawed": 31}
    guilty, innocent, alerts = {}, {}, []
    for name, code in codes.items():
        node = controller.node(name, gpus=2)
        guilty[name] = node.start([0], "guilty", MIB)
        innocent[name] = [node.start([0], "beside", MIB), node.start([1], "elsewhere", MIB)]
        node.xid(0, code, pid=guilty[name], name="guilty")
        alerts.append(controller.alert(name, 0, code))
    controller.host_variables["thawed"]["gpuops_limits"] = {"verify_seconds": 5}
    refuse = f"{sys.executable} -m gpusim --root {controller.directory}/nodes inject thawed no-permission nvmlDeviceGetComputeRunningProcesses_v3"
    controller.before["End them"] = f'[ "$HOST" != thawed ] || {{ cd {Path(gpusim.__file__).parents[1]} && {refuse}; }}'

    run = controller.remediate(alert_file=controller.together(*alerts), policy_file=policy(tmp_path))

    assert run.ok, run.output
    found = {one["node"]: one for one in controller.incidents()}
    assert {name: (one["verdict"]["action"], one["state"]) for name, one in found.items()} == {
        "killed": ("kill", "contained"),
        "frozen": ("freeze", "contained"),
        "thawed": ("freeze", "held_for_human"),
    }, run.output
    assert {name: alive(pid) for name, pid in guilty.items()} == {"killed": False, "frozen": False, "thawed": True}
    assert all(alive(pid) for pids in innocent.values() for pid in pids)
    done = {name: [entry["action"] for entry in controller.journal(name) if entry["status"] == "applied"] for name in codes}
    assert done == {"killed": ["terminate", "kill"], "frozen": ["freeze", "kill"], "thawed": ["freeze", "thaw"]}
    for name in ("killed", "frozen"):
        [change] = found[name]["changes"]
        assert (change["status"], found[name]["stages"]["verify"]["outcome"]) == ("applied", "ok")
        assert [cgroup["processes"] for cgroup in change["before"]["cgroups"]] == [[guilty[name]]]
    assert "NVML does not say who uses" in found["thawed"]["reason"]
    [cgroup] = [Path(one["cgroup_path"]) for one in controller.nodes["thawed"].state()["processes"] if one["pid"] == guilty["thawed"]]
    assert (cgroup / "cgroup.freeze").read_text() == "0\n"
