# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""What the ledger does for many nodes at once, where each of them is plain: nothing is known that could change the answer.

Each method takes the plain ones of what it is given, in one transaction and a few statements, and leaves all others to the methods that look at
one at a time and know every case.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from ansible_collections.gpuops.remediation.plugins.module_utils._incident.alerts import Alert
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.arrivals import Arrived, How
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.breaker import Slot, groups_of, overfull
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.keys import LIVE_STATES
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.modes import TAINT, allows
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.requests import Want, from_alert, place_with
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.changes import Change, Changes
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.chunks import chunks
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.settings import slot_row

try:
    import sqlalchemy as sa
    from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.tables import (
        ALERTS,
        CHANGES,
        INCIDENTS,
        OWNERS,
        SLOTS,
        STAGES,
    )
except ImportError:  # said by _ledger.database
    pass

Records = list[dict[str, Any]]
Value = TypeVar("Value", int, str)


class Storm(Changes):
    def open_plain(self, arrived: Sequence[tuple[Arrived, Alert]], how: How) -> tuple[Records, list[tuple[Arrived, Alert]]]:
        """The new incidents of alerts that nobody has heard of, on managed nodes that never had an incident, one a node; and the other alerts."""
        wants = [(one, alert, from_alert(place_with(how.inventory, alert), alert, one.received_at)) for one, alert in arrived]
        with self.write() as connection:
            known = self._known(connection, [want for _one, _alert, want in wants])
            plain: list[Want] = []
            rest: list[tuple[Arrived, Alert]] = []
            for one, alert, want in wants:
                names = {want.place.uid, want.place.node, alert.fingerprint}
                if names & known or not want.place.managed or alert.status != "firing" or self.check_mode:
                    rest.append((one, alert))
                else:
                    plain.append(want)
                known |= names
            return self._open_new(connection, plain, how) if plain else [], rest

    @staticmethod
    def _known(connection: sa.Connection, wants: Sequence[Want]) -> set[str]:
        """The nodes, by UID and by name, that have or had an incident, and the fingerprints that were seen."""
        rows, seen = sa.select(INCIDENTS.c.node_uid, INCIDENTS.c.node), sa.select(ALERTS.c.fingerprint)
        found = [
            *_among(connection, rows, INCIDENTS.c.node_uid, {want.place.uid for want in wants}),
            *_among(connection, rows, INCIDENTS.c.node, {want.place.node for want in wants}),
            *_among(connection, seen, ALERTS.c.fingerprint, {want.alert.fingerprint for want in wants if want.alert}),
        ]
        return {name for row in found for name in row}

    def _open_new(self, connection: sa.Connection, wants: Sequence[Want], how: How) -> Records:
        mode = self._mode(connection)
        rows = [self._new(want, how.limits, mode, "fenced_waiting") for want in wants]
        taken = self._worked_on(connection) | set(self._in_line(connection))
        room = how.max_running - len(taken) if how.max_running else len(wants)
        for row in sorted(rows, key=lambda row: (row["clock_at"], row["id"]))[: max(room, 0)]:  # as they stand in line
            row["state"] = "running"
        connection.execute(sa.insert(INCIDENTS), rows)
        alerts = [(want.alert, want.received_at, row["id"]) for want, row in zip(wants, rows) if want.alert]
        connection.execute(
            sa.insert(ALERTS),
            [
                {
                    "fingerprint": alert.fingerprint,
                    "starts_at": alert.starts_at,
                    "status": alert.status,
                    "received_at": received_at,
                    "deliveries": 1,
                    "facts": alert.record(),
                    "incident_id": incident_id,
                }
                for alert, received_at, incident_id in alerts
            ],
        )
        if room < len(wants):
            self._tell_of_waiting(connection)
        connection.execute(
            sa.insert(STAGES), [self._detect(row["id"], row["round"], want.words, want.received_at) for want, row in zip(wants, rows)]
        )
        ids = [row["id"] for row in rows]
        stored = {row.id: row for row in _among(connection, sa.select(INCIDENTS), INCIDENTS.c.id, ids)}
        stages = {row.incident_id: row for row in _among(connection, sa.select(STAGES), STAGES.c.incident_id, ids)}
        return [self._record_of(stored[one], [stages[one]], found=False) for one in ids]

    def grant(self, wants: Mapping[str, tuple[str, str, Mapping[str, Any]]], wanted: Any) -> dict[str, Change]:
        """Taints that are allowed, counted and on record now, by incident: of those in `wants` (node, target, groups) where nothing stands yet.

        The breaker's limit is never passed: who would trip it is left out, and trips it when asked for alone.
        """
        with self.write() as connection:
            if self.check_mode or not allows(self._mode(connection), TAINT) or self._tripped(connection) is not None:
                return {}
            live = sa.select(INCIDENTS.c.id).where(INCIDENTS.c.state.in_(LIVE_STATES))
            targets = [target for _node, target, _groups in wants.values()]
            taken = {row.open_target for row in _among(connection, sa.select(CHANGES.c.open_target), CHANGES.c.open_target, targets)}
            may = {row.id for row in _among(connection, live, INCIDENTS.c.id, wants)}
            granted = {name: want for name, want in wants.items() if name in may and want[1] not in taken}
            granted = self._slots_for(connection, granted)
            now = self.now()
            rows = [
                {
                    "target": target,
                    "open_target": target,
                    "incident_id": incident_id,
                    "before": None,
                    "wanted": wanted,
                    "status": "intended",
                    "intended_at": now,
                }
                for incident_id, (_node, target, _groups) in granted.items()
            ]
            if not rows:
                return {}
            connection.execute(sa.insert(CHANGES), rows)
            made = _among(connection, sa.select(CHANGES), CHANGES.c.open_target, [row["target"] for row in rows])
            changes = {row.incident_id: self._change_of(row, [row.incident_id]) for row in made}
            owners = [{"change_id": change.id, "incident_id": incident_id, "since": now} for incident_id, change in changes.items()]
            connection.execute(sa.insert(OWNERS), owners)
            return changes

    def _slots_for(self, connection: sa.Connection, wants: Mapping[str, tuple[str, str, Mapping[str, Any]]]) -> dict[str, Any]:
        now, rule, granted, new = self.now(), self._rule(connection), {}, []
        slots = self._slots_that_count(connection, rule)
        have = {slot.node for slot in slots}
        for incident_id, (node, target, groups) in wants.items():
            counted = groups_of(groups)
            if node not in have:
                if overfull(slots, node, counted, rule):
                    continue
                slots.append(Slot(node, now, counted))
                have.add(node)
                new.append(slot_row(incident_id, slots[-1]))
            granted[incident_id] = (node, target, groups)
        if new:
            connection.execute(sa.insert(SLOTS), new)
        return granted

    def all_applied(self, changes: Iterable[Change], after: Any) -> set[int]:
        """These changes were made, read back, and all look alike. The ids of those that still stand: others were undone by a release meanwhile."""
        ids, stands = [change.id for change in changes], CHANGES.c.open_target.is_not(None)
        made = sa.update(CHANGES).where(stands, CHANGES.c.status == "intended").values(status="applied", after=after, applied_at=self.now())
        with self.write() as connection:
            for some in chunks(ids):
                connection.execute(made.where(CHANGES.c.id.in_(some)))
            return {row.id for row in _among(connection, sa.select(CHANGES.c.id).where(stands), CHANGES.c.id, ids)}

    def detected(self, told: Mapping[str, tuple[Mapping[str, Any], str]]) -> None:
        """What was weighed before anybody looked at the node, and in words why, kept with the stage that it belongs to."""
        here = sa.select(STAGES.c.incident_id, STAGES.c.round, STAGES.c.data).join(INCIDENTS, STAGES.c.incident_id == INCIDENTS.c.id)
        here = here.where(STAGES.c.round == INCIDENTS.c.round, STAGES.c.name == "detect")
        same = (STAGES.c.incident_id == sa.bindparam("incident"), STAGES.c.round == sa.bindparam("in_round"), STAGES.c.name == "detect")
        weighed = {"reason": sa.bindparam("words", type_=STAGES.c.reason.type), "data": sa.bindparam("weighed", type_=STAGES.c.data.type)}
        with self.write() as connection:
            rows = [
                {
                    "incident": row.incident_id,
                    "in_round": row.round,
                    "words": told[row.incident_id][1],
                    "weighed": dict(told[row.incident_id][0]),
                }
                for row in _among(connection, here, STAGES.c.incident_id, told)
                if not row.data
            ]
            if rows:
                connection.execute(sa.update(STAGES).where(*same).values(**weighed, finished_at=self.now()), rows)


def _among(connection: sa.Connection, rows: Any, column: Any, values: Iterable[Value]) -> Iterator[Any]:
    """The rows with one of many values in a column."""
    for some in chunks(values):
        yield from connection.execute(rows.where(column.in_(some)))
