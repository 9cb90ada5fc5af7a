# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""A bound on a whole call. The time limits of HTTP libraries are for each read, and none is for the name server."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any, Callable, TypeVar, Union

Answer = TypeVar("Answer")


def within(seconds: float, call: Callable[[], Answer]) -> Answer:
    """`call`'s answer, or TimeoutError; a call that is late is left to end by itself, and keeps no process alive."""
    [answer] = each_within(seconds, [call])
    if isinstance(answer, BaseException):
        raise answer
    return answer


def each_within(seconds: float, calls: Sequence[Callable[[], Answer]]) -> list[Union[Answer, BaseException]]:
    """The answers of calls that are made at once, in their order; in the place of one that failed, or is late, what is the matter."""
    answers: dict[int, Any] = {}

    def work(number: int) -> None:
        try:
            answers[number] = calls[number]()
        except BaseException as error:
            answers[number] = error

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(len(calls))]
    until = time.monotonic() + seconds
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    return [answers.get(number, TimeoutError("no answer within %g s" % seconds)) for number in range(len(calls))]
