# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""What an event source asks of the inbox: keep many messages in one transaction, and say which are not decided yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._incident.parcels import Parcel
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.database import Database

try:
    import sqlalchemy as sa
    from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.tables import ALERTS, INBOX, LOCKS, SETTINGS
except ImportError:  # said by _ledger.database
    pass

_HELD_SECONDS = 60  # for as long, a repeat of a held alert is the other Alertmanager of a pair


@dataclass(frozen=True)
class Kept:
    """An inbox row. firing: whether any of its alerts is. due: the ledger has no decision about it yet. repeat: it was delivered before."""

    inbox_id: int
    node: Optional[str]
    firing: bool
    received_at: datetime
    due: bool = True
    repeat: bool = False


class Reception(Database):
    def keep(self, arrivals: Sequence[tuple[Parcel, str]]) -> list[Kept]:
        """Each parcel's row, with where it came from; all of them are committed, or none."""
        with self.write() as connection:
            return [self._keep(connection, parcel, source) for parcel, source in arrivals]

    def _keep(self, connection: sa.Connection, parcel: Parcel, source: str) -> Kept:
        row = connection.execute(sa.select(INBOX).where(INBOX.c.digest == parcel.digest)).first()
        if row is None:
            values: dict[str, Any] = {"received_at": self.now(), "source": source, "body": parcel.body}
            new = (
                sa.insert(INBOX)
                .values(node=parcel.node, firing=parcel.firing, digest=parcel.digest, deliveries=1, **values)
                .returning(INBOX.c.id)
            )
            return Kept(int(connection.execute(new).scalar_one()), parcel.node, parcel.firing, values["received_at"])
        due = row.handled_at is None or (row.firing and self._may_be_decided_otherwise(connection, row))
        values = {"deliveries": row.deliveries + 1, **({"handled_at": None} if due else {})}
        connection.execute(sa.update(INBOX).where(INBOX.c.id == row.id).values(**values))
        return Kept(row.id, row.node, row.firing, row.received_at, due=due, repeat=True)

    def _may_be_decided_otherwise(self, connection: sa.Connection, row: Any) -> bool:
        """The mode or the breaker was set since, or an alert was held, perhaps for a node that the inventory has by now, or left for a silence."""
        since = sa.select(SETTINGS.c.id).where(SETTINGS.c.name.in_(("mode", "breaker")), SETTINGS.c.set_at > row.handled_at)
        held = sa.select(ALERTS.c.id).where(ALERTS.c.inbox_id == row.id, ALERTS.c.reason.is_not(None))
        long_ago = row.handled_at < self.now() - timedelta(seconds=_HELD_SECONDS)
        return bool(connection.execute(since).first() or (long_ago and connection.execute(held).first()))

    def undecided(self) -> list[Kept]:
        """What was accepted and has no decision, the oldest first; also what came in a file and was left by a run that died."""
        due = (
            sa.select(INBOX.c.id, INBOX.c.node, INBOX.c.firing, INBOX.c.received_at)
            .where(INBOX.c.handled_at.is_(None))
            .order_by(INBOX.c.id)
        )
        with self.read() as connection:
            return [Kept(*row) for row in connection.execute(due)]

    def busy_nodes(self) -> set[str]:
        """Where somebody holds the node's lock right now."""
        live = sa.select(LOCKS.c.node).where(LOCKS.c.holder.is_not(None), LOCKS.c.expires_at > self.now())
        with self.read() as connection:
            return set(connection.execute(live).scalars())
