# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A controller that dies at any point, and one that was only asleep: the next run ends the incident as if nothing had happened."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import re
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cluster import NAMESPACE
from cluster.faults import Admission, admission
from cluster.objects import wait_until
from fleet import TAINT
from loop import Controller, alive

pytestmark = pytest.mark.timeout(900)
KILLED = -9
LOST = "lost the node's lock|no longer has the lock"

# Where the run dies, each time on the way that the deaths before have left it: the first task after a stage, and inside isolate.
DEATHS = [
    ("after detect", "Knock"),
    ("after diagnose", "Begin isolate"),
    ("in isolate, after the change was written ahead", "End them"),
    ("in isolate, before the change is kept", "Keep what was read back"),
    ("after isolate", "Begin taint"),
    ("after taint", "Begin evict"),
    ("after evict", "Begin verify"),
    ("after verify", "End each incident in the state that its stages amount to"),
]


@pytest.fixture
def controller(tmp_path):
    with Controller(tmp_path / "controller") as made:
        made.ledger(write=True).set_mode("act", "tests", "the test needs it")
        yield made


def test_dies_at_every_point(controller):
    """S5, S9, S18: killed after every stage, and between a write and its commit; reconcile ends it once nobody holds the node's lock.

    Each run waits for the lock of the one before to lapse; one of them really does.
    """
    pid, alert = controller.sick("bare-1")
    for when, task in DEATHS:
        controller.before = {task: "kill -KILL 0"}
        run = controller.remediate(alert_file=alert)
        assert run.status == KILLED, f"{when}\n{run.output}"
        assert alive(pid) == (DEATHS.index((when, task)) < 3), when
        if when == "after diagnose":
            evidence = controller.incidents()[0]["stages"]["diagnose"]["data"]["evidence"]["info"]
            assert any("Xid" in line and ": 48, " in line for line in evidence["kernel_log"])
            assert {"train"} == {process["name"] for gpu in evidence["gpus"] for process in gpu["processes"]}
            assert controller.journal("bare-1") == [], "before anything is changed"
            deadline = controller.incidents()[0]["deadline_at"]
        elif when != "after detect":
            lease(controller, "bare-1", 0)

    controller.before = {}
    lease(controller, "bare-1", 600)  # not lapsed: for all that reconcile knows, the run is at work
    left = controller.play("reconcile")
    assert left.ok, left.output
    assert controller.incidents()[0]["state"] == "running"

    lease(controller, "bare-1", 0)
    ended = controller.play("reconcile")
    assert ended.ok, ended.output

    [incident] = controller.incidents()
    assert incident["state"] == "contained", incident["reason"]
    assert {name: stage["outcome"] for name, stage in incident["stages"].items()} == {
        "detect": "ok",
        "diagnose": "ok",
        "isolate": "ok",
        "taint": "skipped",
        "evict": "skipped",
        "verify": "ok",
    }
    [change] = incident["changes"]
    assert (change["status"], change["after"]["cgroups"]) == ("applied", [])
    assert [cgroup["holders"] for cgroup in change["before"]["cgroups"]] == [[pid]]
    assert [one["topic"] for one in incident["notifications"]] == ["contained"]
    assert [(entry["action"], entry["status"]) for entry in controller.journal("bare-1")] == [
        ("terminate", "intended"),
        ("terminate", "applied"),
        ("kill", "intended"),
        ("kill", "applied"),
    ]
    assert incident["budget"]["within"] and incident["deadline_at"] == deadline


def test_dies_on_kubernetes(fleet, cluster):
    """S9, S11, S18: killed between the taint and its commit, while a budget refuses an eviction, and before verify: all is done once."""
    [node] = fleet.gpu_nodes("gpu-1")
    pods = {pod["metadata"]["name"] for pod in fleet.objects.deployment("infer", 2)}
    fleet.objects.pdb("infer", min_available=1)
    fleet.set("act")
    node.xid(0, 136)  # not certain on fleet evidence, so that no fence is earlier than the diagnosis
    ledger = sqlite3.connect(fleet.directory / "ledger.db", isolation_level=None, check_same_thread=False)

    def lock(request):
        if not ledger.in_transaction:
            ledger.execute("BEGIN IMMEDIATE")

    with admission(cluster, "nodes", Admission(before=lock)), fleet.playing("remediate", alert_file=fleet.alert("gpu-1", 0, 136)) as run:
        wait_until(lambda: TAINT in fleet.objects.taints("gpu-1") or run.poll() is not None, "the node is tainted", 180)
    ledger.close()
    assert run.returncode == KILLED, run.stdout.read()
    [incident] = fleet.incidents()
    assert [change["status"] for change in incident["changes"]] == ["intended"]
    lapse(fleet)

    with fleet.playing("reconcile") as run:  # one pod may go, and its like finds no place
        refused = {"resource": "pods/eviction", "code": 429, "since": fleet.begun}
        wait_until(lambda: cluster.audit(**refused) or run.poll() is not None, "an eviction is refused", 180)
    assert run.returncode == KILLED, run.stdout.read()
    assert fleet.incidents()[0]["stages"]["evict"]["state"] == "started"

    fleet.gpu_nodes("gpu-2")
    lapse(fleet)
    fleet.before = {"Begin verify": "kill -KILL 0"}
    assert fleet.play("reconcile").status == KILLED
    fleet.before = {}
    lapse(fleet)
    last = fleet.play("reconcile")

    assert last.ok, last.output
    [incident] = fleet.incidents()
    assert incident["state"] == "contained", last.output
    assert [(change["target"], change["status"]) for change in incident["changes"]] == [
        ("node/gpu-1/taint/gpu.unhealthy:NoSchedule", "applied")
    ]
    [taint] = fleet.writes("nodes")
    evictions = [entry for entry in fleet.writes("pods/eviction") if entry.code == 201]
    assert (taint.code, sorted(entry.name for entry in evictions)) == (200, sorted(pods))
    assert fleet.objects.taints("gpu-1") == [TAINT] and fleet.objects.pods_on("gpu-1") == []

    diagnose = incident["stages"]["diagnose"]
    assert {pod["name"] for pod in diagnose["data"]["evidence"]["pods"]} == pods
    known = dt.datetime.fromisoformat(diagnose["finished_at"])
    assert all(known < dt.datetime.fromisoformat(entry.time.replace("Z", "+00:00")) for entry in (taint, *evictions)), "evidence first"


def lapse(fleet, renewed="2026-01-01"):
    """The Lease of whoever died on gpu-1; or, renewed on a day to come, of one that lives."""
    fleet.objects.api.patch("Lease", "gpuops-gpu-1", {"spec": {"renewTime": f"{renewed}T00:00:00.000000Z"}}, NAMESPACE)


def lease(controller, node, seconds):
    """Whoever holds the node's lock has it for this long from now."""
    path = Path(controller.host_variables[node]["gpuops_state_dir"]) / "lock.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "until": time.clock_gettime(time.CLOCK_BOOTTIME) + seconds}))


@pytest.mark.parametrize("first_ends", [pytest.param(True, id="the first ends it"), pytest.param(False, id="the first dies")])
def test_two_reconciles_at_once(controller, tmp_path, first_ends):
    """S5: the second leaves the node to the first and says so; of one that died the lock lapses, and another takes over."""
    pid, alert = controller.sick("bare-1")
    controller.before = {"Knock": "kill -KILL 0"}
    assert controller.remediate(alert_file=alert).status == KILLED
    controller.before = {"End them": f"touch {tmp_path}/asleep; until [ -e {tmp_path}/awake ]; do sleep 0.1; done"}
    with controller.playing("reconcile") as first:
        wait_for(tmp_path / "asleep", first)
        lease(controller, "bare-1", 600)  # as if it renewed it
        controller.before = {}
        before = written(controller)
        second = controller.play("reconcile")
        assert second.ok and re.search("reconcile [0-9a-f]{8} .* holds the node's lock", second.output), second.output
        assert written(controller) == before and alive(pid)
        if first_ends:
            (tmp_path / "awake").touch()
            output = first.communicate(timeout=120)[0]
            assert first.returncode == 0 and not re.search(LOST, output), output
    if not first_ends:
        lease(controller, "bare-1", 0)
        third = controller.play("reconcile")
        assert third.ok, third.output
    [incident] = controller.incidents()
    assert incident["state"] == "contained", incident["reason"]
    assert not alive(pid)
    actions = [(entry["action"], entry["status"]) for entry in controller.journal("bare-1")]
    assert sorted(set(actions)) == sorted(actions), "once"


def meeting(tmp_path, task):
    """What runs do that meet before either takes a lock, and then the one that has it before `task`, by the word in a file."""
    return {
        "Read the mode, which may have changed since the incident was opened": f"""
            touch {tmp_path}/met-$PPID; until [ -e {tmp_path}/go ]; do sleep 0.1; done""",
        task: f"touch {tmp_path}/works-$PPID; until [ -e {tmp_path}/word ]; do sleep 0.1; done; . {tmp_path}/word",
    }


@contextlib.contextmanager
def two_of_one_row(controller, tmp_path, alert, lock_wait_seconds=1):
    """Two runs that read the same row of the inbox before either had decided it: the one that works, and the other."""
    row = controller.ledger(write=True).receive(alert.read_bytes(), "a webhook")
    with controller.playing("remediate", inbox_ids=[row], lock_wait_seconds=lock_wait_seconds) as one:
        wait_for(tmp_path / f"met-{one.pid}", one)
        with contextlib.closing(sqlite3.connect(controller.directory / "ledger.db", isolation_level=None)) as ledger:
            ledger.execute("UPDATE inbox SET handled_at = NULL")
        with controller.playing("remediate", inbox_ids=[row], lock_wait_seconds=lock_wait_seconds) as other:
            wait_for(tmp_path / f"met-{other.pid}", other)
            (tmp_path / "go").touch()
            wait_until(lambda: list(tmp_path.glob("works-*")), "one of them works", 120)
            works, leaves = sorted((one, other), key=lambda run: not (tmp_path / f"works-{run.pid}").exists())
            yield works, leaves


DIES = [pytest.param("", id="the one that works ends it"), pytest.param("kill -KILL 0", id="it dies")]


@pytest.mark.parametrize("word", DIES)
def test_two_runs_of_one_row(controller, tmp_path, word):
    """S5: one works, the other leaves the node to it, says so, ends well and changes nothing; if the one dies, reconcile goes on."""
    pid, alert = controller.sick("bare-1")
    controller.before = meeting(tmp_path, "End them")
    with two_of_one_row(controller, tmp_path, alert) as (works, leaves):
        lease(controller, "bare-1", 600)  # as if it renewed it
        before = written(controller)
        output = leaves.communicate(timeout=120)[0]
        assert leaves.returncode == 0 and re.search(r"remediate [0-9a-f]{8} \(.*\) holds the node's lock", output), output
        assert written(controller) == before and alive(pid)
        assert re.search(r"at work +remediate [0-9a-f]{8} ", controller.play("status").output)
        (tmp_path / "word").write_text(word)
        output = works.communicate(timeout=120)[0]
        assert works.returncode == (KILLED if word else 0) and not re.search(LOST, output), output
    if word:
        lease(controller, "bare-1", 0)
        controller.before = {}
        assert controller.play("reconcile").ok
    [incident] = controller.incidents()
    assert incident["state"] == "contained" and incident["budget"]["within"], incident["reason"]
    assert not alive(pid)
    actions = [(entry["action"], entry["status"]) for entry in controller.journal("bare-1")]
    assert sorted(set(actions)) == sorted(actions), "once"


def test_one_that_waited_goes_on_from_what_the_other_found(controller, tmp_path):
    """S9: the verdict came after it had listed the incident. The other dies with the node's lock, before it has done anything about it."""
    pid, alert = controller.sick("bare-1")
    controller.before = meeting(tmp_path, "Begin isolate")
    with two_of_one_row(controller, tmp_path, alert, lock_wait_seconds=120) as (works, waits):
        (tmp_path / "word").write_text(f"[ $PPID != {works.pid} ] || kill -KILL 0")
        assert works.wait(timeout=120) == KILLED
        lease(controller, "bare-1", 0)
        output = waits.communicate(timeout=120)[0]
    assert waits.returncode == 0, output
    [incident] = controller.incidents()
    assert incident["state"] == "contained", incident["reason"]
    assert {name: incident["stages"][name]["outcome"] for name in ("isolate", "verify")} == {"isolate": "ok", "verify": "ok"}, output
    assert not alive(pid)


@pytest.mark.parametrize("word", DIES)
def test_two_runs_of_one_row_on_kubernetes(fleet, tmp_path, word):
    """S5: one set of writes, as the API server saw them."""
    [node] = fleet.gpu_nodes("gpu-1")
    fleet.set("act")
    node.xid(0, 136)
    fleet.before = meeting(tmp_path, "Begin evict")
    with two_of_one_row(fleet, tmp_path, fleet.alert("gpu-1", 0, 136)) as (works, leaves):
        lapse(fleet, "2099-01-01")
        output = leaves.communicate(timeout=120)[0]
        assert leaves.returncode == 0 and re.search(r"locked by remediate [0-9a-f]{8} \(", output), output
        [lock] = fleet.ledger().overview()["locks"]
        lease_of = fleet.objects.api.get("Lease", "gpuops-gpu-1", NAMESPACE)["spec"]["holderIdentity"]
        file = json.loads((Path(fleet.host_variables["gpu-1"]["gpuops_state_dir"]) / "lock.json").read_text())
        assert {lock["holder"], lease_of, file["holder"]} == {lease_of}, "everywhere the same"
        (tmp_path / "word").write_text(word)
        output = works.communicate(timeout=120)[0]
        assert works.returncode == (KILLED if word else 0) and not re.search(LOST, output), output
    if word:
        lapse(fleet)
        fleet.before = {}
        assert fleet.play("reconcile").ok
    [incident] = fleet.incidents()
    assert incident["state"] == "contained", incident["reason"]
    assert [(entry.name, entry.code) for entry in fleet.writes("nodes")] == [("gpu-1", 200)]
    assert [change["status"] for change in incident["changes"]] == ["applied"]


def test_reconcile_tells_before_it_turns_to_the_nodes(controller, tmp_path):
    """Of those that wait it takes the oldest, as many as there is room for; people and monitoring hear of it before the first node is done."""
    controller.variables["gpuops_max_parallel_nodes"] = 1
    alerts = [controller.sick(name)[1] for name in ("bare-1", "bare-2", "bare-3")]
    controller.before = {"Knock": "kill -KILL 0"}
    for alert in alerts:
        assert controller.remediate(alert_file=alert).status == KILLED
    told = tmp_path / "told"
    reconciled = controller.play("reconcile", notify_command=["tee", "-a", str(told)])
    assert reconciled.status == KILLED, reconciled.output
    assert json.loads(told.read_text())["topic"] == "fenced_waiting"
    figures = controller.ledger().figures()
    assert figures.reconcile_seen_at and figures.reconciled_at is None, "it has not got to its end"
    controller.before = {}
    for left in (["fenced_waiting", "fenced_waiting"], ["fenced_waiting"], []):
        run = controller.play("reconcile", room_wait_seconds=0)
        assert run.ok, run.output
        assert [one["state"] for one in controller.incidents()] == ["contained"] * (3 - len(left)) + left


@pytest.mark.parametrize("ends", [pytest.param(True, id="the first ends meanwhile"), pytest.param(False, id="it takes longer")])
def test_runs_together_work_on_no_more_nodes_than_may_be(controller, tmp_path, ends):
    """Each has forks of its own. The second waits, without the node's lock, until the first has ended; then it goes on, or leaves the node waiting."""
    controller.variables["gpuops_max_parallel_nodes"] = 1
    [(pid, first_alert), (other_pid, second_alert)] = [controller.sick(name) for name in ("bare-1", "bare-2")]
    controller.before = {"End them": f"touch {tmp_path}/asleep; until [ -e {tmp_path}/awake ]; do sleep 0.1; done"}
    with controller.playing("remediate", alert_file=first_alert) as first:
        wait_for(tmp_path / "asleep", first)
        lease(controller, "bare-1", 600)  # as if it renewed it
        controller.before = {"Begin as soon as there is room": f"touch {tmp_path}/waits"}
        with controller.playing("remediate", alert_file=second_alert, room_wait_seconds=120 if ends else 1) as second:
            wait_for(tmp_path / "waits", second)
            if ends:
                (tmp_path / "awake").touch()
                assert first.wait(timeout=120) == 0
            output = second.communicate(timeout=240)[0]
        assert second.returncode == 0, output
        states = [one["state"] for one in controller.incidents()]
        if not ends:
            assert states == ["running", "fenced_waiting"] and alive(other_pid) and "reconcile takes it up" in output, output
            assert not Path(controller.host_variables["bare-2"]["gpuops_state_dir"], "lock.json").exists()
            (tmp_path / "awake").touch()
        else:
            assert states == ["contained", "contained"], output
            one, other = (incident["stages"] for incident in controller.incidents())
            assert dt.datetime.fromisoformat(one["verify"]["finished_at"]) < dt.datetime.fromisoformat(other["diagnose"]["started_at"])
        first.wait(timeout=120)
    assert not alive(pid)


def test_what_another_has_done_meanwhile_is_left(controller, tmp_path):
    """Whoever waited for room would lock the node for nothing, beside all those that the ledger counts."""
    controller.variables["gpuops_max_parallel_nodes"] = 1
    [(_pid, first_alert), (pid, second_alert)] = [controller.sick(name) for name in ("bare-1", "bare-2")]
    controller.before = {"Knock": "kill -KILL 0"}
    assert controller.remediate(alert_file=first_alert).status == KILLED
    controller.before = {"Begin as soon as there is room": f"touch {tmp_path}/asleep; until [ -e {tmp_path}/awake ]; do sleep 0.1; done"}
    with controller.playing("remediate", alert_file=second_alert) as waits:
        wait_for(tmp_path / "asleep", waits)
        controller.before = {}
        run = controller.play("reconcile", room_wait_seconds=120)
        assert run.ok and [one["state"] for one in controller.incidents()] == ["contained", "contained"], run.output
        stages = [one["stages"] for one in controller.incidents()]
        (tmp_path / "awake").touch()
        output = waits.communicate(timeout=240)[0]
    assert waits.returncode == 0 and "another run has taken it up" in output and "Take the lock on the node" not in output, output
    assert [one["stages"] for one in controller.incidents()] == stages and not alive(pid)


def test_a_node_that_another_has_done_is_not_locked(controller, tmp_path):
    """It was listed as running, so it asks for no room; the lock that comes too late would be one beside all those that the ledger counts."""
    pid, alert = controller.sick("bare-1")
    controller.before = {"Knock": "kill -KILL 0"}
    assert controller.remediate(alert_file=alert).status == KILLED
    controller.before = {
        "Read the mode, which may have changed since the incident was opened": f"touch {tmp_path}/asleep; until [ -e {tmp_path}/awake ]; do sleep 0.1; done"
    }
    with controller.playing("reconcile") as late:
        wait_for(tmp_path / "asleep", late)
        controller.before = {}
        assert controller.remediate(alert_file=alert).ok
        [done] = controller.incidents()
        (tmp_path / "awake").touch()
        output = late.communicate(timeout=240)[0]
    assert late.returncode == 0 and "another run has ended what was to be done on node bare-1" in output, output
    assert "Begin diagnose" not in output and done["state"] == "contained" and not alive(pid)
    assert [one["stages"] for one in controller.incidents()] == [done["stages"]]
    file = json.loads((Path(controller.host_variables["bare-1"]["gpuops_state_dir"]) / "lock.json").read_text())
    assert controller.ledger().locks() == [] and file["holder"] is None


@pytest.mark.parametrize("task", ["End them", "End isolate", "End each incident in the state that its stages amount to"])
def test_sleeper_stops_where_another_took_over(controller, tmp_path, task):
    """S5: a run that was stopped before its kill or before it keeps anything, and finds the incident taken up, touches and writes nothing more."""
    pid, alert = controller.sick("bare-1")
    controller.before = {task: f"touch {tmp_path}/asleep; until [ -e {tmp_path}/awake ]; do sleep 0.1; done"}
    with controller.playing("remediate", alert_file=alert) as sleeper:
        wait_for(tmp_path / "asleep", sleeper)
        controller.before = {}
        lease(controller, "bare-1", 0)
        taken = controller.remediate(alert_file=alert)
        before = written(controller)
        (tmp_path / "awake").touch()
        output = sleeper.communicate(timeout=120)[0]

    assert taken.ok, taken.output
    assert not alive(pid)
    [incident] = controller.incidents()
    assert incident["state"] == "contained"
    assert re.search(LOST, output)
    assert written(controller) == before


def written(controller):
    """All that a run may write; what is counted from now is none of it."""
    stories = [{name: value for name, value in story.items() if name not in ("seconds_left", "budget")} for story in controller.incidents()]
    return controller.journal("bare-1"), stories


@pytest.mark.parametrize(
    "task, stage",
    [
        pytest.param("Read the GPUs, the kernel log and who holds what", "diagnose", id="before it reads"),
        pytest.param("End them", "isolate", id="before it kills"),
        pytest.param("Prove that nobody holds the sick GPU", "verify", id="before it proves"),
    ],
)
def test_stops_where_the_nodes_file_is_anothers(controller, tmp_path, task, stage):
    """S5: each module on a bare node asks the file there, whatever the ledger's mirror of it says; nothing more is done or concluded."""
    pid, alert = controller.sick("bare-1")
    lock = Path(controller.host_variables["bare-1"]["gpuops_state_dir"]) / "lock.json"
    take = tmp_path / "take.py"
    take.write_text(
        "import json, pathlib\n"
        f"lock = pathlib.Path({str(lock)!r})\n"
        "have = json.loads(lock.read_text())\n"
        "lock.write_text(json.dumps({**have, 'holder': 'another', 'token': have['token'] + 1}))\n"
    )
    controller.before = {task: f"{sys.executable} {take}"}
    run = controller.remediate(alert_file=alert)
    assert run.ok and "lost the node's lock" in run.output, run.output
    [incident] = controller.incidents()
    assert (incident["state"], incident["stages"][stage]["state"]) == ("running", "started"), "reconcile takes it up"
    assert (incident["verdict"] is None) == (stage == "diagnose")
    assert alive(pid) == (stage != "verify")
    assert bool(controller.journal("bare-1")) == (stage == "verify")
    assert json.loads(lock.read_text())["holder"] == "another"


def wait_for(path: Path, process: subprocess.Popen, seconds: float = 120):
    until = time.monotonic() + seconds
    while not path.exists():
        assert process.poll() is None and time.monotonic() < until, "the run ended or took too long before the task"
        time.sleep(0.1)
