# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Which nodes are worked on, which wait for it and in what order, and who is told of those."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from itertools import takewhile
from typing import Optional

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
        locked = sa.select(LOCKS.c.node).where(LOCKS.c.holder.is_not(None), LOCKS.c.expires_at > self.now())
        return {*connection.execute(running).scalars(), *connection.execute(locked).scalars()}

    def _in_line(self, connection: sa.Connection, node: Optional[str] = None) -> Sequence[str]:
        """The nodes that wait, those whose time has stood still for longest first: `node`, and those that a run has asked for lately.

        Whoever nobody asks for keeps no place free: its run may have died, or have left it, and then it is reconcile that asks.
        """
        asked = INCIDENTS.c.asked_at > self.now() - timedelta(seconds=ASKED_SECONDS)
        waiting = sa.select(INCIDENTS.c.node).where(INCIDENTS.c.state == "fenced_waiting", sa.or_(asked, INCIDENTS.c.node == node))
        return connection.execute(waiting.order_by(INCIDENTS.c.clock_at, INCIDENTS.c.id)).scalars().all()

    def _tell_of_waiting(self, connection: sa.Connection) -> None:
        """One page for all that wait; it grows until it is sent. Of who comes later another tells, and not too soon after the last."""
        columns = (INCIDENTS.c.id, INCIDENTS.c.round, INCIDENTS.c.node, INCIDENTS.c.clock_at)
        waiting = sa.select(*columns).where(INCIDENTS.c.state == "fenced_waiting")
        rows = connection.execute(waiting.order_by(INCIDENTS.c.clock_at, INCIDENTS.c.id)).all()
        payload = {"nodes": sorted({row.node for row in rows}), "incident_ids": [row.id for row in rows]}
        last = connection.execute(sa.select(OUTBOX).where(OUTBOX.c.topic == _PAGE).order_by(OUTBOX.c.id.desc()).limit(1)).first()
        if last and not last.attempts:
            connection.execute(sa.update(OUTBOX).where(OUTBOX.c.id == last.id).values(payload=payload))
            return
        at = last.sent_at or last.created_at if last else None
        new = [row for row in rows if not last or row.id not in last.payload["incident_ids"] or row.clock_at > at]
        if new:
            due_at = max(at + timedelta(seconds=PAGE_SECONDS), self.now()) if at else self.now()
            self._notify(connection, "waiting:%s:%d" % (new[0].id, new[0].round), _PAGE, payload, due_at=due_at)

    def _tell_without(self, connection: sa.Connection) -> None:
        """Some wait no more, so a page that is to come leaves them out, or does not come."""
        to_come = sa.select(OUTBOX).where(OUTBOX.c.topic == _PAGE, OUTBOX.c.attempts == 0, OUTBOX.c.due_at > self.now())
        page = connection.execute(to_come.order_by(OUTBOX.c.id.desc()).limit(1)).first()
        if page is None:
            return
        connection.execute(sa.delete(OUTBOX).where(OUTBOX.c.id == page.id))
        self._tell_of_waiting(connection)
