# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""mig_layout and mig_instance on simulated nodes, whose library refuses what a driver refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._node.lock import FileLock
from ansible_collections.gpuops.remediation.plugins.module_utils._node.procfs import ProcFs
from ansible_collections.gpuops.remediation.plugins.module_utils._node.statedir import StateDir
from ansible_collections.gpuops.remediation.plugins.modules import mig_layout
from cluster.objects import wait_until
from gpusim import instances
from run_module import run_beside

HALF = "3g.71gb"


@pytest.fixture
def hopper(make_node):
    node = make_node(gpus=2)
    for gpu in (0, 1):
        instances.set_mode(node.sim, gpu, True)
    return node


@pytest.fixture
def ampere(make_node):
    """Whose mode changes with a reset only."""
    return make_node(gpus=2, model_name="a100-80")


def layout(node, gpu=0, **params):
    return node.run("mig_layout", **{"gpus": [node.uuids[gpu]], "timeout_seconds": 60, **params})


def there(node, gpu=0):
    """The mode, and every instance by its serial, which nothing that was made anew has again."""
    mig = node.sim.state()["gpus"][gpu]["mig"]
    return mig["current"], {one["serial"]: (one["name"][4:], one["start"], [(part["serial"], part["size"], part["start"]) for part in one["compute"]])
                            for one in mig["instances"]}  # fmt: skip


def names(node, gpu=0):
    return sorted(f"{name}@{start}" for name, start, _compute in there(node, gpu)[1].values())


def error_of(result, gpu=0):
    assert result["failed"]
    return result["gpus"][gpu]["error"]


def alive(pid):
    found = ProcFs("/proc").process(pid)
    return found is not None and found.state != "Z"


def test_check_mode_says_what_the_run_does_and_a_second_run_does_nothing(hopper):
    wanted = {"counts": {HALF: 1, "1c.2g.35gb": 2}}
    before = hopper.sim.state()["gpus"]
    said = layout(hopper, _ansible_diff=True, check_mode=True, **wanted)
    assert hopper.sim.state()["gpus"] == before and said["changed"] and not (hopper.state_dir / "journal.jsonl").exists()
    done = layout(hopper, **wanted)
    assert [said[part] for part in ("changed", "diff")] == [done[part] for part in ("changed", "diff")]
    assert said["gpus"][0]["steps"] == done["gpus"][0]["steps"] and said["gpus"][0]["error"] is done["gpus"][0]["error"] is None
    assert "# # . . . . . .  2g.35gb@0     1c@0 1c@1" in done["diff"]["after"]
    assert names(hopper) == ["2g.35gb@0", "3g.71gb@4"] and there(hopper, 1) == (1, {})
    found = hopper.sim.state()["gpus"]
    again = layout(hopper, **wanted)
    assert not again["changed"] and again["gpus"][0]["steps"] == [] and hopper.sim.state()["gpus"] == found
    assert again["gpus"][0]["after"] == done["gpus"][0]["after"]
    uuids = [part["uuid"] for one in found[0]["mig"]["instances"] for part in one["compute"]]
    assert sorted(uuids) == sorted(part["uuid"] for one in done["gpus"][0]["after"]["instances"] for part in one["compute"])


def test_new_instances_can_be_opened(hopper):
    """They have their device files, also where an earlier run or somebody else left them without."""
    instances.create(hopper.sim, 0, HALF, 0)
    for file in (hopper.sim.path / "dev/nvidia-caps").iterdir():
        file.unlink()
    layout(hopper, counts={HALF: 2})
    for gi in (1, 2):
        hopper.sim.start([0], "train", 1, gi=gi, ci=0)
    unmade = layout(hopper, gpu=1, counts={HALF: 1}, nvidia_modprobe="/nonexistent")
    assert not unmade.get("failed") and "/nonexistent cannot be run" in str(unmade["warnings"])


def test_every_step_is_written_down_first(hopper):
    layout(hopper, counts={"7g.141gb": 1}, why="a test", incident_id="one")
    lines = [json.loads(line) for line in (hopper.state_dir / "journal.jsonl").read_text().splitlines()]
    assert [(one["action"], one["status"]) for one in lines] == [
        (action, status) for action in ("create_gpu_instance", "create_compute_instance") for status in ("intended", "applied")
    ]
    assert {one["target"] for one in lines} == {f"{hopper.uuids[0]} 7g.141gb@0", f"{hopper.uuids[0]} 7g.141gb@0/7c@0"}
    assert {(one["why"], one["incident_id"]) for one in lines} == {("a test", "one")}


def test_an_instance_without_compute_is_repaired(hopper):
    instances.create(hopper.sim, 0, HALF, 4, ())
    done = layout(hopper, counts={HALF: 1})
    assert [one["action"] for one in done["gpus"][0]["steps"]] == ["create_compute_instance"]
    assert not layout(hopper, counts={HALF: 1})["changed"]


def test_what_is_busy_and_fits_is_not_touched(hopper):
    instances.create(hopper.sim, 0, HALF, 4)
    instances.create(hopper.sim, 0, "1g.18gb", 0)
    pid = hopper.sim.start([0], "train", 1, gi=2, ci=0)
    kept = next(serial for serial, one in there(hopper)[1].items() if one[0] == HALF)
    layout(hopper, counts={HALF: 1, "2g.35gb": 2})
    assert alive(pid) and kept in there(hopper)[1] and names(hopper) == ["2g.35gb@0", "2g.35gb@2", "3g.71gb@4"]


@pytest.mark.parametrize("kind", ["compute", "monitor"])
def test_what_is_busy_and_in_the_way_is_named_with_its_holders(hopper, kind):
    """Also those that NVML lists nowhere, and with which the driver would say that it is in use."""
    instances.create(hopper.sim, 0, HALF, 4)
    pid = hopper.sim.start([0], "train", 0, kind=kind, gi=2, ci=0)
    found = there(hopper)
    for check_mode in (True, False):
        error = error_of(layout(hopper, counts={"7g.141gb": 1}, check_mode=check_mode))
        assert (error["kind"], error["instances"]) == ("mig_busy", ["3g.71gb@4/3c@0"])
        assert [(one["pid"], one["name"]) for one in error["holders"]] == [(pid, "train")] and f"train ({pid})" in error["msg"]
    assert there(hopper) == found and alive(pid)


def test_what_stands_where_the_rest_has_to_be(hopper):
    for start in (1, 2, 5):
        instances.create(hopper.sim, 0, "1g.18gb", start)
    hopper.sim.start([0], "train", 1, gi=8, ci=0)
    hopper.sim.start([0], "train", 1, gi=12, ci=0)
    error = error_of(layout(hopper, counts={HALF: 1, "1g.18gb": 3}))
    assert (error["kind"], error["instances"]) == ("mig_fragmented", ["1g.18gb@1/1c@0"]) or error["instances"] == ["1g.18gb@5/1c@0"]
    idle = error_of(layout(hopper, instances=[{"profile": HALF, "start": 0}, *[{"profile": "1g.18gb"}] * 2], may_move=False))
    assert idle["kind"] == "mig_fragmented"


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        ({"counts": {"4g.20gb": 1}}, "profile"),
        ({"counts": {HALF: 3}}, "limit"),
        ({"counts": {HALF: "many"}}, "limit"),
        ({"counts": {HALF: 2, "1g.18gb": 1}}, "slices"),
        ({"instances": [{"profile": HALF, "start": 2}]}, "start"),
        ({"instances": [{"profile": HALF, "compute": [{"slices": 2}, {"slices": 2}]}]}, "compute"),
        ({"counts": {}, "mig_enabled": False}, "mode"),
    ],
)
def test_what_the_gpu_can_never_have(hopper, wanted, reason):
    refused = layout(hopper, **wanted)
    assert refused["error_kind"] == "mig_infeasible" and not refused.get("changed")
    assert (refused.get("reason") or error_of(refused)["reason"]) == reason


@pytest.mark.parametrize("by", ["name", "uuid"])
def test_what_is_given_to_somebody_is_busy_though_idle(hopper, by):
    instances.create(hopper.sim, 0, HALF, 4)
    name = {"name": "3g.71gb@4", "uuid": hopper.sim.state()["gpus"][0]["mig"]["instances"][0]["compute"][0]["uuid"]}[by]
    found = there(hopper)
    error = error_of(layout(hopper, counts={}, given=[name, "MIG-of-another-node"], busy="drain"))
    assert (error["kind"], error["given"]) == ("mig_busy", ["3g.71gb@4/3c@0"]) and there(hopper) == found


@pytest.mark.parametrize("by", ["uuid", "pci_bus_id"])
def test_who_is_given_a_gpu_has_all_that_is_on_it(make_node, by):
    node = make_node(gpus=2)
    instances.set_mode(node.sim, 1, True)
    instances.create(node.sim, 1, HALF, 4)
    first, second = (gpu[by] for gpu in node.sim.state()["gpus"])
    mode = error_of(layout(node, 0, counts={HALF: 1}, given=[first]))
    assert (mode["kind"], mode["given"], there(node, 0)) == ("mig_busy", ["gpu"], (0, {}))
    assert error_of(layout(node, 1, counts={}, given=[second]))["given"] == ["3g.71gb@4/3c@0"] and names(node, 1) == ["3g.71gb@4"]
    assert layout(node, 0, counts={HALF: 1}, given=[second])["changed"], "another GPU's is in nobody's way"
    refused = layout(node, 0, counts={}, given=["GPU-00000000-0000-0000-0000-000000000000"])
    assert (refused["failed"], refused["error_kind"]) == (True, "unknown_gpu") and names(node, 0) == [HALF + "@4"]


def test_holders_are_waited_for(hopper):
    instances.create(hopper.sim, 0, HALF, 4)
    pid = hopper.sim.start([0], "train", 1, gi=2, ci=0)
    ended = threading.Timer(2, hopper.sim.exit, [pid])
    wanted = {"counts": {"7g.141gb": 1}, "busy": "wait"}
    foretold = error_of(layout(hopper, check_mode=True, **wanted))["once_free"]
    assert [one["name"] for one in foretold["instances"]] == ["7g.141gb@0"], "for whoever has to know what will be there"
    ended.start()
    done = layout(hopper, busy_timeout_seconds=60, **wanted)
    ended.join()
    assert done["changed"] and names(hopper) == ["7g.141gb@0"]


def test_waiting_has_an_end(hopper):
    instances.create(hopper.sim, 0, HALF, 4)
    pid = hopper.sim.start([0], "train", 1, gi=2, ci=0)
    assert error_of(layout(hopper, counts={}, busy="wait", busy_timeout_seconds=1.5))["kind"] == "mig_busy" and alive(pid)


def test_draining_ends_the_holders_in_the_way_and_no_others(hopper):
    instances.create(hopper.sim, 0, HALF, 0)
    instances.create(hopper.sim, 0, HALF, 4)
    stays = hopper.sim.start([0], "stays", 1, gi=1, ci=0)
    goes = hopper.sim.start([0], "goes", 1, gi=2, ci=0, ends="late:60")
    wanted = {"instances": [{"profile": HALF, "start": 0}], "busy": "drain", "grace_seconds": 1}
    said = layout(hopper, check_mode=True, **wanted)
    assert said["changed"] and not said.get("failed") and alive(goes)
    done = layout(hopper, **wanted)
    assert done["gpus"][0]["error"] is None and done["gpus"][0]["steps"] == said["gpus"][0]["steps"]
    assert alive(stays) and not alive(goes) and names(hopper) == ["3g.71gb@0"]


def test_draining_takes_proof(hopper):
    """S10: what is in a session is somebody else's too."""
    instances.create(hopper.sim, 0, HALF, 4)
    pid = hopper.sim.start([0], "train", 1, gi=2, ci=0, cgroup="user.slice/session-1.scope")
    found = there(hopper)
    error = error_of(layout(hopper, counts={}, busy="drain", grace_seconds=1))
    assert error["kind"] == "not_proven" and error["instances"] == ["3g.71gb@4/3c@0"] and [one["pid"] for one in error["suspects"]] == [pid]
    assert alive(pid) and there(hopper) == found


# --- the mode ---


def test_a_mode_that_needs_no_reset(make_node):
    node = make_node(gpus=2)
    layout(node, mig_enabled=True)
    assert there(node) == (1, {}) and there(node, 1) == (0, {})
    layout(node, counts={"1g.18gb": 2})
    assert not layout(node, mig_enabled=True)["changed"], "the mode alone leaves the instances as they are"
    layout(node, mig_enabled=False)
    assert there(node) == (0, {}) and not layout(node, mig_enabled=False)["changed"]


def test_without_leave_to_reset_the_mode_stays_pending(ampere):
    for check_mode in (True, False):
        done = layout(ampere, counts={"3g.40gb": 2}, check_mode=check_mode)
        [gpu] = done["gpus"]
        assert (done["changed"], done["reset_required"], gpu["error"], [one["action"] for one in gpu["steps"]]) == (
            True,
            True,
            None,
            ["enable_mig"],
        )
        assert (gpu["after"]["mig"], gpu["after"]["pending"], gpu["after"]["instances"]) == (False, True, [])
    again = layout(ampere, counts={"3g.40gb": 2})
    assert (again["changed"], again["reset_required"]) == (False, True)
    assert not any(gpu["resets"] for gpu in ampere.sim.state()["gpus"])
    assert "MIG off, on after a reset" in layout(ampere, counts={"3g.40gb": 2}, allow_reset=True)["diff"]["before"]
    assert names(ampere) == ["3g.40gb@0", "3g.40gb@4"] and [len(gpu["resets"]) for gpu in ampere.sim.state()["gpus"]] == [1, 0]


def test_modes_of_several_gpus_one_after_the_other(ampere):
    layout(ampere, counts={"7g.80gb": 1}, allow_reset=True)
    done = ampere.run("mig_layout", counts={"3g.40gb": 2}, allow_reset=True, timeout_seconds=60)
    assert not done.get("failed") and names(ampere) == names(ampere, 1) == ["3g.40gb@0", "3g.40gb@4"]
    assert [len(gpu["resets"]) for gpu in ampere.sim.state()["gpus"]] == [1, 1]
    gone = ampere.run("mig_layout", mig_enabled=False, allow_reset=True, timeout_seconds=60)
    assert not gone.get("failed") and there(ampere) == there(ampere, 1) == (0, {})


@pytest.mark.parametrize("kind", ["compute", "monitor"])
def test_who_blocks_a_reset_is_named_before_anything_is_changed(ampere, kind):
    pid = ampere.sim.start([0], "persistenced", 0, kind=kind)
    error = error_of(layout(ampere, counts={"7g.80gb": 1}, allow_reset=True))
    assert (error["kind"], [one["pid"] for one in error["holders"]]) == ("mig_busy", [pid])
    assert ampere.sim.state()["gpus"][0]["mig"]["pending"] == 0


@pytest.mark.parametrize(("program", "text"), [("/bin/false", "could not"), ("/nonexistent", "cannot be run")])
def test_a_reset_that_fails_leaves_no_mode_pending(ampere, program, text):
    error = error_of(layout(ampere, counts={"7g.80gb": 1}, allow_reset=True, nvidia_smi=program))
    assert (error["kind"], error["differs"]) == ("reset_required", []) and text in error["msg"]
    assert ampere.sim.state()["gpus"][0]["mig"] == {**ampere.sim.state()["gpus"][0]["mig"], "current": 0, "pending": 0}


def test_the_status_of_a_mode_that_did_not_change_is_not_overlooked(make_node):
    """The call succeeds; a monitor is in the way, whom only the GPU's device file shows."""
    node = make_node(gpus=1)
    pid = node.sim.start([0], "dcgm", 0, kind="monitor")
    error = error_of(layout(node, counts={HALF: 1}))
    assert (error["kind"], [one["pid"] for one in error["holders"]], error["differs"]) == ("mig_busy", [pid], [])
    assert node.sim.state()["gpus"][0]["mig"]["pending"] == 0


# --- when something fails ---


def test_one_that_fails_is_taken_back_and_hides_no_other(hopper):
    instances.create(hopper.sim, 1, "2g.35gb", 0)
    before = names(hopper, 1)
    hopper.sim.fail("nvmlGpuInstanceCreateComputeInstanceWithPlacement", "UNKNOWN", at=2, index=1)
    done = hopper.run("mig_layout", gpus=[*hopper.uuids, "GPU-none"], counts={"1g.18gb": 3}, timeout_seconds=60)
    fine, failed, unknown = done["gpus"]
    assert done["failed"] and fine["error"] is None and len(names(hopper)) == 3
    assert (failed["error"]["kind"], failed["error"]["call"]) == ("nvml", "nvmlGpuInstanceCreateComputeInstanceWithPlacement")
    assert failed["error"]["differs"] == [] and names(hopper, 1) == before and failed["steps"] and not failed["changed"]
    assert unknown["error"]["kind"] == "unknown_gpu" and "no GPU GPU-none" in done["msg"]


def test_what_cannot_be_taken_back_is_told_exactly(hopper):
    instances.create(hopper.sim, 0, HALF, 4)
    hopper.sim.fail("nvmlDeviceCreateGpuInstanceWithPlacement", "UNKNOWN", times=None, index=0)
    error = error_of(layout(hopper, counts={"7g.141gb": 1}))
    assert error["kind"] == "nvml" and error["differs"] == ["3g.71gb@4 is missing", "3g.71gb@4/3c@0 is missing"]
    assert names(hopper) == [] and error["not_taken_back"]


def test_a_client_that_lingers_is_waited_for_briefly(hopper):
    instances.create(hopper.sim, 0, HALF, 4)
    hopper.sim.fail("nvmlComputeInstanceDestroy", "IN_USE", times=2, index=0)
    assert not layout(hopper, counts={"7g.141gb": 1}).get("failed") and names(hopper) == ["7g.141gb@0"]
    hopper.sim.fail("nvmlGpuInstanceDestroy", "IN_USE", times=None, index=0)
    error = error_of(layout(hopper, counts={HALF: 1}))
    assert (error["kind"], error["instances"], error["differs"]) == ("mig_busy", ["7g.141gb@0"], [])


def test_a_call_that_hangs_is_named_and_what_was_done_is_taken_back(hopper):
    """In a new child. The hang ends once that one has begun, so that what had been destroyed can be made again."""
    instances.create(hopper.sim, 0, "2g.35gb", 0)
    hopper.sim.hang("nvmlDeviceCreateGpuInstanceWithPlacement", None, 0)
    journal = hopper.state_dir / "journal.jsonl"

    def taken_back():
        lines = [json.loads(line) for line in journal.read_text().splitlines()] if journal.exists() else []
        return any(one["action"] == "create_gpu_instance" and one["target"].endswith("2g.35gb@0") for one in lines)

    def clear():
        wait_until(taken_back, 60)
        hopper.sim.clear(0)

    clearing = threading.Thread(target=clear)
    clearing.start()
    done = hopper.run("mig_layout", gpus=hopper.uuids, counts={"7g.141gb": 1}, timeout_seconds=15)
    clearing.join()
    error = error_of(done)
    assert "nvmlDeviceCreateGpuInstanceWithPlacement: did not answer" in error["msg"] and error["differs"] == []
    assert names(hopper) == ["2g.35gb@0"] and names(hopper, 1) == ["7g.141gb@0"]


def test_a_driver_that_takes_no_places_for_compute_instances(hopper):
    """Where it puts them itself counts, once it is read: as wanted, or taken back."""
    hopper.sim.fail("nvmlGpuInstanceCreateComputeInstanceWithPlacement", "FUNCTION_NOT_FOUND", times=None, index=0)
    layout(hopper, instances=[{"profile": HALF, "start": 0, "compute": [{"slices": 1}, {"slices": 1}]}])
    assert [[part[2] for part in compute] for _name, _start, compute in there(hopper)[1].values()] == [[0, 1]]
    elsewhere = [{"profile": HALF, "compute": [{"slices": 1, "start": start}]} for start in (1, 2)]
    error = error_of(layout(hopper, instances=elsewhere))
    assert (error["kind"], error["differs"]) == ("mig_differs", []) and names(hopper) == ["3g.71gb@0"]


def test_privilege_is_asked_for_by_name(make_node):
    node = make_node(gpus=1)
    node.sim.no_permission("nvmlDeviceSetMigMode")
    assert error_of(layout(node, counts={HALF: 1}))["kind"] == "permission"


def test_a_lost_lock_stops_everything(hopper):
    lock = FileLock(StateDir(str(hopper.state_dir)), ProcFs(hopper.options["proc_root"]).boot_id())
    ours = lock.take("run 1").token
    assert not layout(hopper, counts={HALF: 1}, lock_token=ours, lock_holder="run 1").get("failed")
    lock.take("run 2", ours + 1)
    refused = layout(hopper, counts={HALF: 2}, lock_token=ours, lock_holder="run 1")
    assert refused["error_kind"] == "lock_lost" and names(hopper) == ["3g.71gb@4"]


def test_one_run_on_a_node_at_a_time(hopper):
    hopper.sim.hang("nvmlDeviceCreateGpuInstanceWithPlacement", 4, 0)
    done = []
    params = hopper.arguments("mig_layout", gpus=[hopper.uuids[0]], counts={HALF: 1}, timeout_seconds=60)
    other = threading.Thread(target=lambda: done.append(run_beside(mig_layout, **params)))
    other.start()
    lock = Path(hopper.state_dir, "mig.lock")
    wait_until(lambda: lock.exists() and lock.read_text().strip(), 30)
    refused = layout(hopper, gpu=1, counts={HALF: 1}, timeout_seconds=0.5)
    assert refused["error_kind"] == "not_alone" and f"pid {lock.read_text().strip()}" in refused["msg"]
    waited = layout(hopper, gpu=1, counts={HALF: 1})
    other.join()
    assert waited["changed"] and done[0]["changed"] and names(hopper) == names(hopper, 1) == ["3g.71gb@4"]


def test_a_run_that_is_killed_is_gone_on_from(hopper):
    """Its children go with it: what hung in the driver makes nothing later."""
    hopper.sim.hang("nvmlGpuInstanceCreateComputeInstanceWithPlacement", None, 0)
    params = hopper.arguments("mig_layout", gpus=[hopper.uuids[0]], counts={HALF: 2}, timeout_seconds=300)
    command = "import json, sys, run_module, ansible_collections.gpuops.remediation.plugins.modules.mig_layout as it; "
    command += "run_module.run_module(it.main, **json.load(sys.stdin))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", command], stdin=subprocess.PIPE, text=True, env=environment) as run:
        json.dump(params, run.stdin)
        run.stdin.close()
        wait_until(lambda: names(hopper) == ["3g.71gb@0"] or names(hopper) == ["3g.71gb@4"], 60)
        children = [pid for pid in ProcFs("/proc").pids() if (found := ProcFs("/proc").process(pid)) and found.parent == run.pid]
        run.kill()
    assert children
    wait_until(lambda: not any(map(alive, children)), 30)
    hopper.sim.clear(0)
    done = layout(hopper, counts={HALF: 2})
    assert not done.get("failed") and names(hopper) == ["3g.71gb@0", "3g.71gb@4"]
    assert all(len(compute) == 1 for _name, _start, compute in there(hopper)[1].values())


# --- other ways to say what is wanted ---

PARTED = """
version: v1
mig-configs:
  mixed:
    - devices: [0]
      mig-enabled: true
      mig-devices: {"3g.71gb": 1, "1c.2g.35gb": 2}
    - device-filter: "0x20B010DE"
      devices: all
      mig-enabled: false
"""


def test_a_file_of_mig_parted(make_node):
    """As text or as a mapping; a GPU that it does not name is left alone."""
    node = make_node(gpus=2)
    done = node.run("mig_layout", mig_parted=PARTED, mig_parted_config="mixed")
    assert (
        names(node) == ["2g.35gb@0", "3g.71gb@4"]
        and there(node, 1) == (0, {})
        and [gpu["changed"] for gpu in done["gpus"]] == [True, False]
    )
    document = {"version": "v1", "mig-configs": {"all-disabled": [{"devices": "all", "mig-enabled": False}]}}
    assert node.run("mig_layout", mig_parted=document, mig_parted_config="all-disabled")["changed"] and there(node) == (0, {})
    unknown = node.run("mig_layout", mig_parted=document, mig_parted_config="mixed")
    assert unknown["error_kind"] == "mig_parted_invalid" and "there are all-disabled" in unknown["msg"]


def test_one_instance_more_and_one_less(make_node):
    node = make_node(gpus=1)

    def one(**params):
        return node.run("mig_instance", gpu=node.uuids[0], **params)

    assert one(profile=HALF, start=4, compute=[{"slices": 2}, {"slices": 1}])["changed"] and names(node) == ["3g.71gb@4"]
    first = there(node)[1]
    assert not one(profile=HALF, compute=[{"slices": 1}, {"slices": 2}])["changed"]
    assert one(profile="1g.18gb", check_mode=True)["gpus"][0]["steps"] and one(profile="1g.18gb")["changed"]
    assert not one(profile="1g.18gb")["changed"] and first.items() <= there(node)[1].items()
    assert error_of(one(profile="4g.71gb"))["kind"] == "mig_infeasible"
    assert one(profile=HALF, start=4, state="absent")["changed"] and names(node) == ["1g.18gb@0"]
    assert not one(profile=HALF, start=4, state="absent")["changed"]
    assert "start" in one(profile=HALF, state="absent")["msg"]
