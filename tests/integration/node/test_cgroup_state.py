# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""cgroup_state with real processes in real cgroups, on simulated nodes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup import act
from ansible_collections.gpuops.remediation.plugins.module_utils._node.lock import FileLock
from ansible_collections.gpuops.remediation.plugins.module_utils._node.procfs import ProcFs, isoformat
from ansible_collections.gpuops.remediation.plugins.module_utils._node.statedir import StateDir
from cluster.objects import wait_until

GIB = 1 << 30
MODULES = "ansible_collections.gpuops.remediation.plugins.modules"
POD = "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod12345678_9abc_def0_1234_56789abcdef0.slice"
CONTAINER = f"{POD}/cri-containerd-{'4f' * 32}.scope"


def alive(pid):
    found = ProcFs("/proc").process(pid)
    return found is not None and found.state != "Z"


def now():
    return isoformat(time.time())


def ticks(pid):
    return ProcFs("/proc").process(pid).start_ticks


def end_holders(node, gpu=0, **options):
    return node.run(
        "cgroup_state", **{"state": "killed", "gpu": node.uuids[gpu], "stage_started_at": now(), "timeout_seconds": 30, **options}
    )


def on_suspect(node, pid, state, gpu=0, **options):
    suspects = [{"pid": pid, "start_ticks": ticks(pid)}]
    return node.run(
        "cgroup_state", **{"state": state, "gpu": node.uuids[gpu], "pids": suspects, "fault_time": now(), "timeout_seconds": 15, **options}
    )


def journal(node):
    return [json.loads(line) for line in (node.state_dir / "journal.jsonl").read_text().splitlines()]


def start(node, *args, **options):
    pid = node.sim.start(*args, **options)
    time.sleep(0.03)  # so that it is older than the time taken next: the clock of process starts ticks every 10 ms
    return pid


def test_all_holders_of_one_gpu_end(node):
    train, serve = start(node, [0], "train", GIB), start(node, [0, 1], "serve", GIB, ends="late:1")
    other = start(node, [1], "other", GIB)
    predicted = end_holders(node, check_mode=True)
    assert alive(train) and predicted["changed"] and not (node.state_dir / "journal.jsonl").exists()
    done = end_holders(node, incident_id="inc-1", why="row remap failure")
    assert (done["actions"], done["after"]) == (predicted["actions"], predicted["after"]), "check mode said so"
    assert [(step["action"], step["target"].rsplit("/", 1)[1]) for step in done["actions"]] == [
        ("terminate", "train.service"),
        ("terminate", "serve.service"),
        ("kill", "train.service"),
        ("kill", "serve.service"),
    ]
    assert [one["processes"] for one in done["after"]["cgroups"]] == [[], []]
    assert [alive(pid) for pid in (train, serve, other)] == [False, False, True]
    lines = journal(node)
    assert [(line["action"], line["status"]) for line in lines[:2]] == [("terminate", "intended"), ("terminate", "applied")]
    assert {(line["incident_id"], line["why"]) for line in lines} == {("inc-1", "row remap failure")}
    again = end_holders(node)
    assert (again["changed"], again["actions"]) == (False, [])
    assert len(journal(node)) == len(lines)


def test_the_grace_period_is_one_for_all(node):
    for name in ("a", "b", "c"):
        start(node, [0], name, GIB, ends="late:2")
    begin = time.monotonic()
    assert end_holders(node)["changed"]
    assert 1.5 < time.monotonic() - begin < 5


def test_one_that_does_not_end_in_its_grace_period_is_killed(node):
    pid = start(node, [0], "train", GIB, ends="late:60")
    begin = time.monotonic()
    assert end_holders(node, grace_seconds=1)["changed"]
    assert not alive(pid) and time.monotonic() - begin < 5


def test_one_that_nothing_ends_is_named_and_the_others_end(node):
    stuck, train = start(node, [0], "stuck", GIB, ends="never"), start(node, [0], "train", GIB)
    begin = time.monotonic()
    failed = end_holders(node, grace_seconds=0.5, timeout_seconds=9)
    assert time.monotonic() - begin < 13
    assert (failed["error_kind"], failed["changed"]) == ("still_held", True)
    assert [one["pid"] for one in failed["left"][0]["processes"]] == [stuck]
    assert str(stuck) in failed["msg"]
    assert not alive(train)


def test_freeze_thaw_kill_of_one_container(node):
    pid = start(node, [0], "train", GIB, cgroup=CONTAINER)
    path = node.cgroup(CONTAINER)
    frozen = on_suspect(node, pid, "frozen")
    assert [(step["action"], step["target"]) for step in frozen["actions"]] == [("freeze", path)]
    assert frozen["after"]["cgroups"] == [{"path": path, "frozen": True, "processes": [pid], "holders": [pid]}]
    assert on_suspect(node, pid, "frozen")["changed"] is False
    for changed in (True, False):
        assert node.run("cgroup_state", state="thawed", cgroup=path)["changed"] is changed
    assert alive(pid)
    on_suspect(node, pid, "frozen")
    killed = node.run("cgroup_state", state="killed", cgroup=path, gpu=node.uuids[0], fault_time=now())
    assert [step["action"] for step in killed["actions"]] == ["kill"], "who is frozen would not hear SIGTERM"
    assert not alive(pid)
    assert node.run("cgroup_state", state="killed", cgroup=path, gpu=node.uuids[0], fault_time=now())["changed"] is False


@pytest.mark.parametrize("kind", ["uuid", "address", "device"])
def test_how_a_gpu_is_named(node, kind):
    pid = start(node, [1], "train", GIB)
    name = {"uuid": node.uuids[1], "address": node.info()["gpus"][1]["pci_bus_id"], "device": f"{node.options['dev_root']}/nvidia1"}[kind]
    assert node.run("cgroup_state", state="killed", gpu=name, stage_started_at=now())["changed"]
    assert not alive(pid)


def test_no_such_gpu(node):
    failed = node.run("cgroup_state", state="killed", gpu="GPU-nobody", stage_started_at=now())
    assert (failed["failed"], failed["error_kind"]) == (True, "unknown_gpu")


def refused(result, *pids):
    assert (result["failed"], result["error_kind"]) == (True, "not_proven")
    assert sorted(one["pid"] for one in result["suspects"]) == sorted(pids)
    return result["msg"]


def test_s10_who_started_after_the_fault_or_the_stage_is_not_touched(node):
    early = isoformat(time.time() - 1)
    pid = start(node, [0], "train", GIB)
    assert "started after" in refused(on_suspect(node, pid, "killed", fault_time=early), pid)
    assert "started after" in refused(end_holders(node, stage_started_at=early), pid)
    assert "not known when" in refused(end_holders(node, stage_started_at=None, fault_time=now()), pid)
    assert "not known when" in refused(on_suspect(node, pid, "frozen", fault_time=None, stage_started_at=now()), pid)
    assert alive(pid)
    assert not (node.state_dir / "journal.jsonl").exists()


def test_s10_a_suspect_that_is_not_on_that_gpu_is_not_touched(node):
    holder, other = start(node, [0], "train", GIB), start(node, [1], "other", GIB)
    assert "is not on that GPU" in str(on_suspect(node, other, "killed")["suspects"])
    assert alive(holder) and alive(other)


def test_s10_a_suspect_whose_pid_is_another_process_by_now(node):
    pid = start(node, [0], "train", GIB)
    done = node.run("cgroup_state", state="killed", gpu=node.uuids[0], pids=[{"pid": pid, "start_ticks": 1}], fault_time=now())
    assert done["changed"] is False, "the one that was meant is gone"
    assert alive(pid)


@pytest.mark.parametrize(
    "cgroup",
    [
        "user.slice/user-1000.slice/session-3.scope",
        "init.scope",
        "system.slice/kubelet.service",
        "system.slice/containerd.service",
        "system.slice/sshd.service",
        "system.slice",
        POD,
    ],
)
def test_s10_never(node, cgroup):
    pid = start(node, [0], "train", GIB, cgroup=cgroup)
    for result in (end_holders(node), on_suspect(node, pid, "frozen"), on_suspect(node, pid, "killed")):
        refused(result, pid)
    direct = node.run("cgroup_state", state="killed", cgroup=node.cgroup(cgroup), gpu=node.uuids[0], fault_time=now())
    assert direct["error_kind"] == "not_proven"
    assert alive(pid)


@pytest.mark.parametrize("path", ["/", "/../..", "/nowhere/at.slice"])
def test_s10_a_cgroup_given_by_name_is_proven_too(node, path):
    for options in ({"state": "killed", "gpu": node.uuids[0], "fault_time": now()}, {"state": "thawed"}):
        assert node.run("cgroup_state", cgroup=path, **options)["error_kind"] == "not_proven"


def test_s10_a_container_inside_the_unit(node):
    holder = start(node, [0], "train", GIB, cgroup="system.slice/outer.service")
    inner = start(node, [1], "inner", GIB, cgroup=f"system.slice/outer.service/docker/{'a0' * 32}")
    assert "shares" in refused(end_holders(node), holder)
    assert alive(holder) and alive(inner)
    assert end_holders(node, gpu=1)["changed"], "the inner one alone can be ended"
    assert alive(holder) and not alive(inner)


def test_s10_the_task_does_not_end_itself(node):
    """Started from a notebook on the sick GPU, or by an agent in the same unit."""
    pid = start(node, [0], "train", GIB)
    own = Path(node.options["cgroup_root"]) / node.cgroup("system.slice/train.service").lstrip("/") / "cgroup.procs"
    arguments = node.arguments("cgroup_state", state="killed", gpu=node.uuids[0], stage_started_at=now())
    done = subprocess.run(
        ["sh", "-c", f'echo 0 >"{own}"; "$@"; exit 0', "sh", sys.executable, "-m", f"{MODULES}.cgroup_state"],
        input=json.dumps({"ANSIBLE_MODULE_ARGS": arguments}),
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert "this very task" in refused(json.loads(done.stdout), pid)
    assert alive(pid)


def test_s10_all_or_nothing(node):
    good, bad = start(node, [0], "train", GIB), start(node, [0], "desktop", GIB, cgroup="user.slice/user-1000.slice/session-3.scope")
    refused(end_holders(node), bad)
    assert alive(good) and alive(bad)


def test_s10_a_cgroup_none_of_whose_processes_is_on_the_gpu(node):
    other = start(node, [1], "other", GIB)
    result = node.run("cgroup_state", state="frozen", cgroup=node.cgroup("system.slice/other.service"), gpu=node.uuids[0], fault_time=now())
    refused(result)
    assert alive(other)


def test_s10_while_an_mps_server_is_on_the_gpu(node):
    server = start(node, [0], "nvidia-cuda-mps-server", GIB, cgroup="system.slice/mps.service")
    client = start(node, [0], "train", GIB, kind="mps")
    for result in (end_holders(node), on_suspect(node, client, "killed")):
        assert "MPS server" in refused(result, server, client)
        assert result["mps_server"] == {"pid": server, "clients": [client]}
    assert alive(server) and alive(client)


def test_s10_a_lost_gpus_device_file(node):
    holder, other = start(node, [0], "train", GIB), start(node, [1], "other", GIB)
    node.info()
    node.sim.lost(0)
    assert end_holders(node)["changed"]
    assert not alive(holder) and alive(other)


def test_s10_nvml_hangs_and_an_open_device_file_proves_nothing(node, monkeypatch):
    monkeypatch.setattr(act, "_NVML_SECONDS", 2.0)
    holder = start(node, [0], "train", GIB)
    node.sim.hang("nvmlInit", None)
    assert "does not say who uses" in refused(end_holders(node), holder)
    assert alive(holder)


def test_allowed_holders_stay(node):
    monitor = start(node, [0], "nv-hostengine", GIB)
    train = start(node, [0], "train", GIB)
    assert end_holders(node, allowed_holders=["nv-hostengine"])["changed"]
    assert alive(monitor) and not alive(train)
    assert end_holders(node, allowed_holders=["*/nv-hostengine.service"])["changed"] is False


def test_protected_ones_stay(node):
    pid = start(node, [0], "train", GIB)
    assert "never touched" in refused(end_holders(node, protect=["train.*"]), pid)
    assert alive(pid)


def test_one_that_comes_meanwhile_is_named_and_not_touched(node):
    """A unit that systemd starts again, or a job that was scheduled in between."""
    start(node, [0], "train", GIB)
    came = []
    later = threading.Timer(1.0, lambda: came.append(node.sim.start([0], "again", GIB)))
    start(node, [0], "slow", GIB, ends="late:2")
    later.start()
    failed = end_holders(node, timeout_seconds=10)
    later.join()
    assert failed["error_kind"] == "still_held"
    assert [one["pid"] for left in failed["left"] for one in left["processes"]] == came
    assert alive(came[0])


def test_s5_nothing_is_done_without_the_lock(node):
    pid = start(node, [0], "train", GIB)
    token = node.run("node_lock", lock_holder="run-1")["token"]
    node.run("node_lock", lock_holder="run-2", lock_token=token + 1)
    assert end_holders(node, lock_holder="run-1", lock_token=token)["error_kind"] == "lock_lost"
    assert alive(pid)


def test_s5_who_loses_the_lock_in_the_grace_period_kills_nobody(node, monkeypatch):
    monkeypatch.setattr(act, "_RENEW_SECONDS", 0.2)
    pid = start(node, [0], "train", GIB, ends="late:20")
    token = node.run("node_lock", lock_holder="run-1")["token"]

    written = node.state_dir / "journal.jsonl"

    def steal():
        wait_until(lambda: written.exists() and '"kill"' in written.read_text(), "the grace period")
        FileLock(StateDir(str(node.state_dir)), ProcFs(node.options["proc_root"]).boot_id()).take("run-2", token + 1)

    thief = threading.Thread(target=steal)
    thief.start()
    failed = end_holders(node, lock_holder="run-1", lock_token=token, grace_seconds=15)
    thief.join()
    assert failed["error_kind"] == "lock_lost"
    assert alive(pid)
    assert [line["status"] for line in journal(node) if line["action"] == "kill"] == ["intended"]
    assert {line["by"] for line in journal(node)} == {"run-1"}
