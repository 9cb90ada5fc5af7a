# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A run whose worker is killed alone ends by itself, and no other does, on the oldest, the usual and the newest ansible-core."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

import pytest
from canaries import CORES, controller_of
from cluster.objects import wait_until
from loop import alive, children

pytestmark = pytest.mark.timeout(900)
ENDS_SECONDS = 30.0
LINGERS = """
import time
from multiprocessing import util

from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        util.Finalize(None, time.sleep, args=(60,), exitpriority=1)  # once the result is sent
        return {}
"""
PLAYS = """
- hosts: localhost
  gather_facts: false
  tasks:
    - lingers:

- hosts: localhost
  gather_facts: false
  strategy: host_pinned
  tasks:
    - ansible.builtin.command: sleep 15
"""


@pytest.fixture(params=CORES)
def controller(request, tmp_path):
    with controller_of(request.param, tmp_path / "c") as made:  # short, for the newest core has a socket in it
        made.ledger(write=True).set_mode("act", "tests", "the test needs it")
        yield made


def worker_of(playbook):
    for pid in children(playbook):
        with contextlib.suppress(OSError):
            if b"/ansible-playbook\0" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
    return None


def began(controller, stage):
    return any(stage in one["stages"] for one in controller.incidents())


def test_killed(controller):
    """As when memory runs out; nothing has to be set for it."""
    pid, alert = controller.sick("bare-1", ansible_python_interpreter=sys.executable)
    with controller.playing("remediate", alert_file=alert) as run:
        wait_until(lambda: run.poll() is not None or began(controller, "isolate"), "the nodes' play", 200)
        assert run.poll() is None, run.communicate()[0]
        os.kill(wait_until(lambda: worker_of(run.pid), "a worker", 60), signal.SIGKILL)
        since = time.monotonic()
        output = run.communicate(timeout=120)[0]
        assert time.monotonic() - since < ENDS_SECONDS, output
    assert run.returncode == -signal.SIGTERM, output
    assert " ".join(output.split()).count("killed or crashed before its task had ended (bare-1, ") == 1, output
    assert controller.incidents()[0]["state"] == "running"

    wait_until(lambda: not controller.ledger().busy_nodes(), "the end of the dead run's lock", 60)
    ended = controller.play("reconcile")
    assert ended.ok, ended.output
    assert [one["state"] for one in controller.incidents()] == ["contained"]
    assert not alive(pid)


def test_lingers(controller, tmp_path):
    """A worker that takes long to exit: Ansible kills it when its play is over, and the next play goes on, looked at several times."""
    for name, text in {"action_plugins/lingers.py": LINGERS, "library/lingers.py": "", "plays.yml": PLAYS}.items():
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    controller.more_environment["ANSIBLE_CALLBACKS_ENABLED"] = "gpuops.remediation.dead_workers"
    run = controller.play(str(tmp_path / "plays.yml"))
    assert run.ok, run.output
