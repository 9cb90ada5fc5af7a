# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""What the ledger knows of what fires, so that the fleet can be asked for the rest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._fleet.news import Known
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.alerts import LabelMap, judge_all, parse_message
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.errors import BadMessage
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.parcels import Parcel
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.chunks import chunks, chunks_by_size
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.reception import Kept, Reception

try:
    import sqlalchemy as sa
    from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.tables import ALERTS, INBOX, SYNCS
except ImportError:  # said by _ledger.database
    pass


class Sync(Reception):
    def synced_at(self, source: str) -> Optional[datetime]:
        """Until when a source was asked, last."""
        with self.read() as connection:
            time: Optional[datetime] = connection.execute(sa.select(SYNCS.c.synced_at).where(SYNCS.c.source == source)).scalar()
            return time

    def synced(self, source: str, at: datetime) -> None:
        with self.write() as connection:
            if not connection.execute(sa.update(SYNCS).where(SYNCS.c.source == source).values(synced_at=at)).rowcount:
                connection.execute(sa.insert(SYNCS).values(source=source, synced_at=at))

    def known_episodes(self, since: datetime, labels: LabelMap) -> list[Known]:
        """Those that began since then, whether they are decided or their row still waits."""
        firing = sa.select(ALERTS.c.fingerprint, ALERTS.c.starts_at, ALERTS.c.facts, ALERTS.c.reason).where(
            ALERTS.c.status == "firing", ALERTS.c.starts_at >= since
        )
        with self.read() as connection:
            known = [Known(row.fingerprint, row.starts_at, row.facts, row.reason is None) for row in connection.execute(firing)]
        for body in self._waiting_bodies():
            known += _waiting(body, labels)
        return known

    def _waiting_bodies(self) -> Iterator[bytes]:
        """A few at a time, since in a storm many wait; one that is decided in between is still known."""
        sizes = sa.select(INBOX.c.id, sa.func.length(INBOX.c.body)).where(INBOX.c.handled_at.is_(None)).order_by(INBOX.c.id)
        with self.read() as connection:
            waiting = connection.execute(sizes).all()
        for some in chunks_by_size(waiting):
            with self.read() as connection:
                bodies = connection.execute(sa.select(INBOX.c.body).where(INBOX.c.id.in_(some))).scalars().all()
            yield from bodies

    def keep_news(self, arrivals: Sequence[tuple[Parcel, str]], again: Sequence[bool]) -> list[Kept]:
        """The rows that somebody has to decide: those that are new, and those that `again` says were left for a silence that is over."""
        kept = self.keep(arrivals)
        over = [row.inbox_id for row, asked in zip(kept, again) if asked and not row.due]
        with self.write() as connection:
            for some in chunks(over):
                connection.execute(sa.update(INBOX).where(INBOX.c.id.in_(some)).values(handled_at=None))
        return [row for row in kept if row.due or row.inbox_id in over]


def _waiting(body: Any, labels: LabelMap) -> list[Known]:
    try:
        judged = [one.alert for one in judge_all(parse_message(body), labels) if one.alert and one.alert.status == "firing"]
    except BadMessage:
        return []
    return [Known(alert.fingerprint, alert.starts_at, alert.record()) for alert in judged]
