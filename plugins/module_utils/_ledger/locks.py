# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""One actor a node (S5): the ledger's own lock, and the mirror of locks that live elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Optional, TypeVar

from ansible_collections.gpuops.remediation.plugins.module_utils._incident.errors import IncidentEnded, LockHeld, LockLost
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.keys import LIVE_STATES
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.times import iso
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.database import Database

try:
    import sqlalchemy as sa
    from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.tables import INCIDENTS, LOCKS
except ImportError:  # said by _ledger.database
    pass

LEASE_SECONDS = 30

Self = TypeVar("Self", bound="Locks")


class Locks(Database):
    _under: Optional[tuple[str, str, int]] = None

    def under(self: Self, node: str, holder: str, token: int) -> Self:
        """From now on each write is refused once the node's lock is somebody else's, and else holds on to it, as the modules on the node do."""
        self._under = (node, holder, token)
        return self

    def _before_write(self, connection: sa.Connection) -> None:
        super()._before_write(connection)
        if self._under is None or self.check_mode:  # which has taken no lock
            return
        node, holder, token = self._under
        row = self._lock(connection, node)
        if row is None:
            return
        if row.token != token or row.holder not in (None, holder):
            told = (holder, node, token, row.holder or "nobody", row.token)
            raise LockLost("%s no longer has the lock of node %s with token %d: %s, with %d" % told, holder=row.holder)
        if row.holder:
            self._put_lock(connection, node, holder, token, self.now() + timedelta(seconds=LEASE_SECONDS))

    def take_lock(self, node: str, holder: str, lease_seconds: int = LEASE_SECONDS, *, incident_ids: Sequence[str] = ()) -> int:
        """The lock's token, higher than any before: whoever takes up its own incident again must not be mixed up with its old self."""
        with self.write() as connection:
            self._refuse_if_ended(connection, node, incident_ids)
            row, now = self._lock(connection, node), self.now()
            if row is not None and row.holder not in (None, holder) and row.expires_at > now:
                raise LockHeld("node %s is locked by %s until %s" % (node, row.holder, iso(row.expires_at)), holder=row.holder)
            token = row.token + 1 if row else 1
            self._put_lock(connection, node, holder, token, now + timedelta(seconds=lease_seconds))
            return token

    def renew_lock(self, node: str, token: int, lease_seconds: int = LEASE_SECONDS) -> None:
        """Hold on to the lock; one that lapsed and that nobody took is renewed with the same token."""
        with self.write() as connection:
            row = self._lock(connection, node)
            if row is None or row.holder is None or row.token != token:
                raise LockLost("the lock of node %s is no longer ours (token %d)" % (node, token), holder=row.holder if row else None)
            self._put_lock(connection, node, row.holder, token, self.now() + timedelta(seconds=lease_seconds))

    def release_lock(self, node: str, token: int, holder: Optional[str] = None) -> bool:
        """Give the lock back; somebody else's is left alone, also one whose token from another place happens to be the same."""
        with self.write() as connection:
            row = self._lock(connection, node)
            if row is None or row.holder is None or row.token != token or holder not in (None, row.holder):
                return False
            self._put_lock(connection, node, None, token, self.now())
            return True

    def record_lock(self, node: str, holder: Optional[str], token: int, expires: datetime, *, incident_ids: Sequence[str] = ()) -> None:
        """Mirror a lock that lives elsewhere; old news changes nothing.

        The ledger's own locks (of a silent node, of a mode that only observes) count on from what was mirrored last, and the place where the
        lock lives never hears of them: once they are given back or have lapsed, its next token may well be lower than theirs.
        """
        with self.write() as connection:
            self._refuse_if_ended(connection, node, incident_ids)
            row, now = self._lock(connection, node), self.now()
            if row is None or token >= row.token or row.holder is None or row.expires_at <= now:
                self._put_lock(connection, node, holder, token, expires)

    def _refuse_if_ended(self, connection: sa.Connection, node: str, incident_ids: Sequence[str]) -> None:
        """Whoever listed incidents before another run ended them has no work on the node, and its lock would keep room from others."""
        live = sa.select(INCIDENTS.c.id).where(INCIDENTS.c.id.in_(incident_ids), INCIDENTS.c.state.in_(LIVE_STATES))
        if incident_ids and connection.execute(live).first() is None:
            raise IncidentEnded("another run has ended what was to be done on node %s (%s)" % (node, ", ".join(incident_ids)))

    def locks(self) -> list[dict[str, Any]]:
        with self.read() as connection:
            return self._locks(connection)

    def _locks(self, connection: sa.Connection) -> list[dict[str, Any]]:
        rows, now = connection.execute(sa.select(LOCKS).where(LOCKS.c.holder.is_not(None)).order_by(LOCKS.c.node)), self.now()
        return [
            {"node": row.node, "holder": row.holder, "token": row.token, "expires_at": iso(row.expires_at), "live": row.expires_at > now}
            for row in rows
        ]

    def _lock(self, connection: sa.Connection, node: str) -> Any:
        return connection.execute(sa.select(LOCKS).where(LOCKS.c.node == node)).first()

    def _put_lock(self, connection: sa.Connection, node: str, holder: Optional[str], token: int, expires: datetime) -> None:
        values = {"holder": holder, "token": token, "expires_at": expires}
        if not connection.execute(sa.update(LOCKS).where(LOCKS.c.node == node).values(**values)).rowcount:
            connection.execute(sa.insert(LOCKS).values(node=node, **values))
