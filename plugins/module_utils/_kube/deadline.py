# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""How long something may still take, and trying again until then."""

from __future__ import annotations

import random
import time
from typing import Callable, TypeVar

from ansible_collections.gpuops.remediation.plugins.module_utils._errors import RemediationError

Answer = TypeVar("Answer")


class Deadline:
    """A point in time on the monotonic clock; `clock` and `sleep` are replaced by tests."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep) -> None:
        self.clock = clock
        self._sleep = sleep
        self._end = clock() + seconds

    def left(self) -> float:
        return max(0.0, self._end - self.clock())

    def within(self, seconds: float) -> Deadline:
        """An earlier one, on the same clock."""
        return Deadline(min(seconds, self.left()), self.clock, self._sleep)

    def pause(self, seconds: float) -> None:
        self._sleep(min(seconds, self.left()))

    def attempt(
        self, call: Callable[[], Answer], *errors: type[RemediationError], first_seconds: float = 0.1, most_seconds: float = 3.0
    ) -> Answer:
        """`call`'s answer, tried again with growing, jittered pauses while it raises one of `errors`; the last one is raised at the end."""
        pause = first_seconds
        while True:
            try:
                return call()
            except errors as error:
                asked = getattr(error, "retry_after", None) or 0.0
                if self.left() <= asked:
                    raise
                self.pause(max(asked, pause * random.uniform(0.5, 1.0)))
                pause = min(pause * 2, most_seconds)
