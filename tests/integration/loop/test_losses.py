# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a run may lose on its way: the mode that it was opened in, the ledger, the node."""

from __future__ import annotations

import contextlib
import sqlite3
import sys
from pathlib import Path

import pytest
from loop import Controller, alive, reachable_until

pytestmark = pytest.mark.timeout(600)
KILLED = -9


@pytest.fixture
def controller(tmp_path):
    with Controller(tmp_path / "controller") as made:
        yield made


def test_the_mode_of_now_counts(controller):
    """S4, S5: an incident of mode observe goes on in mode act, under the node's lock; in mode observe its release leaves that lock alone."""
    pid, alert = controller.sick("bare-1")
    lock = Path(controller.host_variables["bare-1"]["gpuops_state_dir"]) / "lock.json"
    controller.before = {"Begin isolate": "kill -KILL 0"}
    assert controller.remediate(alert_file=alert).status == KILLED
    assert alive(pid) and not lock.exists()

    controller.before = {}
    controller.ledger(write=True).set_mode("act", "tests", "the test needs it")
    run = controller.remediate(alert_file=alert)
    assert run.ok, run.output
    [incident] = controller.incidents()
    assert incident["state"] == "contained", incident["reason"]
    assert not alive(pid)

    controller.ledger(write=True).set_mode("observe", "tests", "the test needs it")
    before = lock.read_text()
    release = controller.play("release", incident_id=incident["id"])
    assert not release.ok
    assert "the same board is still in the slot" in release.output
    assert lock.read_text() == before
    assert "say which incident" in controller.play("release", node="bare-1").output, "a release opens nothing"
    assert len(controller.incidents()) == 1


def test_a_ledger_that_cannot_be_written(controller, tmp_path):
    """S19: the run stops before it touches anything, and says so by its exit status too, although the ledger can still be read."""
    pid, alert = controller.sick("bare-1")
    controller.ledger(write=True).set_mode("act", "tests", "the test needs it")
    busy = tmp_path / "busy.py"
    busy.write_text(
        "import sqlite3, sys, time\n"
        f"connection = sqlite3.connect({str(controller.directory / 'ledger.db')!r}, isolation_level=None)\n"
        "connection.execute('BEGIN IMMEDIATE')\n"
        "time.sleep(40)\n"
    )
    controller.before = {"Begin isolate": f"{sys.executable} {busy} >/dev/null 2>&1 & sleep 2"}
    run = controller.remediate(alert_file=alert)
    assert run.status != 0, run.output
    assert "nothing is changed" in run.output
    assert alive(pid) and controller.journal("bare-1") == []
    assert [incident["state"] for incident in controller.incidents()] == ["running"], "reconcile takes it up"


LOCKING, READING = "Take the lock on the node", "Read the GPUs, the kernel log and who holds what"


@pytest.mark.parametrize(
    "task, how",
    [
        pytest.param(LOCKING, "leaves", id="leaves"),
        pytest.param(LOCKING, "hangs", id="hangs at first"),
        pytest.param(READING, "hangs", id="hangs"),
    ],
)
def test_a_node_that_goes_silent_on_the_way(controller, tmp_path, task, how):
    """S12, S16: it answered when it was knocked on, and then no more; its incident ends all the same, and is told."""
    gone, python = tmp_path / "gone", tmp_path / "python"
    python.write_text(f'#!/bin/sh\n[ ! -e {gone} ] || exec sleep 600\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    pid, alert = controller.sick("bare-1", ansible_python_interpreter=str(python) if how == "hangs" else sys.executable)
    if how == "leaves":
        reachable_until(controller, "bare-1", gone)
    controller.ledger(write=True).set_mode("act", "tests", "the test needs it")
    controller.before = {task: f"touch {gone}"}
    run = controller.remediate(alert_file=alert, read_seconds=1, lock_wait_seconds=1)
    assert run.ok, run.output
    [incident] = controller.incidents()
    assert (incident["state"], incident["stages"]["isolate"]["error_kind"]) == ("held_for_human", "node_silent"), incident["reason"]
    assert [entry["source"] for entry in incident["verdict"]["missing"]] == ["gpu_info"] * (task == READING)
    assert [one["topic"] for one in incident["notifications"]] == ["held_for_human"]
    assert controller.ledger().overview()["locks"] == [], "and the lock is given back"
    assert alive(pid)


def test_a_disk_on_which_no_lock_can_be_kept(controller):
    """S5, S16: the node answers, and is dealt with like one that does not; people hear why."""
    pid, alert = controller.sick("bare-1")
    Path(controller.host_variables["bare-1"]["gpuops_state_dir"], ".lock.json.new").mkdir(parents=True)  # nothing can be written there
    controller.ledger(write=True).set_mode("act", "tests", "the test needs it")
    run = controller.remediate(alert_file=alert)
    assert run.ok, run.output
    [incident] = controller.incidents()
    assert (incident["state"], incident["stages"]["isolate"]["error_kind"]) == ("held_for_human", "node_silent"), incident["reason"]
    assert "cannot write" in incident["reason"], incident["reason"]
    assert [entry["source"] for entry in incident["verdict"]["missing"]] == ["state_dir"]
    assert [one["topic"] for one in incident["notifications"]] == ["held_for_human"]
    assert controller.ledger().overview()["locks"] == [] and controller.journal("bare-1") == []
    assert alive(pid)


def test_reconcile_ends_what_could_not_be_locked_in_time(controller, tmp_path):
    """S16: until then it is tried again; and nobody who may be at work there is disturbed."""
    pid, alert = controller.sick("bare-1", gpuops_proc_root=str(tmp_path / "gone"))
    controller.ledger(write=True).set_mode("act", "tests", "the test needs it")
    run = controller.remediate(alert_file=alert)
    assert not run.ok and "gone" in run.output, run.output
    assert [one["state"] for one in controller.incidents()] == ["running"]
    with contextlib.closing(sqlite3.connect(controller.directory / "ledger.db", isolation_level=None)) as ledger:
        ledger.execute("UPDATE incidents SET deadline_at = '2026-01-01 00:00:00.000000'")
    told = tmp_path / "told"
    token = controller.ledger(write=True).take_lock("bare-1", "somebody", 600)
    assert not controller.play("reconcile").ok
    assert [one["state"] for one in controller.incidents()] == ["running"]
    controller.ledger(write=True).release_lock("bare-1", token)
    run = controller.play("reconcile", notify_command=["tee", "-a", str(told)])
    assert run.ok, run.output
    [incident] = controller.incidents()
    assert (incident["state"], incident["stages"].keys()) == ("held_for_human", {"detect"})
    assert "nobody could work on it" in incident["reason"] and "gone" in incident["reason"], incident["reason"]
    assert '"topic": "held_for_human"' in told.read_text()
    assert controller.ledger().overview()["locks"] == []
    assert alive(pid)


def test_reconcile_forgets_what_is_old(controller):
    """S19: the ledger's retention needs nobody who thinks of it."""
    ledger = controller.ledger(write=True)
    ledger.receive(b"{}", "long ago")
    ledger.receive(b"{}", "now")
    with contextlib.closing(sqlite3.connect(controller.directory / "ledger.db", isolation_level=None)) as raw:
        raw.execute("UPDATE inbox SET handled_at = received_at, received_at = '2020-01-01 00:00:00' WHERE source = 'long ago'")
        raw.execute("UPDATE inbox SET handled_at = received_at WHERE source = 'now'")
        run = controller.play("reconcile")
        assert run.ok, run.output
        assert raw.execute("SELECT source FROM inbox").fetchall() == [("now",)]
