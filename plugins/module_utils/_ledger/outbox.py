# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Notifications: written in the transaction that they tell of, sent later, once."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
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
        self, connection: sa.Connection, key: str, topic: str, payload: Mapping[str, Any], incident_id: Optional[str] = None
    ) -> bool:
        if connection.execute(sa.select(OUTBOX.c.id).where(OUTBOX.c.key == key)).first():
            return False
        now = self.now()
        row = {"key": key, "topic": topic, "payload": dict(payload), "incident_id": incident_id}
        connection.execute(sa.insert(OUTBOX).values(**row, created_at=now, due_at=now, attempts=0))
        return True

    def claim_notifications(self, limit: int = 50, incident_id: Optional[str] = None) -> list[dict[str, Any]]:
        """Those that are due, for this caller to send; one that dies leaves them to the next after two minutes."""
        with self.write() as connection:
            wanted = sa.select(OUTBOX).where(OUTBOX.c.sent_at.is_(None), OUTBOX.c.due_at <= self.now())
            if incident_id is not None:
                wanted = wanted.where(OUTBOX.c.incident_id == incident_id)
            rows = connection.execute(wanted.order_by(OUTBOX.c.id).limit(limit)).all()
            ids = [row.id for row in rows]
            later = self.now() + timedelta(seconds=CLAIM_SECONDS)
            connection.execute(sa.update(OUTBOX).where(OUTBOX.c.id.in_(ids)).values(due_at=later, attempts=OUTBOX.c.attempts + 1))
            return [notification(row) for row in rows]

    def notifications_sent(self, ids: list[int]) -> int:
        with self.write() as connection:
            open_ones = sa.update(OUTBOX).where(OUTBOX.c.id.in_(ids), OUTBOX.c.sent_at.is_(None))
            return connection.execute(open_ones.values(sent_at=self.now(), error=None)).rowcount

    def notifications_failed(self, ids: list[int], why: str) -> int:
        """They come up again, later each time."""
        with self.write() as connection:
            rows = connection.execute(sa.select(OUTBOX).where(OUTBOX.c.id.in_(ids), OUTBOX.c.sent_at.is_(None))).all()
            for row in rows:
                wait = _RETRY_SECONDS[min(row.attempts, len(_RETRY_SECONDS)) - 1]
                due = self.now() + timedelta(seconds=wait)
                connection.execute(sa.update(OUTBOX).where(OUTBOX.c.id == row.id).values(due_at=due, error=why[:1000]))
            return len(rows)


def notification(row: sa.Row[Any]) -> dict[str, Any]:
    return {
        "id": row.id,
        "key": row.key,
        "topic": row.topic,
        "incident_id": row.incident_id,
        "payload": row.payload,
        "created_at": iso(row.created_at),
        "attempts": row.attempts,
        "error": row.error,
    }
