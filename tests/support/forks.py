# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The same work in many processes at the same moment."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any

PROCESSES: Any = multiprocessing.get_context("fork")


def at_once(count: int, work: Callable[[int], Any]) -> list[Any]:
    """The answers of `count` processes, in the order in which they come."""
    start, answers = PROCESSES.Barrier(count), PROCESSES.Queue()

    def one(number: int) -> None:
        start.wait(60)
        answers.put(work(number))

    processes = [PROCESSES.Process(target=one, args=(number,)) for number in range(count)]
    for process in processes:
        process.start()
    found = [answers.get(timeout=180) for _process in processes]
    for process in processes:
        process.join()
    return found
