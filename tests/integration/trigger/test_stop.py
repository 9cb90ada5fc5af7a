# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the unit of the role responder does to the real ansible-rulebook when it is stopped, in a cgroup as systemd would make it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time

import pytest
from cluster.objects import wait_until
from loop import REPOSITORY, Controller, alive
from trigger import Rulebook

UNIT = (REPOSITORY / "roles" / "responder" / "templates" / "service.j2").read_text()
STUBBORN = "trap '' HUP INT TERM; echo $$ >{directory}/stubborn; sleep 300"


def setting(name):
    [value] = re.findall(rf"^{name}=(.*)$", UNIT, re.MULTILINE)
    return value


def members(cgroup):
    return [int(pid) for pid in (cgroup.folder / "cgroup.procs").read_text().split()]


def send(number, pids):
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def stop(cgroup, main):
    """As systemd.kill(5) says, by what the unit says."""
    mode = setting("KillMode")
    send(signal.SIGTERM, members(cgroup) if mode == "control-group" else [main.pid])
    deadline = time.monotonic() + int(setting("TimeoutStopSec"))
    while time.monotonic() < deadline and (main.poll() is None or (mode == "control-group" and members(cgroup))):
        time.sleep(0.05)
    send(signal.SIGKILL, [main.pid] if mode == "process" else members(cgroup))
    main.wait(10)


@pytest.mark.timeout(400)
def test_a_stop_leaves_nobody_behind(tmp_path, cgroup_v2):
    """Not even what ignores SIGTERM in a session of its own; and the run that was cut is finished by reconcile."""
    with Controller(tmp_path / "controller") as controller:
        controller.ledger(write=True).set_mode("act", "tests", "the test needs it")
        pid, alert = controller.sick("bare-1")
        controller.before = {"Weigh the evidence": STUBBORN.format(directory=tmp_path)}
        rulebook = Rulebook(controller)
        rulebook.cgroup = cgroup_v2.folder
        with rulebook.running():
            rulebook.post(alert)
            wait_until((tmp_path / "stubborn").exists, "a run that does not end by itself", 120)
            sessions = {os.getsid(one) for one in members(cgroup_v2)}
            assert len(sessions) > 1, "a run has a session of its own, which is why the unit stops a cgroup"
            stop(cgroup_v2, rulebook.process)
            wait_until(lambda: not members(cgroup_v2), "the cgroup's emptiness", 5)
        wait_until(lambda: not controller.ledger().busy_nodes(), "the end of the dead run's lock", 60)
        controller.before = {}
        assert controller.play("reconcile").ok
        assert ([one["state"] for one in controller.incidents()], alive(pid)) == (["contained"], False)
