# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: dead_workers
type: aggregate
short_description: End a run whose worker was killed
version_added: "0.1.0"
author: The gpuops.remediation maintainers (@gpuops)
description:
  - Under the strategies P(ansible.builtin.free#strategy) and P(ansible.builtin.host_pinned#strategy), ansible-core waits for ever for the
    result of a worker that was killed, as by the kernel when memory runs out. This ends such a run with SIGTERM, as a service manager does.
  - Under P(ansible.builtin.linear#strategy) ansible-core looks for dead workers itself, and this does nothing.
  - The collection's own playbooks have it without any setting. For other playbooks it is enabled as every callback.
"""

import os
import signal
import sys
import threading
import time
from multiprocessing import process
from typing import Any

from ansible.executor.process.worker import WorkerProcess
from ansible.plugins.callback import CallbackBase

LOOK_SECONDS = 1.0


class CallbackModule(CallbackBase):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "gpuops.remediation.dead_workers"

    def __init__(self) -> None:
        super().__init__()
        self._unheeded = False  # whether the strategy looks only when all is done
        self._workers: dict[Any, WorkerProcess] = {}  # by what keeps the exit status once Ansible has closed the worker
        self._heard: set[tuple[str, str]] = set()  # hosts and tasks whose result has come: nobody waits for that worker
        self._thread = threading.Thread(target=self._watch, name="dead_workers", daemon=True)

    def v2_playbook_on_play_start(self, play: Any) -> None:
        self._unheeded = play.strategy.rpartition(".")[2] in ("free", "host_pinned")
        self._workers.clear()
        self._heard.clear()
        if self._unheeded and not self._thread.ident:
            self._thread.start()

    def v2_playbook_on_task_start(self, task: Any, is_conditional: bool) -> None:
        # Ansible is about to put another worker in the place of one that has ended, and forgets how.
        if self._unheeded:
            self._note()

    def v2_playbook_on_handler_task_start(self, task: Any) -> None:
        if self._unheeded:
            self._note()

    def v2_runner_on_start(self, host: Any, task: Any) -> None:
        self._heard.discard((host.name, task._uuid))

    def v2_runner_on_ok(self, result: Any) -> None:
        self._hear(result)

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        self._hear(result)

    def v2_runner_on_skipped(self, result: Any) -> None:
        self._hear(result)

    def v2_runner_on_unreachable(self, result: Any) -> None:
        self._hear(result)

    def _hear(self, result: Any) -> None:
        self._heard.add((result._host.name, result._task._uuid))

    def v2_playbook_on_stats(self, stats: Any) -> None:
        self._unheeded = False

    def _note(self) -> None:
        # active_children() would leave out those that have ended.
        for child in list(process._children):  # type: ignore[attr-defined]
            if isinstance(child, WorkerProcess) and child._popen:
                self._workers.setdefault(child._popen, child)

    def _watch(self) -> None:
        doomed = False
        while True:
            time.sleep(LOOK_SECONDS)
            dead = self._dead() if self._unheeded else []
            if dead and doomed:  # at two looks: a run that is ending for another reason is given the time to
                self._end(dead)
                return
            doomed = bool(dead)

    def _dead(self) -> list[WorkerProcess]:
        self._note()
        for popen in list(self._workers):
            if popen.poll() == 0:
                self._workers.pop(popen, None)
        dead = [worker for popen, worker in list(self._workers.items()) if popen.poll()]
        return [worker for worker in dead if (worker._host.name, worker._task._uuid) not in self._heard]

    def _end(self, dead: list[WorkerProcess]) -> None:
        where = "; ".join(f"{worker._host.name}, {worker._task.get_name()}" for worker in dead)
        self._display.error(
            f"A worker process was killed or crashed before its task had ended ({where}), as happens when memory runs out. "
            "This run ends here, since Ansible would wait for it for ever. Its locks lapse, and reconcile goes on with its incidents."
        )
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGTERM)
