# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Sources are read by children under a deadline, side by side: a driver that hangs must not take the task with it.

A child streams what it finds, so that one which hangs half-way has still told the first half. One that even SIGKILL does not
end (uninterruptible sleep in the driver) is written down and left, and its source is not asked again while it lives.
"""

from __future__ import annotations

import ctypes
import json
import os
import selectors
import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Callable, NoReturn

from ansible_collections.gpuops.remediation.plugins.module_utils._errors import RemediationError
from ansible_collections.gpuops.remediation.plugins.module_utils._node.procfs import ProcFs, isoformat
from ansible_collections.gpuops.remediation.plugins.module_utils._node.statedir import StateDir, StateDirError

Item = Mapping[str, Any]
Emit = Callable[[Item], None]
Collect = Callable[[Emit], None]

PR_SET_PDEATHSIG = 1
PROGRAM = "program"  # the item by which a child tells [pid, start_ticks] of a program that it runs
_FILE = "abandoned.json"
_LAST_SHARE_SECONDS = 1.0  # of the time limit, kept for ending those that are late


@dataclass
class Answer:
    """`why` is None when the source told everything."""

    items: list[Any] = field(default_factory=list)
    why: str | None = None


@dataclass
class _Child:
    name: str
    pid: int
    pipe: int
    start_ticks: int
    answer: Answer
    programs: list[tuple[int, int]] = field(default_factory=list)
    buffer: bytes = b""
    open: bool = True


class Watchdog:
    def __init__(self, state: StateDir, timeout_seconds: float) -> None:
        self._state = state
        self._timeout = timeout_seconds
        self._proc = ProcFs("/proc")  # the children are this machine's, also where the node is simulated

    def collect(self, sources: Mapping[str, Collect]) -> tuple[dict[str, Answer], list[dict[str, Any]]]:
        """Every source's answer, and the abandoned children that still live. Without that record no child is started."""
        end = time.monotonic() + self._timeout
        left = {entry["source"]: entry for entry in self._abandoned()}
        answers = {
            name: Answer(why=f"an earlier reader, pid {entry['pid']}, hangs since {entry['since']} and cannot be killed")
            for name, entry in left.items()
        }
        children = [_start(name, collect, self._proc) for name, collect in sources.items() if name not in left]
        try:
            _listen(children, end - min(_LAST_SHARE_SECONDS, self._timeout / 4))
        finally:
            for child in children:
                if child.open:
                    child.answer.why = f"did not answer within {self._timeout:g} s"
                os.kill(child.pid, signal.SIGKILL)  # not reaped yet, so that the pid is still its own
            stuck = [(child, child.pid, child.start_ticks) for child in children if not _reap(child, end)]
            stuck += [(child, *one) for child in children for one in child.programs if not self._gone(*one, end)]
            if stuck:
                self._abandon(stuck)
        answers.update({child.name: child.answer for child in children})
        return {name: answers[name] for name in sources}, self._abandoned()

    def _abandoned(self) -> list[dict[str, Any]]:
        boot = self._proc.boot_id()
        found = self._state.read(_FILE, [])
        return [entry for entry in found if entry["boot_id"] == boot and self._proc.alive(entry["pid"], entry["start_ticks"])]

    def _gone(self, pid: int, start_ticks: int, until: float) -> bool:
        """A program dies with its child, and a moment later."""
        while self._proc.alive(pid, start_ticks):
            if time.monotonic() > until:
                return False
            time.sleep(0.01)
        return True

    def _abandon(self, stuck: list[tuple[_Child, int, int]]) -> None:
        boot, now = self._proc.boot_id(), isoformat(time.time())
        new = [{"source": child.name, "pid": pid, "start_ticks": ticks, "boot_id": boot, "since": now} for child, pid, ticks in stuck]
        try:
            with self._state.locked():
                self._state.write(_FILE, self._abandoned() + new)
        except StateDirError as error:  # what the others told is worth more than this record
            for child, pid, _ticks in stuck:
                child.answer.why = f"{child.answer.why}; pid {pid} cannot be killed, nor written down: {error}"


def _start(name: str, collect: Collect, proc: ProcFs) -> _Child:
    reader, writer = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        _run(collect, writer, parent)
    os.close(writer)
    found = proc.process(pid)
    return _Child(name, pid, reader, found.start_ticks if found else -1, Answer())


def _run(collect: Collect, writer: int, parent: int) -> NoReturn:
    """The child's whole life. It must never return into the module's code, nor keep its standard output open.

    Ansible waits until the output is closed: a hung child that had it would hang the task, which is what is prevented here.
    """
    code = 1
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        os.dup2(writer, 3)
        os.closerange(4, os.sysconf("SC_OPEN_MAX") if os.sysconf("SC_OPEN_MAX") < 65536 else 65536)
        lock = threading.Lock()

        def emit(item: Item) -> None:
            line = json.dumps(item).encode() + b"\n"
            with lock:
                while line:
                    line = line[os.write(3, line) :]

        try:
            collect(emit)
            emit({"end": None})
        except RemediationError as error:
            emit({"end": str(error)})
        except Exception as error:  # the parent says it; a traceback would go nowhere
            emit({"end": f"{type(error).__name__}: {error}"})
        code = 0
    finally:
        os._exit(code)


def _listen(children: list[_Child], until: float) -> None:
    with selectors.DefaultSelector() as selector:
        for child in children:
            selector.register(child.pipe, selectors.EVENT_READ, child)
        while selector.get_map():
            ready = selector.select(max(0.0, until - time.monotonic()))
            for key, _events in ready:
                child = key.data
                data = os.read(child.pipe, 1 << 16)
                child.buffer += data
                if not data:
                    child.answer.why = "ended before it had told all"
                if not data or _take_lines(child):
                    child.open = False
                    selector.unregister(child.pipe)
            if not ready and time.monotonic() >= until:
                return


def _take_lines(child: _Child) -> bool:
    """Whether the child has said that this was all."""
    *lines, child.buffer = child.buffer.split(b"\n")
    for line in lines:
        item = json.loads(line)
        if "end" in item:
            child.answer.why = item["end"]
            return True
        if PROGRAM in item:
            pid, start_ticks = item[PROGRAM]
            child.programs.append((pid, start_ticks))
        else:
            child.answer.items.append(item)
    return False


def _reap(child: _Child, until: float) -> bool:
    """A child may hang in its exit too (the driver's release), so that this never waits without a limit."""
    os.close(child.pipe)
    while os.waitpid(child.pid, os.WNOHANG) == (0, 0):
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True
