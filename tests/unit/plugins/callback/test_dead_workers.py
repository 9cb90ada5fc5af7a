# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import contextlib
import os
import signal
from multiprocessing.context import ForkProcess
from types import SimpleNamespace

import pytest
from ansible.executor.process.worker import WorkerProcess
from ansible_collections.gpuops.remediation.plugins.callback import dead_workers
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


def dead(callback):
    return list(callback._dead().values())


def test_where_the_strategy_looks_itself_nobody_is_kept(callback):
    """Each would keep the variables of its task, which are many."""
    callback._unheeded = False
    worker = ended(lambda: None)
    callback.v2_playbook_on_task_start(None, False)
    assert not callback._awaited
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
    assert dead(callback) == ([worker] if counts else [])
    other.close()


@pytest.mark.parametrize("strategy, watches", [("ansible.builtin.host_pinned", True), ("free", True), ("linear", False)])
def test_only_where_the_strategy_does_not_look_itself(callback, monkeypatch, strategy, watches):
    monkeypatch.setattr(callback, "_thread", SimpleNamespace(ident=None, start=lambda: started.append(True)))
    started = []
    callback.v2_playbook_on_play_start(SimpleNamespace(strategy=strategy))
    assert (bool(started), callback._unheeded) == (watches, watches)


@pytest.mark.parametrize("how", ["ok", "failed", "skipped", "unreachable"])
def test_one_whose_result_has_come_keeps_nobody_waiting(callback, how):
    """As one that dies while it exits, at the end of a play. The same task may be begun on the host again, as a handler's is."""
    worker = ended(killed)
    assert dead(callback) == [worker]
    getattr(callback, f"v2_runner_on_{how}")(worker)
    assert dead(callback) == []
    again = ended(killed)
    assert dead(callback) == [again]
    worker.join()
    again.join()


def test_what_is_left_of_the_play_before_keeps_nobody_waiting(callback, monkeypatch):
    """Ansible kills what has not exited yet when a play is over, and lets it lie until the next worker starts."""
    monkeypatch.setattr(callback, "_thread", SimpleNamespace(ident=1))
    old = ended(killed)
    callback.v2_playbook_on_play_start(SimpleNamespace(strategy="host_pinned"))
    assert dead(callback) == []
    new = ended(killed)
    assert dead(callback) == [new]
    old.join()
    new.join()
    assert dead(callback) == [new] and not callback._past


def test_one_that_ansible_closes_meanwhile_ends_no_watch(callback, monkeypatch):
    class Closed(Worker):
        looks = iter([True])

        @property
        def _popen(self):
            return next(self.looks, None)

    monkeypatch.setattr("multiprocessing.process._children", {Closed.__new__(Closed)})
    assert [popen for popen, _worker in callback._children()] == [True]


@pytest.mark.parametrize("seconds, ends", [(9, False), (10, True)])
def test_what_is_heard_late_is_waited_for(callback, monkeypatch, seconds, ends):
    """Whoever has to be heard may be, also where another has died in the meantime."""

    class Over(Exception):
        pass

    looks = iter([{"one": "worker"}, {"one": "worker", "another": "worker 2"}])
    clock = iter([100, 100 + seconds])
    said = []

    def sleep(_seconds):
        if said or not looks.__length_hint__():
            raise Over

    monkeypatch.setattr(dead_workers, "time", SimpleNamespace(sleep=sleep, monotonic=lambda: next(clock)))
    monkeypatch.setattr(callback, "_dead", lambda: next(looks))
    monkeypatch.setattr(callback, "_end", said.append)
    with contextlib.suppress(Over):
        callback._watch()
    assert said == ([["worker"]] if ends else [])
