# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Expressions of the role `mig` that decide what is done and for how long."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from expressions import evaluated

ROLE = Path(__file__).resolve().parents[3] / "roles/mig"
DEFAULTS = yaml.safe_load((ROLE / "defaults/main.yml").read_text())
VARS = yaml.safe_load((ROLE / "vars/main.yml").read_text())
TIMES = {"mig_settle_seconds": 30, "mig_plugin_seconds": 180, "mig_busy_timeout_seconds": 60, "mig_timeout_seconds": 120}


@pytest.mark.parametrize(
    "how, seconds",
    [("layout", 30 + 180 + 60 + 300), ("instance", 30 + 180 + 60 + 120)],
)
def test_s5_the_lock_lasts_as_long_as_the_stages_together(how, seconds):
    """On Kubernetes no module on the node renews it."""
    known = {name: VARS[name] for name in ("mig_margin_seconds", "mig_reset_seconds")}
    given = {**TIMES, **known, "mig_how": how, "mig_instance_seconds": 120, "mig_drains": 1}
    assert evaluated(VARS["mig_lease_seconds"], mig_resets="0", **given) == seconds
    assert evaluated(VARS["mig_lease_seconds"], mig_resets="3", **given) == seconds + (360 if how == "layout" else 0)


@pytest.mark.parametrize("busy, gpus, times", [("drain", 3, 3), ("drain", 0, 1), ("wait", 3, 1), ("fail", 3, 1)])
def test_s5_the_lock_lasts_for_one_drain_after_the_other(busy, gpus, times):
    drains = evaluated(VARS["mig_drains"], mig_busy=busy, gpuops_mig_drift=[{}] * gpus)
    assert drains == times
    known = {
        **TIMES,
        **{name: VARS[name] for name in ("mig_margin_seconds", "mig_reset_seconds")},
        "mig_how": "layout",
        "mig_instance_seconds": 120,
    }
    assert evaluated(VARS["mig_lease_seconds"], mig_resets="0", mig_drains=drains, **known) == 30 + 180 + 60 * times + 300


def test_resets_are_counted_and_those_that_somebody_in_the_way_may_hide():
    reset = {"error": None, "steps": [{"action": "enable_mig"}, {"action": "reset_gpu"}]}
    drift = [reset, {"error": None, "steps": [{"action": "create_gpu_instance"}]}, reset, {"error": {"kind": "mig_busy"}, "steps": []}]
    assert evaluated(VARS["mig_resets"], gpuops_mig_drift=drift) == 3


@pytest.mark.parametrize("allow_reset, gpus, seconds", [(False, 8, 360), (True, 8, 360 + 960), (False, 0, 120)])
def test_a_boot_waits_longer_for_more_gpus(allow_reset, gpus, seconds):
    """Their modes change one after the other, and systemd kills what is late, be it a reset."""
    known = {"mig_planned": [{}] * gpus, "mig_allow_reset": allow_reset, "mig_reset_seconds": VARS["mig_reset_seconds"]}
    waits = evaluated(DEFAULTS["mig_boot_timeout_seconds"], **known)
    assert evaluated(VARS["mig_boot_limit_seconds"], mig_boot_timeout_seconds=waits, **known) == seconds


def test_the_layouts_are_there_before_our_own_readers():
    """Whoever has a GPU open is in the way of its mode, and theirs are not named as holders."""
    units = {
        name
        for name in yaml.safe_load((ROLE.parent / "gpu_exporter/vars/main.yml").read_text())["gpu_exporter_units"]
        if name.endswith(".service")
    }
    assert units and units <= set(yaml.safe_load((ROLE.parents[1] / "data/gpu_client_units.yml").read_text()))


@pytest.mark.parametrize(
    "failed, restarts",
    [pytest.param({}, True, id="it has not looked yet"), pytest.param({"mig_plugin_failed": True}, False, id="it was late")],
)
def test_a_plugin_that_was_late_and_has_come_keeps_no_work_away(failed, restarts):
    """The plan that says so would always ask for a restart, since the layouts have changed."""
    task = yaml.safe_load((ROLE / "tasks/kubernetes/advertise.yml").read_text())[0]
    restart = task["gpuops.remediation.device_plugin"]["restart"]
    assert evaluated(restart, mig_gone=["MIG-1"], mig_changes=True, **failed) is restarts


def refusals(*gpus, busy="wait", check=False, how="layout"):
    """What a plan of these GPUs forbids, each (kind, holders, given) or None."""
    errors = [gpu and {"kind": gpu[0], "msg": gpu[0], "holders": gpu[1], "given": gpu[2]} for gpu in gpus]
    told = [{"pci_bus_id": f"0000:0{number}:00.0", "error": error} for number, error in enumerate(errors)]
    given = {"mig_gpus": told, "mig_busy": busy, "ansible_check_mode": check, "mig_how": how}
    given["mig_awaited"] = evaluated(VARS["mig_awaited"], **given)
    given["mig_refused"] = evaluated(VARS["mig_refused"], **given)
    return evaluated(VARS["mig_gpu_errors"], **given)


HELD, GIVEN = ("mig_busy", [{"pid": 7}], []), ("mig_busy", [{"pid": 7}], ["3g.71gb@4"])


def test_a_change_that_may_wait_begins_though_somebody_is_in_the_way():
    assert refusals(None, HELD, ("mig_fragmented", [{"pid": 8}], [])) == []
    assert refusals(HELD, ("mig_infeasible", [], []), GIVEN) == ["GPU 0000:01:00.0: mig_infeasible", "GPU 0000:02:00.0: mig_busy"]


@pytest.mark.parametrize("how", [{"busy": "fail"}, {"busy": "drain"}, {"check": True}, {"how": "instance"}])
def test_else_whoever_is_in_the_way_is_a_refusal(how):
    assert refusals(HELD, **how) == ["GPU 0000:00:00.0: mig_busy"]


def test_what_has_no_holders_is_not_waited_for():
    assert refusals(("mig_busy", [], [])) == ["GPU 0000:00:00.0: mig_busy"]


@pytest.mark.parametrize(
    "told, override, forbidden",
    [
        ({}, False, ""),
        ({"mode": "act"}, False, ""),
        ({"mode": "observe"}, False, "the mode observe forbids"),
        ({"mode": "fence"}, False, "the mode fence forbids"),
        ({"mode": "observe"}, True, ""),
    ],
)
def test_s4_what_the_mode_says(told, override, forbidden):
    """Without a ledger nothing is asked."""
    given = {"mig_operating": told, "mig_override_mode": override, "mig_incident": {"skipped": True}}
    said = evaluated(VARS["mig_forbidden"], **given, mig_mode=evaluated(VARS["mig_mode"], **given))
    assert said.startswith(forbidden) and bool(said) is bool(forbidden)


@pytest.mark.parametrize("state, forbidden", [("running", False), ("fenced_waiting", False), ("held_for_human", True), ("contained", True)])
def test_an_incident_that_has_ended_has_no_node_written(state, forbidden):
    """It is said before anything is written ahead: the node's taint would be refused."""
    given = {"mig_incident": {"incident": {"state": state}}, "mig_mode": "act", "mig_override_mode": False}
    assert ("leave gpuops_incident_id out" in evaluated(VARS["mig_forbidden"], **given)) is forbidden


@pytest.mark.parametrize(
    "given, may",
    [
        ({"mig_who": "jane", "gpuops_why": "the trial"}, True),
        ({"mig_who": "", "gpuops_why": "the trial"}, False),
        ({"mig_who": "jane"}, False),
        ({"mig_who": "jane", "gpuops_why": "the trial", "gpuops_incident_id": "20260301-1"}, False),
    ],
)
def test_s4_who_may_override_the_mode(given, may):
    """Somebody, for a reason, and for no incident."""
    [task] = [one for one in yaml.safe_load((ROLE / "tasks/mode.yml").read_text()) if "ansible.builtin.assert" in one]
    conditions = task["ansible.builtin.assert"]["that"]
    assert all(evaluated("{{ " + one + " }}", **given) for one in conditions) is may


@pytest.mark.parametrize(
    "steps, devices",
    [
        (["destroy_compute_instance 3g.71gb@4/3c@0", "destroy_gpu_instance 3g.71gb@4"], ["MIG-2", "MIG-3"]),
        pytest.param([], [], id="another profile at its place, or device files only"),
        pytest.param(["destroy_gpu_instance 1g.18gb@0"], ["MIG-1"], id="by its name and not by its place"),
    ],
)
def test_pods_are_evicted_of_what_the_plan_destroys(steps, devices):
    there = {"1g.18gb@0": ["MIG-1"], "3g.71gb@4": ["MIG-2", "MIG-3"]}
    before = {"instances": [{"name": name, "compute": [{"uuid": uuid} for uuid in uuids]} for name, uuids in there.items()]}
    drift = [{"before": before, "steps": [dict(zip(("action", "target"), step.split())) for step in steps]}]
    destroyed = evaluated(VARS["mig_destroyed"], gpuops_mig_drift=drift)
    assert evaluated(VARS["mig_its_devices"], gpuops_mig_drift=drift, mig_destroyed=destroyed) == devices


@pytest.mark.parametrize(
    "left, refused",
    [
        ({"mig": True, "instances": []}, True),
        ({"mig": True, "instances": [{"compute": []}]}, True),
        ({"mig": True, "instances": [{"compute": []}, {"compute": [{"ci": 0}]}]}, False),
    ],
)
def test_the_last_mig_device_of_a_gpu_is_not_taken_out_of_use(left, refused):
    """NVIDIA's device plugin would end by such a GPU. On a bare host there is none."""
    plan = {"mig_gpus": [{"pci_bus_id": "0000:01:00.0", "steps": ["destroy"], "after": left}], "mig_how": "instance"}
    assert evaluated(VARS["mig_last"], mig_orchestrator="kubernetes", **plan) == (["0000:01:00.0"] if refused else [])
    assert evaluated(VARS["mig_last"], mig_orchestrator="none", **plan) == []
    gone = {**plan["mig_gpus"][0], "steps": []}
    assert evaluated(VARS["mig_last"], mig_orchestrator="kubernetes", mig_how="instance", mig_gpus=[gone]) == [], "it was done before"


@pytest.mark.parametrize(
    "told, errors",
    [
        ({"failed": True, "msg": "not_alone"}, ["not_alone"]),
        ({"failed": True, "msg": "GPU 1", "gpus": []}, []),
        ({"changed": True}, []),
        ({}, []),
    ],
)
def test_a_plan_that_told_of_no_gpu_is_a_refusal(told, errors):
    assert evaluated(VARS["mig_errors"], mig_layout=told) == errors


@pytest.mark.parametrize(
    "gpus, left", [([{"after": "now"}], "now"), pytest.param([], "before", id="nothing was begun"), ([{"after": None}], None)]
)
def test_what_is_recorded_where_a_decommission_fails(gpus, left):
    assert evaluated(VARS["mig_left"], mig_gpus=gpus, mig_planned=[{"before": "before", "after": "wanted"}]) == left


def test_nothing_is_recorded_of_a_node_that_left_meanwhile():
    assert evaluated(VARS["mig_left"], mig_layout={"unreachable": True}, mig_gpus=[], mig_planned=[{"before": "before"}]) is None


def test_a_gpu_that_waits_for_a_reset_is_not_as_wanted():
    """Also once there is nothing left to do but the reset; then nothing is begun, and nothing called done."""
    well = {"pci_bus_id": "0000:01:00.0", "changed": False, "error": None, "reset_required": False, "device_files": []}
    first, again = {**well, "changed": True, "reset_required": True}, {**well, "pci_bus_id": "0000:02:00.0", "reset_required": True}
    failed = {**well, "error": {"kind": "mig_busy"}}
    drift = evaluated(VARS["mig_differing"], mig_gpus=[well, again, failed, first])
    assert drift == [first, failed, again]
    assert evaluated(VARS["mig_due"], gpuops_mig_drift=drift) == [first, failed]
    assert evaluated(VARS["mig_cut"], mig_due=[first, {**well, "changed": True, "device_files": ["/proc/…/access"]}]) == [first]
    assert evaluated(VARS["mig_waiting"], mig_gpus=[], mig_planned=[well, again]) == ["0000:02:00.0"]
    assert evaluated(VARS["mig_waiting"], mig_gpus=[well], mig_planned=[again]) == []
