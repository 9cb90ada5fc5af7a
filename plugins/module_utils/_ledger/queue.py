# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Which nodes are worked on, which wait for it and in what order, and who is told of those."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from itertools import takewhile
from typing import Any, Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._incident.records import PREDICTED
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.settings import Settings

try:
    import sqlalchemy as sa
    from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.tables import INCIDENTS, LOCKS, OUTBOX
except ImportError:  # said by _ledger.database
    pass

ASKED_SECONDS = 60  # for as long whoever was asked for keeps its place; longer than a run needs from opening to asking for room
PAGE_SECONDS = 600  # between two pages about those that wait
_PAGE = "fenced_waiting"  # the topic


class Queue(Settings):
    def _has_room(self, connection: sa.Connection, node: str, max_running: int) -> bool:
        """Whether the node may be worked on now, as one of so many at most, after those that have waited for longer."""
        if not max_running:
            return True
        worked_on = self._worked_on(connection)
        ahead = set(takewhile(lambda other: other != node, self._in_line(connection, node))) - worked_on
        return node in worked_on or len(worked_on) + len(ahead) < max_running

    def _worked_on(self, connection: sa.Connection) -> set[str]:
        """The nodes whose incidents run and have time left, and those that somebody has locked: to look again, to release, or to end.

        What is over time and locked by nobody is nobody's work: it waits for its end, and keeps no room from others.
        """
        running = sa.select(INCIDENTS.c.node).where(
            INCIDENTS.c.state == "running", INCIDENTS.c.kind == "fault", INCIDENTS.c.id != PREDICTED, INCIDENTS.c.deadline_at > self.now()
        )
        return {*connection.execute(running).scalars(), *self._locked(connection)}

    def _locked(self, connection: sa.Connection) -> set[str]:
        live = sa.select(LOCKS.c.node).where(LOCKS.c.holder.is_not(None), LOCKS.c.expires_at > self.now())
        return set(connection.execute(live).scalars())

    def _in_line(self, connection: sa.Connection, node: Optional[str] = None) -> Sequence[str]:
        """The nodes that wait, those whose time has stood still for longest first: `node`, and those that a run has asked for lately.

        Whoever nobody asks for keeps no place free: its run may have died, or have left it, and then it is reconcile that asks.
        """
        asked = INCIDENTS.c.asked_at > self.now() - timedelta(seconds=ASKED_SECONDS)
        waiting = sa.select(INCIDENTS.c.node).where(INCIDENTS.c.state == "fenced_waiting", sa.or_(asked, INCIDENTS.c.node == node))
        return connection.execute(waiting.order_by(INCIDENTS.c.clock_at, INCIDENTS.c.id)).scalars().all()

    def _asked_lately(self, row: Any) -> bool:
        """So that its place is not about to be lost."""
        return bool(row.asked_at and row.asked_at > self.now() - timedelta(seconds=ASKED_SECONDS / 3))

    def _tell_of_waiting(self, connection: sa.Connection) -> None:
        """One page for all that wait, kept true until it is sent. Of who comes later another tells, and not too soon after the last."""
        columns = (INCIDENTS.c.id, INCIDENTS.c.round, INCIDENTS.c.node, INCIDENTS.c.clock_at)
        waiting = sa.select(*columns).where(INCIDENTS.c.state == "fenced_waiting")
        rows = connection.execute(waiting.order_by(INCIDENTS.c.clock_at, INCIDENTS.c.id)).all()
        payload = {"nodes": sorted({row.node for row in rows}), "incident_ids": [row.id for row in rows]}
        pages = connection.execute(sa.select(OUTBOX).where(OUTBOX.c.topic == _PAGE).order_by(OUTBOX.c.id.desc()).limit(2)).all()
        to_come = next((page for page in pages[:1] if not page.attempts), None)
        last = next((page for page in pages if page.attempts), None)
        at = last.sent_at or last.created_at if last else None
        new = [row for row in rows if not last or row.id not in last.payload["incident_ids"] or row.clock_at > at]
        if to_come:
            same = OUTBOX.c.id == to_come.id
            connection.execute(sa.update(OUTBOX).where(same).values(payload=payload) if new else sa.delete(OUTBOX).where(same))
        elif new:
            due_at = max(at + timedelta(seconds=PAGE_SECONDS), self.now()) if at else self.now()
            self._notify(connection, "waiting:%s:%d" % (new[0].id, new[0].round), _PAGE, payload, due_at=due_at)
