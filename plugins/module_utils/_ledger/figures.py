# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""What a monitoring system asks of the ledger, in one look."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._incident.keys import OPEN_STATES
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.settings import AT_WORK, ENDED, HEARTBEATS, Settings

try:
    import sqlalchemy as sa
    from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.tables import INCIDENTS, OUTBOX, SETTINGS
except ImportError:  # said by _ledger.database
    pass


@dataclass(frozen=True)
class Figures:
    """outbox_since: since when the oldest notification is due that is not sent. open_incidents: how many, by state.

    reconcile_seen_at: when a reconcile last turned to the nodes, or ended. reconciled_at: when one last ended.
    overdue: how many run although their time is over. waiting_since: since when the one waits that has waited for longest.
    """

    mode: str
    breaker_tripped: bool
    outbox_since: Optional[datetime]
    reconcile_seen_at: Optional[datetime]
    reconciled_at: Optional[datetime]
    open_incidents: Mapping[str, int]
    overdue: int
    waiting_since: Optional[datetime]


class Watched(Settings):
    def figures(self) -> Figures:
        by_state = sa.select(INCIDENTS.c.state, sa.func.count()).where(INCIDENTS.c.open_key.is_not(None)).group_by(INCIDENTS.c.state)
        unsent = sa.select(sa.func.min(OUTBOX.c.created_at)).where(OUTBOX.c.sent_at.is_(None), OUTBOX.c.created_at <= self.now())
        overdue = sa.select(sa.func.count()).where(INCIDENTS.c.state == "running", INCIDENTS.c.deadline_at <= self.now())
        waiting = sa.select(sa.func.min(INCIDENTS.c.clock_at)).where(INCIDENTS.c.state == "fenced_waiting")
        with self.read() as connection:
            seen, ended = (self._setting(connection, name) for name in HEARTBEATS)
            counts = {row[0]: row[1] for row in connection.execute(by_state)}
            return Figures(
                self._mode(connection),
                self._tripped(connection) is not None,
                connection.execute(unsent).scalar(),
                seen["set_at"] if seen else None,
                ended["set_at"] if ended else None,
                {state: counts.get(state, 0) for state in sorted(OPEN_STATES)},
                connection.execute(overdue).scalar_one(),
                connection.execute(waiting).scalar(),
            )

    def reconciling(self) -> None:
        """A reconcile is at work."""
        self._beat(AT_WORK)

    def reconciled(self) -> None:
        """It has got to its end."""
        self._beat(AT_WORK, ENDED)

    def _beat(self, *names: str) -> None:
        """Only the last one counts: the row takes the place of the one before."""
        with self.write() as connection:
            connection.execute(sa.delete(SETTINGS).where(SETTINGS.c.name.in_(names)))
            for name in names:
                self._set(connection, name, True, platform.node(), "a sign of a reconcile")
