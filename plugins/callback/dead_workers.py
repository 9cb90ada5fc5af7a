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
DEAD_SECONDS = 10.0  # a run that is ending for another reason, or has not yet heard what the worker sent, is given the time to


class CallbackModule(CallbackBase):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "gpuops.remediation.dead_workers"

    def __init__(self) -> None:
        super().__init__()
        self._unheeded = False  # whether the strategy looks only when all is done
        self._awaited: dict[Any, WorkerProcess] = {}  # by what keeps the exit status once Ansible has closed the worker
        self._past: set[Any] = set()  # those whose result has come, and what is left of plays that are over: nobody waits for them
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._watch, name="dead_workers", daemon=True)

    def v2_playbook_on_play_start(self, play: Any) -> None:
        with self._lock:
            self._unheeded = play.strategy.rpartition(".")[2] in ("free", "host_pinned")
            self._past = {popen for popen, _worker in self._children()}
            self._awaited.clear()
        if self._unheeded and not self._thread.ident:
            self._thread.start()

    def v2_playbook_on_task_start(self, task: Any, is_conditional: bool) -> None:
        # Ansible is about to put another worker in the place of one that has ended, and forgets how.
        with self._lock:
            self._note()

    def v2_playbook_on_handler_task_start(self, task: Any) -> None:
        with self._lock:
            self._note()

    def v2_runner_on_ok(self, result: Any) -> None:
        self._hear(result)

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        self._hear(result)

    def v2_runner_on_skipped(self, result: Any) -> None:
        self._hear(result)

    def v2_runner_on_unreachable(self, result: Any) -> None:
        self._hear(result)

    def _hear(self, result: Any) -> None:
        """The same task may be begun on the host again, by another worker."""
        of = (result._host.name, result._task._uuid)
        with self._lock:
            self._note()
            self._forget([popen for popen, worker in self._awaited.items() if (worker._host.name, worker._task._uuid) == of])

    def v2_playbook_on_stats(self, stats: Any) -> None:
        self._unheeded = False

    def _children(self) -> list[tuple[Any, WorkerProcess]]:
        # active_children() would leave out those that have ended. Ansible may close one at any time.
        children = [(getattr(child, "_popen", None), child) for child in list(process._children)]  # type: ignore[attr-defined]
        return [(popen, child) for popen, child in children if popen and isinstance(child, WorkerProcess)]

    def _note(self) -> None:
        if not self._unheeded:
            return
        children = dict(self._children())
        self._past &= children.keys()
        self._awaited.update({popen: worker for popen, worker in children.items() if popen not in self._past})

    def _watch(self) -> None:
        since: dict[Any, float] = {}
        while True:
            time.sleep(LOOK_SECONDS)
            now, dead = time.monotonic(), self._dead()
            since = {popen: since.get(popen, now) for popen in dead}
            doomed = [worker for popen, worker in dead.items() if now - since[popen] >= DEAD_SECONDS]
            if doomed:
                self._end(doomed)
                return

    def _dead(self) -> dict[Any, WorkerProcess]:
        with self._lock:
            self._note()
            self._forget([popen for popen in self._awaited if popen.poll() == 0])
            return {popen: worker for popen, worker in self._awaited.items() if popen.poll()} if self._unheeded else {}

    def _forget(self, popens: list[Any]) -> None:
        for popen in popens:
            del self._awaited[popen]
        self._past.update(popens)

    def _end(self, dead: list[WorkerProcess]) -> None:
        where = "; ".join(f"{worker._host.name}, {worker._task.get_name()}" for worker in dead)
        self._display.error(
            f"A worker process was killed or crashed before its task had ended ({where}), as happens when memory runs out. "
            "This run ends here, since Ansible would wait for it for ever. Its locks lapse, and reconcile goes on with its incidents."
        )
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGTERM)
