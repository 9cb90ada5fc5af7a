# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Notifications: written in the transaction that they tell of, sent later, once by each channel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._incident.times import iso
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.database import Database

try:
    import sqlalchemy as sa
    from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.tables import OUTBOX
except ImportError:  # said by _ledger.database
    pass

CLAIM_SECONDS = 120
_RETRY_SECONDS = (30, 60, 120, 300, 900)


class Outbox(Database):
    def notify(self, key: str, topic: str, payload: Mapping[str, Any], incident_id: Optional[str] = None) -> bool:
        """Queue what was not queued before under this key."""
        with self.write() as connection:
            return self._notify(connection, key, topic, payload, incident_id)

    def _notify(
        self,
        connection: sa.Connection,
        key: str,
        topic: str,
        payload: Mapping[str, Any],
        incident_id: Optional[str] = None,
        *,
        due_at: Optional[datetime] = None,
    ) -> bool:
        if connection.execute(sa.select(OUTBOX.c.id).where(OUTBOX.c.key == key)).first():
            return False
        due_at = due_at or self.now()
        row = {"key": key, "topic": topic, "payload": dict(payload), "incident_id": incident_id}
        connection.execute(sa.insert(OUTBOX).values(**row, created_at=due_at, due_at=due_at, attempts=0))
        return True

    def claim_notifications(self, limit: int = 50, incident_id: Optional[str] = None, channels: Sequence[str] = ()) -> list[dict[str, Any]]:
        """Those that are due, for this caller to send by those of its channels that they name; one that dies leaves them to the next
        after two minutes."""
        with self.write() as connection:
            wanted = sa.select(OUTBOX).where(OUTBOX.c.sent_at.is_(None), OUTBOX.c.due_at <= self.now())
            if incident_id is not None:
                wanted = wanted.where(OUTBOX.c.incident_id == incident_id)
            claimed = []
            for row in connection.execute(wanted.order_by(OUTBOX.c.id).limit(limit)).all():
                told = {name: True for name, had in (row.channels or {}).items() if had}
                state = {**dict.fromkeys(channels, False), **told} if channels else row.channels or {}
                if channels and all(state.values()):  # the channel that failed is configured no longer
                    self._put(connection, row, channels=state, sent_at=self.now(), error=None)
                    continue
                later = self.now() + timedelta(seconds=CLAIM_SECONDS)
                self._put(connection, row, channels=state, due_at=later, attempts=row.attempts + 1)
                claimed.append({**notification(row), "channels": _due(state)})
            return claimed

    def notifications_sent(self, ids: list[int], channel: Optional[str] = None) -> int:
        """By one channel, or altogether."""
        with self.write() as connection:
            news = 0
            for row in connection.execute(sa.select(OUTBOX).where(OUTBOX.c.id.in_(ids), OUTBOX.c.sent_at.is_(None))).all():
                state = row.channels or {}
                if channel is not None and state.get(channel):
                    continue
                state = dict.fromkeys(state, True) if channel is None else {**state, channel: True}
                self._put(connection, row, channels=state, **({"sent_at": self.now(), "error": None} if all(state.values()) else {}))
                news += 1
            return news

    def notifications_failed(self, ids: list[int], why: str) -> int:
        """They come up again, later each time."""
        with self.write() as connection:
            rows = connection.execute(sa.select(OUTBOX).where(OUTBOX.c.id.in_(ids), OUTBOX.c.sent_at.is_(None))).all()
            for row in rows:
                wait = _RETRY_SECONDS[min(row.attempts, len(_RETRY_SECONDS)) - 1]
                due = self.now() + timedelta(seconds=wait)
                self._put(connection, row, due_at=due, error=why[:1000])
            return len(rows)

    @staticmethod
    def _put(connection: sa.Connection, row: sa.Row[Any], **values: Any) -> None:
        connection.execute(sa.update(OUTBOX).where(OUTBOX.c.id == row.id).values(**values))


def _due(channels: Mapping[str, bool]) -> list[str]:
    return sorted(name for name, told in channels.items() if not told)


def notification(row: sa.Row[Any]) -> dict[str, Any]:
    return {
        "id": row.id,
        "key": row.key,
        "topic": row.topic,
        "incident_id": row.incident_id,
        "payload": row.payload,
        "created_at": iso(row.created_at),
        "channels": _due(row.channels or {}),
        "attempts": row.attempts,
        "error": row.error,
    }
