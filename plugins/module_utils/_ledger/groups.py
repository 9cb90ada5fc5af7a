# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Incidents of groups: many nodes, one fault, and the nodes are left as they are."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._diagnosis.correlation import Key, Seen, correlated
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.arrivals import Arrived, How, Told
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.keys import OPEN_STATES, group_key
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.records import PREDICTED
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.requests import from_group, place_with
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.changes import Changes

try:
    import sqlalchemy as sa
    from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.tables import ALERTS, INCIDENTS
except ImportError:  # said by _ledger.database
    pass


class Groups(Changes):
    def open_groups(self, arrived: Sequence[Arrived], how: How, told: Told) -> list[Arrived]:
        """Open or find the incidents of groups among alerts; what belongs to none comes back."""
        if how.correlation is None:
            return list(arrived)
        candidates = [(one, seen) for one in arrived if (seen := self._seen(one, how)) is not None]
        groups: dict[Key, list[Arrived]] = {}
        rest: list[tuple[Arrived, Seen]] = []
        for one, seen in candidates:
            key = self._lately(seen, how.correlation.rule.seconds)
            if key:
                groups.setdefault(key, []).append(one)
            else:
                rest.append((one, seen))
        for key, positions in correlated([seen for _one, seen in rest], how.correlation.rule).items():
            groups.setdefault(key, []).extend(rest[position][0] for position in positions)
        for key, members in groups.items():
            told.add(self._join(key, members, how))
        grouped = {id(one) for members in groups.values() for one in members}
        return [one for one in arrived if id(one) not in grouped]

    def _seen(self, one: Arrived, how: How) -> Optional[Seen]:
        """An alert that may be one of many: news of a node of ours that nobody has opted out. A hint is looked at on each node (S3)."""
        alert = one.judged.alert
        if alert is None or alert.status != "firing" or alert.hint or alert.node not in how.inventory or how.correlation is None:
            return None
        domain, place = how.correlation.domain_of(alert.xid), place_with(how.inventory, alert)
        if domain is None or not place.managed:
            return None
        episode = (ALERTS.c.fingerprint == alert.fingerprint, ALERTS.c.starts_at == alert.starts_at)
        with self.read() as connection:
            if connection.execute(sa.select(ALERTS.c.id).where(*episode, ALERTS.c.incident_id.is_not(None))).first():
                return None
        return Seen(alert.node, domain, place.groups, one.received_at)

    def _lately(self, seen: Seen, seconds: float) -> Optional[Key]:
        """The open incident of one of its groups whose last alert is no longer ago than the window."""
        since = seen.received_at - timedelta(seconds=seconds)
        with self.read() as connection:
            for key in seen.keys:
                of_group = (INCIDENTS.c.open_key == group_key(key.kind, key.name, key.domain), INCIDENTS.c.state.in_(OPEN_STATES))
                last = sa.select(ALERTS.c.id).join(INCIDENTS, ALERTS.c.incident_id == INCIDENTS.c.id)
                if connection.execute(last.where(*of_group, ALERTS.c.received_at >= since)).first():
                    return key
        return None

    def _join(self, key: Key, members: Sequence[Arrived], how: How) -> dict[str, Any]:
        """The group's incident with these alerts; it ends at once, since no stage of it could do anything."""
        alerts = [(one.judged.alert, one.received_at) for one in members if one.judged.alert]
        with self.together(), self.write() as connection:
            open_one = sa.select(INCIDENTS.c.nodes).where(INCIDENTS.c.open_key == group_key(key.kind, key.name, key.domain))
            nodes = {*(connection.execute(open_one).scalar() or ()), *(alert.node for alert, _received_at in alerts)}
            received_at = min(one.received_at for one in members)
            record = self.open_incident(from_group(key.kind, key.name, sorted(nodes), key.domain, received_at), how.limits).record or {}
            if record["id"] == PREDICTED:
                return record
            for alert, received_at in alerts:
                self._deliver(connection, alert, received_at)
                self._attach(connection, alert, record["id"])
            return self.close_incident(record["id"])[1] if record["state"] == "running" else record
