# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""What people and reconcile read: what is going on, what is left to do, and the story of one incident."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._incident.keys import SETTLED_STATES
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.records import next_command, stage_record
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.times import iso
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.inbox import Inbox
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.locks import Locks
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.outbox import notification

try:
    import sqlalchemy as sa
    from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.tables import (
        ALERTS,
        CHANGES,
        FAILURES,
        INBOX,
        INCIDENTS,
        OUTBOX,
        OWNERS,
        SLOTS,
        STAGES,
    )
except ImportError:  # said by _ledger.database
    pass

_ROW = (
    "id",
    "node",
    "host",
    "gpu",
    "pci_bus_id",
    "serial",
    "slot",
    "state",
    "domain",
    "scope",
    "opened_at",
    "deadline_at",
    "seconds_left",
    "reason",
)


def _in_line(row: Any) -> tuple[Any, str]:
    """Whoever waits longest comes first."""
    return row.clock_at, row.id


class Views(Inbox, Locks):
    def overview(self, node: Optional[str] = None, closed: bool = False) -> dict[str, Any]:
        with self.read() as connection:
            wanted = sa.select(INCIDENTS).order_by(INCIDENTS.c.opened_at.desc(), INCIDENTS.c.id.desc())
            if node:
                wanted = wanted.where(INCIDENTS.c.node == node)
            if not closed:
                wanted = wanted.where(INCIDENTS.c.open_key.is_not(None))
            rows = connection.execute(wanted).all()
            now = self.now()
            running = [row for row in rows if row.state == "running"]
            held = connection.execute(sa.select(ALERTS).where(ALERTS.c.status == "held").order_by(ALERTS.c.id)).all()
            cancelled = sa.select(INCIDENTS.c.id).where(INCIDENTS.c.state == "cancelled_by_human").order_by(INCIDENTS.c.opened_at)
            unhandled = sa.select(INBOX.c.id).where(INBOX.c.handled_at.is_(None)).order_by(INBOX.c.id)
            unsent = sa.select(OUTBOX).where(OUTBOX.c.sent_at.is_(None)).order_by(OUTBOX.c.id)
            return {
                "mode": self._mode(connection),
                "breaker": self._breaker(connection),
                "incidents": [self._status(connection, row) for row in rows],
                "unfinished": [row.id for row in running],
                "overdue": [row.id for row in running if row.deadline_at <= now],
                "waiting": [row.id for row in sorted(rows, key=_in_line) if row.state == "fenced_waiting"],
                "due_again": [row.id for row in rows if row.open_key and self._due_again(connection, row)],
                "cancelled": list(connection.execute(cancelled).scalars()),
                "unhandled": list(connection.execute(unhandled).scalars()),
                "unsent": [notification(row) for row in connection.execute(unsent)],
                "locks": self._locks(connection),
                "held_alerts": [
                    {"fingerprint": row.fingerprint, "reason": row.reason, "received_at": iso(row.received_at), "inbox_id": row.inbox_id}
                    for row in held
                ],
            }

    def _status(self, connection: sa.Connection, row: Any) -> dict[str, Any]:
        record = self._record(connection, row)
        age = int((self.now() - row.opened_at).total_seconds())
        return {**{name: record[name] for name in _ROW}, "age_seconds": age, "next_command": next_command(record)}

    def story(self, incident_id: str) -> dict[str, Any]:
        """One incident with its stages in order, its changes, its notifications and the time that it took."""
        changes = [change.record() for change in self.changes(incident_id)]
        with self.read() as connection:
            row = self._incident(connection, incident_id)
            mine = sa.select(STAGES).where(STAGES.c.incident_id == row.id).order_by(STAGES.c.round, STAGES.c.started_at)
            stages = connection.execute(mine).all()
            told = connection.execute(sa.select(OUTBOX).where(OUTBOX.c.incident_id == row.id).order_by(OUTBOX.c.id)).all()
            until = row.clock_at if row.state == "fenced_waiting" else row.ended_at or self.now()
            spent = max(0.0, (until - row.clock_at).total_seconds())
            total = (row.deadline_at - row.clock_at).total_seconds()
            return {
                **self._record(connection, row),
                "timeline": [{"stage": stage.name, "round": stage.round, **stage_record(stage)} for stage in stages],
                "changes": changes,
                "notifications": [{**notification(one), "sent_at": iso(one.sent_at)} for one in told],
                "budget": {"seconds": int(total), "spent_seconds": round(spent, 1), "within": spent <= total},
                "next_command": next_command(row._mapping),
            }

    def prune(self, older_than_days: int) -> int:
        """Forget what is long closed; what is open, unsent, or the last word on a GPU (a release or a human's; S3, S6) stays."""
        before = self.now() - timedelta(days=older_than_days)
        with self.write() as connection:
            last = (
                sa.select(sa.func.max(INCIDENTS.c.closed_at))
                .where(INCIDENTS.c.state.in_(SETTLED_STATES))
                .group_by(INCIDENTS.c.node_uid, INCIDENTS.c.gpu)
            )
            old = sa.select(INCIDENTS.c.id).where(INCIDENTS.c.closed_at < before, INCIDENTS.c.closed_at.not_in(last))
            owned = sa.select(OWNERS.c.change_id).where(OWNERS.c.incident_id.not_in(old))
            wheres = [
                (CHANGES, sa.and_(CHANGES.c.open_target.is_(None), CHANGES.c.reverted_at < before, CHANGES.c.id.not_in(owned))),
                (INCIDENTS, INCIDENTS.c.id.in_(old)),
                (ALERTS, sa.and_(ALERTS.c.received_at < before, ALERTS.c.incident_id.is_(None))),
                (INBOX, sa.and_(INBOX.c.received_at < before, INBOX.c.handled_at.is_not(None))),
                (OUTBOX, OUTBOX.c.sent_at < before),
                (SLOTS, SLOTS.c.taken_at < before),
                (FAILURES, FAILURES.c.failed_at < before),
            ]
            return sum(connection.execute(sa.delete(table).where(where)).rowcount for table, where in wheres)
