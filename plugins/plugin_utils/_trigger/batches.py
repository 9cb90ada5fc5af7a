# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Which inbox rows are handed to a run, and when. Nothing here touches a clock, a queue or a database."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.reception import Kept

BUSY_SECONDS = 30.0  # how long a row waits for who has its node's lock: a second fault is to be opened, and fenced, within its own 720 s
_PATIENCE = 3  # windows, as a node that fails every few seconds would hold the others back for ever


@dataclass(frozen=True)
class _Entry:
    row: Kept
    since: float  # when it began to wait, or was handed over


class Batches:
    """Rows that arrive within one window leave together. Those of a node that is being worked on wait for a while, and hold nobody else back.

    Patient rows leave with each other: they may be one fault. Their longer window begins anew with each that arrives, up to three times in all. A
    row that was handed over and has no decision after retry_seconds waits again: whoever had it is gone.
    """

    def __init__(self, window_seconds: float, size: int, retry_seconds: float, patience_seconds: float = 0.0) -> None:
        self._window, self._size, self._retry = window_seconds, size, retry_seconds
        self._patience = max(window_seconds, patience_seconds)
        self._waiting: dict[int, _Entry] = {}
        self._handed: dict[int, _Entry] = {}

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def idle(self) -> bool:
        return not self._waiting and not self._handed

    def knows(self, inbox_id: int) -> bool:
        return inbox_id in self._waiting or inbox_id in self._handed

    def add(self, rows: Iterable[Kept], now: float) -> None:
        for row in rows:
            if row.due and row.inbox_id not in self._handed:
                self._waiting.setdefault(row.inbox_id, _Entry(row, now))

    def settle(self, undecided: Collection[int], asked: float, now: float) -> None:
        """Forget what the ledger had decided when it was asked, and take back what nobody decides. What came in since is not in its answer."""
        for inbox_id, entry in list(self._handed.items()):
            if inbox_id not in undecided:
                del self._handed[inbox_id]
            elif now - entry.since >= self._retry:
                del self._handed[inbox_id]
                self._waiting[inbox_id] = _Entry(replace(entry.row, patient=False), now - self._patience)
        for inbox_id, entry in list(self._waiting.items()):
            if inbox_id not in undecided and entry.since < asked:
                del self._waiting[inbox_id]

    def take(self, busy_nodes: Collection[str], now: float) -> list[Kept]:
        """The next batch, which counts as handed over now; empty while its window is open or every row's node is busy."""
        ours = {entry.row.node for entry in self._handed.values() if entry.row.node}  # their runs have not yet opened their incidents
        ready = [
            entry
            for entry in self._waiting.values()
            if entry.row.node not in ours and (entry.row.node not in busy_nodes or now - entry.since >= BUSY_SECONDS)
        ]
        for patient in (False, True):
            alike = [entry for entry in ready if entry.row.patient is patient]
            if len(alike) >= self._size or any(end <= now for end in self._ends(alike)):
                break
        else:
            return []
        batch = [entry.row for entry in alike[: self._size]]
        for row in batch:
            del self._waiting[row.inbox_id]
        self.handed(batch, now)
        return batch

    def handed(self, rows: Iterable[Kept], now: float) -> None:
        """From here on it counts whether anybody decides them."""
        self._handed.update({row.inbox_id: _Entry(row, now) for row in rows})

    def _ends(self, entries: Collection[_Entry]) -> list[float]:
        """Of their windows; the patient ones have one together."""
        patient = [entry.since for entry in entries if entry.row.patient]
        together = [min(max(patient) + self._patience, min(patient) + _PATIENCE * self._patience)] if patient else []
        return together + [entry.since + self._window for entry in entries if not entry.row.patient]

    def next_look(self, now: float) -> Optional[float]:
        """When a window ends; None where none is open."""
        return min((end for end in self._ends(self._waiting.values()) if end > now), default=None)
