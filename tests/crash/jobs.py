# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Some cases at one place, played in a process of their own; several of these side by side."""

from __future__ import annotations

import multiprocessing
import shutil
import signal
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import NamedTuple

from crash import Case
from places import PLACES
from record import Record, Turn

ENDS_SECONDS = 60.0  # in which a job that is interrupted ends what it has started


class Job(NamedTuple):
    place: str
    repeat: int
    cases: Sequence[Case]


def jobs_of(turns: Iterable[Turn], size: int) -> Iterator[Job]:
    """At most so many cases each, of different boundaries; first those that take longest."""
    found: defaultdict[tuple[str, int], list[Case]] = defaultdict(list)
    for turn in turns:
        found[turn.place, turn.repeat].append(turn.case)
    for (place, repeat), cases in found.items():
        count = -(-len(cases) // size)
        yield from (Job(place, repeat, cases[number::count]) for number in range(count))


def play_all(jobs: Sequence[Job], at_once: int, record: Path) -> None:
    """Interrupted, it ends those that run, and what they have started."""
    waiting, running = list(jobs), list[SpawnProcess]()
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                running.append(multiprocessing.get_context("spawn").Process(target=_play, args=(waiting.pop(0), record)))
                running[-1].start()
            ended = wait([process.sentinel for process in running])
            for process in running:
                if process.sentinel in ended:
                    process.join()
            running = [process for process in running if process.sentinel not in ended]
            print(f"{len(waiting)} jobs wait, {len(running)} run", file=sys.stderr, flush=True)
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.join(ENDS_SECONDS)


def _play(job: Job, record: Path) -> None:
    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # at a terminal it is for the program, which ends its jobs
    folder = Path(tempfile.mkdtemp(prefix="gpuops-crash-", dir="/tmp"))  # short, for the sockets in it
    clean = False
    try:
        outcomes = PLACES[job.place][1](folder, job.cases)
        clean = not any(one.fault for one in outcomes)
        Record(record).add(job.place, job.repeat, outcomes)
    finally:
        log = folder / "controller" / "rulebook.log"
        if not clean and log.exists():
            shutil.copy(log, record.with_name(f"{record.stem}-{folder.name}.log"))
        shutil.rmtree(folder, ignore_errors=True)


def _end(*_arguments: object) -> None:
    """Once: a second signal, as where the whole group is signalled and the program too, would cut short what ends the rulebook."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(1)
