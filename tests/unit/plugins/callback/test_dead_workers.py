# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import signal
from multiprocessing.context import ForkProcess
from types import SimpleNamespace

import pytest
from ansible.executor.process.worker import WorkerProcess
from ansible_collections.gpuops.remediation.plugins.callback.dead_workers import CallbackModule

initialize = ForkProcess.__init__  # WorkerProcess's own wants a whole task


class Worker(WorkerProcess):
    """One of Ansible's, with an end of its own in place of a task."""

    def __init__(self, end):
        initialize(self, daemon=True)
        self._end = end
        self._host, self._task = SimpleNamespace(name="bare-1"), SimpleNamespace(_uuid="task-1")

    def start(self):
        ForkProcess.start(self)

    def run(self):
        self._end()


def killed():
    os.kill(os.getpid(), signal.SIGKILL)


def ended(end):
    worker = Worker(end)
    worker.start()
    os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)  # which leaves it to be reaped
    return worker


@pytest.fixture
def callback():
    callback = CallbackModule()
    callback._unheeded = True
    return callback


def test_where_the_strategy_looks_itself_nobody_is_kept(callback):
    """Each would keep the variables of its task, which are many."""
    callback._unheeded = False
    worker = ended(lambda: None)
    callback.v2_playbook_on_task_start(None, False)
    assert not callback._workers
    worker.join()


@pytest.mark.parametrize(
    "end, counts",
    [
        pytest.param(killed, True, id="killed"),
        pytest.param(lambda: os._exit(1), True, id="could not send its result"),
        pytest.param(lambda: None, False, id="done"),
    ],
)
def test_one_whose_place_is_another_s_is_not_forgotten(callback, end, counts):
    """Ansible reaps and closes a worker before it puts another in its place; nothing is left of it then."""
    worker = ended(end)
    callback.v2_playbook_on_task_start(None, False)
    assert not worker.is_alive()
    worker.close()
    other = ended(lambda: None)
    assert callback._dead() == ([worker] if counts else [])
    other.close()


@pytest.mark.parametrize("strategy, watches", [("ansible.builtin.host_pinned", True), ("free", True), ("linear", False)])
def test_only_where_the_strategy_does_not_look_itself(callback, monkeypatch, strategy, watches):
    monkeypatch.setattr(callback, "_thread", SimpleNamespace(ident=None, start=lambda: started.append(True)))
    started = []
    callback.v2_playbook_on_play_start(SimpleNamespace(strategy=strategy))
    assert (bool(started), callback._unheeded) == (watches, watches)


@pytest.mark.parametrize("how", ["ok", "failed", "skipped", "unreachable"])
def test_one_whose_result_has_come_keeps_nobody_waiting(callback, how):
    """As one that dies while it exits, at the end of a play. The same task may be begun on the host again."""
    worker = ended(killed)
    getattr(callback, f"v2_runner_on_{how}")(worker)
    assert callback._dead() == []
    callback.v2_runner_on_start(worker._host, worker._task)
    assert callback._dead() == [worker]
    worker.join()
