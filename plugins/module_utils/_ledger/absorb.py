# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""What was kept in a ledger of its own while the real one was away (S19), taken over by the real one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ansible_collections.gpuops.remediation.plugins.module_utils._incident.errors import LockHeld
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.keys import LIVE_STATES
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.database import Database
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.views import Views

try:
    import sqlalchemy as sa
    from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.tables import (
        CHANGES,
        FAILURES,
        INCIDENTS,
        LOCKS,
        OUTBOX,
        OWNERS,
        SETTINGS,
        SLOTS,
        STAGES,
    )
except ImportError:  # said by _ledger.database
    pass

Row = dict[str, Any]
_GLASS, _RUN = "break_glass", "glass_run"


class Absorbing(Views):
    def glass_wanted(self, node: str, who: str, why: str) -> None:
        """Kept with the settings. A ledger that takes this down can be written; to find an incident would not show it."""
        with self.write() as connection:
            self._set(connection, _GLASS, node, who[:200], why)

    def glass_run(self, pid: int, start_ticks: int, who: str, why: str) -> None:
        """Which process goes by this ledger: a lock's copy here lapses while a stage is long, and a run has none before its first stage."""
        with self.write() as connection:
            self._set(connection, _RUN, {"pid": pid, "start_ticks": start_ticks}, who[:200], why)

    def absorb(self, other: Database, alive: Callable[[int, int], bool] = lambda pid, start_ticks: False) -> list[str]:
        """The ids of the incidents that are new here, now with all that belongs to them.

        Nobody writes there meanwhile, and who still means to finds nothing to write to. Rows are added where they are absent, so
        whoever dies between the two commits begins again. LockHeld while a run that goes by that ledger is `alive`, or its lock is.
        """
        with other.write() as source:
            busy = source.execute(sa.select(LOCKS).where(LOCKS.c.holder.is_not(None), LOCKS.c.expires_at > self.now())).first()
            if busy:
                raise LockHeld("%s is at work on node %s" % (busy.holder, busy.node), holder=busy.holder)
            run = other._setting(source, _RUN)
            if run and alive(run["value"]["pid"], run["value"]["start_ticks"]):
                raise LockHeld("the run of %s (process %d) is at work" % (run["set_by"], run["value"]["pid"]), holder=run["set_by"])
            tables = (INCIDENTS, STAGES, CHANGES, OWNERS, OUTBOX, SLOTS, FAILURES, SETTINGS)
            rows = {table.name: [dict(row) for row in source.execute(sa.select(table)).mappings()] for table in tables}
            with self.write() as connection:
                new = [row["id"] for row in rows[INCIDENTS.name] if self._absorb_incident(connection, row, rows)]
                for row in rows[STAGES.name]:
                    _add(connection, STAGES, row, "incident_id", "round", "name")
                for row in rows[CHANGES.name]:
                    self._absorb_change(connection, row, [owner for owner in rows[OWNERS.name] if owner["change_id"] == row["id"]])
                for row in rows[OUTBOX.name]:
                    _add(connection, OUTBOX, row, "key")
                for row in rows[SLOTS.name]:
                    _add(connection, SLOTS, row, "incident_id", "node", "taken_at")
                for row in rows[FAILURES.name]:
                    _add(connection, FAILURES, row, "gpu_uuid", "code", "program", "failed_at")
                for row in rows[SETTINGS.name]:
                    if row["name"] == _GLASS:
                        _add(connection, SETTINGS, row, "name", "set_at", "set_by")
            self._empty(source)
            return new

    @staticmethod
    def _empty(source: sa.Connection) -> None:
        for table in (INCIDENTS, CHANGES):  # stages and owners go with them
            source.execute(sa.delete(table))

    def _absorb_incident(self, connection: sa.Connection, row: Row, rows: Mapping[str, list[Row]]) -> bool:
        """One open incident a fault: where both know it, the one that has changed nothing gives way to the other."""
        if connection.execute(sa.select(INCIDENTS.c.id).where(INCIDENTS.c.id == row["id"])).first():
            return False
        same = sa.select(INCIDENTS).where(INCIDENTS.c.open_key.is_not(None), INCIDENTS.c.open_key == row["open_key"])
        known, key, gives_way, replaces = connection.execute(same).first(), row["open_key"], "", ""
        if known:
            stands = _stands(row["id"], rows)
            lives = row["state"] in LIVE_STATES and known.state not in LIVE_STATES  # who is at it goes on
            if not self._standing(connection, known.id) and (stands or lives or row["state"] == "contained"):
                replaces = known.id
                why = "incident %s has dealt with the same fault while the ledger was away" % row["id"]
                self._end(connection, known, "no_action", why)
            else:  # where both hold the fault each keeps its own, and is released by itself
                key, gives_way = "%s %s" % (key, row["id"]), "" if stands else "the same fault as incident %s" % known.id
        connection.execute(sa.insert(INCIDENTS).values(**{**row, "open_key": key}))
        if replaces:
            self._hand_over(connection, replaces, row["id"])
        if gives_way:
            self._end(connection, self._incident(connection, row["id"]), "no_action", gives_way)
        return True

    def _absorb_change(self, connection: sa.Connection, row: Row, owners: list[Row]) -> None:
        """One change a target: what stands here already gets more owners, and keeps the value before the first of both."""
        standing = self._open_change(connection, row["target"]) if row["open_target"] else None
        if standing:
            change_id, values = standing.id, {}
            if row["intended_at"] < standing.intended_at:
                values = {name: row[name] for name in ("incident_id", "before", "intended_at")}
            if standing.status == "intended" and row["status"] == "applied":
                values |= {name: row[name] for name in ("wanted", "after", "status", "applied_at")}
            if values:
                connection.execute(sa.update(CHANGES).where(CHANGES.c.id == change_id).values(**values))
        else:
            change_id = _add(connection, CHANGES, row, "target", "incident_id", "intended_at")
        for owner in owners:
            _add(connection, OWNERS, {**owner, "change_id": change_id}, "change_id", "incident_id")


def _stands(incident_id: str, rows: Mapping[str, list[Row]]) -> bool:
    """Whether a change of the incident stands there."""
    mine = {owner["change_id"] for owner in rows[OWNERS.name] if owner["incident_id"] == incident_id}
    return any(change["id"] in mine and change["open_target"] for change in rows[CHANGES.name])


def _add(connection: sa.Connection, table: sa.Table, row: Row, *same: str) -> Any:
    """The row's number here. Numbers are each ledger's own; what is the same row is said by other columns."""
    known = sa.select(table).where(*(table.c[name] == row[name] for name in same))
    have = connection.execute(known).mappings().first()
    if have is None:
        values = {name: value for name, value in row.items() if name != "id"}
        have = connection.execute(sa.insert(table).values(**values).returning(table)).mappings().one()
    return have.get("id")
