# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the role responder installs, under a real systemd: the units in their sandbox, killed, stopped, restarted, deployed again."""

from __future__ import annotations

import contextlib
import time

import pytest
from cluster.objects import wait_until
from controller_machine import USER, VAULT, running_controller
from trigger import TOKEN

RESPONDER, RECONCILE, TIMER = "gpuops-responder.service", "gpuops-reconcile.service", "gpuops-reconcile.timer"
STOP_SECONDS = 15  # the unit's TimeoutStopSec
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    with running_controller(tmp_path_factory.mktemp("systemd") / "machine", ["bare-1", "bare-2", "bare-3"]) as made:
        run = made.deploy()
        assert run.ok, run.output
        wait_until(made.answers, "the responder's webhook", 120)
        made.mode("act")
        yield made


@contextlib.contextmanager
def no_reconcile(machine):
    """One may take up what a run has opened before the run has the node's lock."""
    machine.systemd.systemctl("stop", TIMER)
    wait_until(lambda: machine.systemd.show(RECONCILE, "ActiveState") == "inactive", "the end of a reconcile", 120)
    try:
        yield
    finally:
        machine.systemd.systemctl("start", TIMER)


def contained(machine, node):
    """In one incident, by one write."""
    wait_until(lambda: machine.incidents(node) == ["contained"], f"{node} contained", 240)
    assert machine.node(node)["processes"] == []
    return [entry["status"] for entry in machine.journal(node) if entry["action"] == "terminate"] == ["intended", "applied"]


def standing_run(machine, node):
    """The process of a run that does not end by itself."""
    machine.stand(node)
    with no_reconcile(machine):
        machine.post(node)
        pid = wait_until(machine.standing, "a run that stands", 240)
    assert pid in machine.systemd.members(RESPONDER)
    return pid


def test_an_alert_comes_to_its_end(machine):
    """The sandbox leaves a run what it needs, SSH to the node and a vault's password among it."""
    with no_reconcile(machine):
        machine.post("bare-1")
        assert contained(machine, "bare-1")


def test_secrets(machine):
    """Neither systemd nor its journal nor a command line shows them; a credential is the service's user's and root's."""
    systemd = machine.systemd
    shown = systemd.systemctl("show", "--all", RESPONDER, RECONCILE) + systemd.journal()
    shown += systemd.run("sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '").stdout
    assert "ansible-rulebook" in shown and TOKEN not in shown and VAULT not in shown
    credential = f"/run/credentials/{RESPONDER}/vault"
    assert systemd.run("cat", credential).stdout == VAULT
    assert systemd.run("cat", credential, user="nobody", check=False).returncode
    for name in ("vault", "responder.env", "responder.yml"):
        assert systemd.run("cat", f"/etc/gpuops/{name}", user=USER, check=False).returncode, f"{USER} reads {name}"


def test_killed(machine):
    """systemd ends the run that the rulebook left, starts the rulebook again, and the timer's reconcile finishes what was begun, once."""
    pid = standing_run(machine, "bare-2")
    machine.systemd.systemctl("kill", "--kill-whom=main", "--signal=KILL", RESPONDER)
    wait_until(lambda: pid not in machine.systemd.members(RESPONDER), "the end of the run that was left", STOP_SECONDS + 30)
    wait_until(machine.answers, "the responder's webhook", 120)
    assert machine.systemd.show(RESPONDER, "NRestarts") == "1"
    assert contained(machine, "bare-2")
    with no_reconcile(machine):
        assert (machine.systemd.show(RECONCILE, "Result"), machine.systemd.show(RECONCILE, "ExecMainStatus")) == ("success", "0")


def test_stopped(machine):
    """Nobody is left, not even what ignores SIGTERM in a session of its own."""
    standing_run(machine, "bare-3")
    began = time.monotonic()
    machine.systemd.systemctl("stop", RESPONDER)
    assert time.monotonic() - began < STOP_SECONDS + 10
    assert machine.systemd.members(RESPONDER) == []
    for _time in range(2):
        machine.systemd.systemctl("restart", RESPONDER)
    wait_until(machine.answers, "the responder's webhook", 120)


def deployed(machine, **variables):
    """What the role said, and whether the service was restarted."""
    before = machine.systemd.show(RESPONDER, "InvocationID")
    run = machine.deploy(**variables)
    assert run.ok, run.output
    return run, machine.systemd.show(RESPONDER, "InvocationID") != before


def test_deployed_again(machine):
    """Nothing is changed and nobody restarted by the same settings; others are taken up by a restart."""
    run, restarted = deployed(machine)
    assert (run.changed("localhost"), restarted) == (0, False), run.output
    run, restarted = deployed(machine, trigger_batch_size=100)
    assert restarted and "reload_pending" not in run.output, run.output
    wait_until(machine.answers, "the responder's webhook", 120)


def test_no_reload(machine):
    """S13: new units were enabled and started without one; loaded ones that changed are named and left, unless a reload is allowed."""

    def reloads():
        return machine.systemd.journal("_PID=1").count("Reloading")

    enabled = machine.systemd.systemctl("is-enabled", RESPONDER, TIMER).split()
    assert (enabled, reloads()) == (["enabled", "enabled"], 0)
    run, restarted = deployed(machine, responder_tasks_max=4095)
    assert f"reload_pending: {RESPONDER}, {RECONCILE}" in run.output, run.output
    assert (restarted, reloads(), machine.systemd.show(RESPONDER, "TasksMax")) == (False, 0, "4096")
    _run, restarted = deployed(machine, responder_daemon_reload=True)
    assert (restarted, reloads(), machine.systemd.show(RESPONDER, "TasksMax")) == (True, 1, "4095"), (
        "the same units, found as they should be"
    )
    _run, restarted = deployed(machine, responder_tasks_max=4094)
    assert (restarted, reloads(), machine.systemd.show(RESPONDER, "TasksMax")) == (True, 2, "4094")
    run, restarted = deployed(machine)
    assert (run.changed("localhost"), restarted, reloads()) == (0, False, 2), run.output
