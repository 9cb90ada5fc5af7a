# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Commits that requests share: whoever arrives while one is on its way goes with the next."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from ansible_collections.gpuops.remediation.plugins.module_utils._incident.parcels import Parcel
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.reception import Kept

Arrival = tuple[Parcel, str]
Keep = Callable[[Sequence[Arrival]], list[Kept]]


class Commits:
    """`keep` blocks, so it runs in a thread of its own."""

    def __init__(self, keep: Keep) -> None:
        self._keep = keep
        self._waiting: list[tuple[Sequence[Arrival], asyncio.Future[list[Kept]]]] = []
        self._wake = asyncio.Event()

    async def commit(self, arrivals: Sequence[Arrival]) -> list[Kept]:
        """The rows, once they are committed; whatever `keep` raises reaches everybody who shared the commit."""
        future: asyncio.Future[list[Kept]] = asyncio.get_running_loop().create_future()
        self._waiting.append((arrivals, future))
        self._wake.set()
        return await future

    async def run(self) -> None:
        """Until it is cancelled; whoever waits then hears so."""
        shared: list[tuple[Sequence[Arrival], asyncio.Future[list[Kept]]]] = []
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                shared, self._waiting = self._waiting, []
                try:
                    kept = await asyncio.to_thread(self._keep, [arrival for arrivals, _future in shared for arrival in arrivals])
                except Exception as error:  # whatever it is, nobody may wait for ever
                    _answer(shared, error)
                else:
                    _answer(shared, iter(kept))
        finally:
            _answer([*shared, *self._waiting], ConnectionError("the event source stops"))


def _answer(shared: Any, answer: Any) -> None:
    for arrivals, future in shared:
        rows = None if isinstance(answer, Exception) else [next(answer) for _arrival in arrivals]
        if future.done():  # the client has gone
            continue
        if rows is None:
            future.set_exception(answer)
        else:
            future.set_result(rows)
