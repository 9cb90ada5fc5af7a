# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""What an event source asks of the inbox: keep many messages in one transaction, and say which are not decided yet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._incident.parcels import Parcel
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.chunks import chunks
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.database import Database

try:
    import sqlalchemy as sa
    from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.tables import ALERTS, INBOX, LOCKS, SETTINGS
except ImportError:  # said by _ledger.database
    pass

_HELD_SECONDS = 60  # for as long, a repeat of a held alert is the other Alertmanager of a pair


@dataclass(frozen=True)
class Kept:
    """An inbox row. firing: whether any of its alerts is. patient: it waits for others that may be the same fault.

    due: the ledger has no decision about it yet. repeat: it was delivered before.
    """

    inbox_id: int
    node: Optional[str]
    firing: bool
    received_at: datetime
    patient: bool = False
    due: bool = True
    repeat: bool = False


class Reception(Database):
    def keep(self, arrivals: Sequence[tuple[Parcel, str]]) -> list[Kept]:
        """Each parcel's row, with where it came from; all of them are committed, or none. A storm costs few statements."""
        first: dict[str, tuple[Parcel, str]] = {}
        for parcel, source in arrivals:
            first.setdefault(parcel.digest, (parcel, source))
        deliveries = Counter(parcel.digest for parcel, _source in arrivals)
        with self.write() as connection:
            there = _by_digest(connection, first)
            due = self._deliver_again(connection, list(there.values()), deliveries)
            new = [self._values(*first[digest], deliveries[digest]) for digest in first if digest not in there]
            if new:
                connection.execute(sa.insert(INBOX), new)
            added = _by_digest(connection, [each["digest"] for each in new])
        rows, seen, kept = {**there, **added}, set(there), []
        for parcel, _source in arrivals:
            row, repeat = rows[parcel.digest], parcel.digest in seen
            is_due = row.id in due or parcel.digest in added
            kept.append(Kept(row.id, row.node, row.firing, row.received_at, row.patient, due=is_due, repeat=repeat))
            seen.add(parcel.digest)
        return kept

    def _values(self, parcel: Parcel, source: str, deliveries: int) -> dict[str, Any]:
        values: dict[str, Any] = {"received_at": self.now(), "source": source, "body": parcel.body, "deliveries": deliveries}
        return {**values, "node": parcel.node, "firing": parcel.firing, "patient": parcel.patient, "digest": parcel.digest}

    def _deliver_again(self, connection: sa.Connection, rows: Sequence[Any], deliveries: Mapping[str, int]) -> set[int]:
        """Which of these rows are due, now that they were delivered once more."""
        if not rows:
            return set()
        counted = sa.update(INBOX).where(INBOX.c.id == sa.bindparam("row")).values(deliveries=INBOX.c.deliveries + sa.bindparam("more"))
        connection.execute(counted, [{"row": row.id, "more": deliveries[row.digest]} for row in rows])
        again = self._may_be_decided_otherwise(connection, [row for row in rows if row.handled_at and row.firing])
        for some in chunks(again):
            connection.execute(sa.update(INBOX).where(INBOX.c.id.in_(some)).values(handled_at=None))
        return {row.id for row in rows if row.handled_at is None or row.id in again}

    def _may_be_decided_otherwise(self, connection: sa.Connection, rows: Sequence[Any]) -> set[int]:
        """The mode or the breaker was set since, or an alert was held, perhaps for a node that the inventory has by now, or left for a silence."""
        if not rows:
            return set()
        newest = sa.select(sa.func.max(SETTINGS.c.set_at, type_=SETTINGS.c.set_at.type)).where(SETTINGS.c.name.in_(("mode", "breaker")))
        set_at = connection.execute(newest).scalar()
        long_ago = self.now() - timedelta(seconds=_HELD_SECONDS)
        held: set[int] = set()
        for some in chunks([row.id for row in rows if row.handled_at < long_ago]):
            found = sa.select(ALERTS.c.inbox_id).where(ALERTS.c.inbox_id.in_(some), ALERTS.c.reason.is_not(None))
            held |= set(connection.execute(found).scalars())
        return {row.id for row in rows if row.id in held or (set_at is not None and set_at > row.handled_at)}

    def waiting(self) -> tuple[list[int], Optional[datetime]]:
        """The rows that were accepted and have no decision, and when the first was received. It is asked for every second, so it reads no more."""
        ids = sa.select(INBOX.c.id).where(INBOX.c.handled_at.is_(None)).order_by(INBOX.c.id)
        with self.read() as connection:
            found = list(connection.execute(ids).scalars().all())
            first = sa.select(INBOX.c.received_at).where(INBOX.c.id == found[0]) if found else None
            return found, None if first is None else connection.execute(first).scalar()

    def undecided(self, among: Optional[Sequence[int]] = None) -> list[Kept]:
        """What was accepted and has no decision, the oldest first; also what came in a file and was left by a run that died."""
        due = (
            sa.select(INBOX.c.id, INBOX.c.node, INBOX.c.firing, INBOX.c.received_at, INBOX.c.patient)
            .where(INBOX.c.handled_at.is_(None))
            .order_by(INBOX.c.id)
        )
        parts = [due] if among is None else [due.where(INBOX.c.id.in_(some)) for some in chunks(sorted(among))]
        with self.read() as connection:
            return [Kept(*row) for part in parts for row in connection.execute(part).all()]

    def busy_nodes(self) -> set[str]:
        """Where somebody holds the node's lock right now."""
        live = sa.select(LOCKS.c.node).where(LOCKS.c.holder.is_not(None), LOCKS.c.expires_at > self.now())
        with self.read() as connection:
            return set(connection.execute(live).scalars())


def _by_digest(connection: sa.Connection, digests: Iterable[str]) -> dict[str, Any]:
    """The rows without their bodies."""
    columns = [INBOX.c[name] for name in ("id", "digest", "node", "firing", "received_at", "patient", "handled_at")]
    found: dict[str, Any] = {}
    for some in chunks(digests):
        found.update((row.digest, row) for row in connection.execute(sa.select(*columns).where(INBOX.c.digest.in_(some))).all())
    return found
