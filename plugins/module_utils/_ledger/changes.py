# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Changes, written ahead of being made (S9), with everybody who wants them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._incident.errors import UnknownChange
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.times import iso
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.stages import Stages

try:
    import sqlalchemy as sa
    from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.tables import CHANGES, OWNERS
except ImportError:  # said by _ledger.database
    pass


@dataclass(frozen=True)
class Change:
    """One thing that we altered or are about to. `owners` are the incidents that want it now."""

    id: int
    target: str
    before: Any
    wanted: Any
    after: Any
    status: str  # intended | applied | reverted
    incident_id: str
    owners: list[str]
    intended_at: Optional[str] = None
    applied_at: Optional[str] = None
    reverted_at: Optional[str] = None
    note: Optional[str] = None

    def record(self) -> dict[str, Any]:
        return asdict(self)


class Changes(Stages):
    def intend(self, incident_id: str, target: str, before: Any, wanted: Any) -> Change:
        """Commit what is about to be written. `before` of the row is what counts: the value before the first of us touched it."""
        with self.write() as connection:
            self._incident(connection, incident_id)
            row, now = self._open_change(connection, target), self.now()
            if row is None:
                values = {"target": target, "open_target": target, "incident_id": incident_id, "before": before, "wanted": wanted}
                new = sa.insert(CHANGES).values(**values, status="intended", intended_at=now).returning(CHANGES.c.id)
                change_id = connection.execute(new).scalar_one()
            else:
                change_id = row.id
                # Without owners it is just being undone, so what is missing from now on was not taken away by a human.
                if row.wanted != wanted or not self._change(connection, change_id).owners:
                    connection.execute(sa.update(CHANGES).where(CHANGES.c.id == change_id).values(wanted=wanted, status="intended"))
            mine = (OWNERS.c.change_id == change_id, OWNERS.c.incident_id == incident_id)
            if not connection.execute(sa.update(OWNERS).where(*mine).values(disowned_at=None)).rowcount:
                connection.execute(sa.insert(OWNERS).values(change_id=change_id, incident_id=incident_id, since=now))
            return self._change(connection, change_id)

    def applied(self, change_id: int, after: Any = None) -> Change:
        """The change was made and read back."""
        with self.write() as connection:
            row = self._change(connection, change_id)
            values = {"status": "applied", "after": after}
            if row.applied_at is None:
                values["applied_at"] = self.now()
            connection.execute(sa.update(CHANGES).where(CHANGES.c.id == change_id, CHANGES.c.open_target.is_not(None)).values(**values))
            return self._change(connection, change_id)

    def disown(self, incident_id: str, target: str) -> Change:
        """This incident no longer wants the change; where `owners` is empty now, the caller puts `before` back and says `reverted`.

        Asking again gives the same answer until then, so that a run killed before the write can finish it.
        """
        with self.write() as connection:
            row = self._open_change(connection, target)
            if row is None:
                raise UnknownChange("there is no open change of %s" % target)
            mine = (OWNERS.c.change_id == row.id, OWNERS.c.incident_id == incident_id, OWNERS.c.disowned_at.is_(None))
            connection.execute(sa.update(OWNERS).where(*mine).values(disowned_at=self.now()))
            return self._change(connection, row.id)

    def reverted(self, change_id: int) -> Change:
        """`before` is back in place, read again. An incident that wanted the change meanwhile keeps it open, and makes it again."""
        with self.write() as connection:
            if not self._change(connection, change_id).owners:
                values = {"status": "reverted", "open_target": None, "reverted_at": self.now()}
                connection.execute(sa.update(CHANGES).where(CHANGES.c.id == change_id, CHANGES.c.open_target.is_not(None)).values(**values))
            return self._change(connection, change_id)

    def changes(self, incident_id: str) -> list[Change]:
        """All changes that the incident ever wanted, oldest first."""
        with self.read() as connection:
            mine = sa.select(OWNERS.c.change_id).where(OWNERS.c.incident_id == incident_id)
            ids = connection.execute(sa.select(CHANGES.c.id).where(CHANGES.c.id.in_(mine)).order_by(CHANGES.c.id)).scalars().all()
            return [self._change(connection, change_id) for change_id in ids]

    def open_change(self, target: str) -> Optional[Change]:
        """The change that stands at a target, whoever wants it."""
        with self.read() as connection:
            row = self._open_change(connection, target)
            return self._change(connection, row.id) if row else None

    def _open_change(self, connection: sa.Connection, target: str) -> Any:
        return connection.execute(sa.select(CHANGES).where(CHANGES.c.open_target == target)).first()

    def _change(self, connection: sa.Connection, change_id: int) -> Change:
        row = connection.execute(sa.select(CHANGES).where(CHANGES.c.id == change_id)).first()
        if row is None:
            raise UnknownChange("there is no change %s" % change_id)
        owners = sa.select(OWNERS.c.incident_id).where(OWNERS.c.change_id == change_id, OWNERS.c.disowned_at.is_(None))
        return self._change_of(row, sorted(connection.execute(owners).scalars()))

    @staticmethod
    def _change_of(row: Any, owners: list[str]) -> Change:
        values = {name: value for name, value in row._mapping.items() if name != "open_target"}
        times = {name: iso(values.pop(name)) for name in ("intended_at", "applied_at", "reverted_at")}
        return Change(**values, owners=owners, **times)  # type: ignore[arg-type]
