# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Which inbox rows are handed to a run, and when. Nothing here touches a clock, a queue or a database."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.reception import Kept


@dataclass(frozen=True)
class _Entry:
    row: Kept
    since: float  # when it began to wait, or was handed over


class Batches:
    """Rows that arrive within one window leave together; those of a node that is being worked on wait, and hold nobody else back.

    A row that was handed over and has no decision after retry_seconds waits again: whoever had it is gone.
    """

    def __init__(self, window_seconds: float, size: int, retry_seconds: float) -> None:
        self._window, self._size, self._retry = window_seconds, size, retry_seconds
        self._waiting: dict[int, _Entry] = {}
        self._handed: dict[int, _Entry] = {}

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def idle(self) -> bool:
        return not self._waiting and not self._handed

    def add(self, rows: Iterable[Kept], now: float) -> None:
        for row in rows:
            if row.due and row.inbox_id not in self._handed:
                self._waiting.setdefault(row.inbox_id, _Entry(row, now))

    def settle(self, undecided: Collection[int], now: float) -> None:
        """Forget what the ledger has decided, and take back what nobody decides."""
        for inbox_id, entry in list(self._handed.items()):
            if inbox_id not in undecided:
                del self._handed[inbox_id]
            elif now - entry.since >= self._retry:
                del self._handed[inbox_id]
                self._waiting[inbox_id] = _Entry(entry.row, now - self._window)
        for inbox_id in list(self._waiting):
            if inbox_id not in undecided:
                del self._waiting[inbox_id]

    def take(self, busy_nodes: Collection[str], now: float) -> list[Kept]:
        """The next batch, which counts as handed over now; empty while its window is open or every row's node is busy."""
        busy = {*busy_nodes, *(entry.row.node for entry in self._handed.values() if entry.row.node)}
        ready = [entry.row for entry in self._waiting.values() if entry.row.node not in busy]
        if not ready or (len(ready) < self._size and now < self.window_ends()):
            return []
        batch = ready[: self._size]
        for row in batch:
            del self._waiting[row.inbox_id]
            self._handed[row.inbox_id] = _Entry(row, now)
        return batch

    def window_ends(self) -> float:
        """When the first that waits has waited for long enough."""
        return min((entry.since for entry in self._waiting.values()), default=0.0) + self._window
