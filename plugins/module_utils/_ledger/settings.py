# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Mode and breaker: what holds for every incident."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from typing import Any, Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._incident.breaker import Group, Rule, Slot, groups_of, in_window, overfull
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.errors import BreakerTripped
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.modes import OBSERVE
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.times import iso
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.outbox import Outbox

try:
    import sqlalchemy as sa
    from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.tables import SETTINGS, SLOTS
except ImportError:  # said by _ledger.database
    pass

HEARTBEATS = AT_WORK, ENDED = "reconcile", "reconcile_ended"  # the last signs of a reconcile; kept beside the settings, and none
RESET_COMMAND = "ansible-playbook gpuops.remediation.mode -e gpuops_breaker_reset=true -e gpuops_who=NAME -e gpuops_why=REASON"


class Settings(Outbox):
    def mode(self) -> str:
        with self.read() as connection:
            return self._mode(connection)

    def _mode(self, connection: sa.Connection) -> str:
        row = self._setting(connection, "mode")
        return str(row["value"]) if row else OBSERVE

    def set_mode(self, mode: str, who: str, why: str) -> bool:
        with self.write() as connection:
            return self._set_mode(connection, mode, who, why)

    def _set_mode(self, connection: sa.Connection, mode: str, who: str, why: str) -> bool:
        changed = self._mode(connection) != mode
        if changed:
            self._set(connection, "mode", mode, who, why)
        return changed

    def configure(self, mode: Optional[str], breaker: Optional[Mapping[str, Any]], reset: bool, who: str, why: str) -> dict[str, Any]:
        """Set what is given, in one transaction, and say how things stand then."""
        with self.write() as connection:
            if mode:
                self._set_mode(connection, mode, who, why)
            if breaker:
                self._set_breaker(connection, breaker, who, why)
            if reset and self._tripped(connection) is not None:
                self._set(connection, "breaker", None, who, why)
            return {"mode": self._mode(connection), "breaker": self._breaker(connection)}

    def settings_history(self, limit: int = 20) -> list[dict[str, Any]]:
        """Who had set which mode or breaker, newest first."""
        with self.read() as connection:
            rows = connection.execute(
                sa.select(SETTINGS).where(SETTINGS.c.name.not_in(HEARTBEATS)).order_by(SETTINGS.c.id.desc()).limit(limit)
            )
            return [{"name": row.name, "value": row.value, "at": iso(row.set_at), "who": row.set_by, "why": row.why} for row in rows]

    def breaker(self) -> dict[str, Any]:
        with self.read() as connection:
            return self._breaker(connection)

    def _breaker(self, connection: sa.Connection) -> dict[str, Any]:
        tripped = self._tripped(connection)
        return {**asdict(self._rule(connection)), "tripped": tripped is not None, **(tripped or {"group": None, "at": None})}

    def _set_breaker(self, connection: sa.Connection, wanted: Mapping[str, Any], who: str, why: str) -> None:
        have = self._rule(connection)
        rule = replace(have, **{name: value for name, value in wanted.items() if value is not None})
        if rule != have:
            self._set(connection, "breaker_rule", asdict(rule), who, why)

    def take_slot(self, incident_id: str, node: str, groups: Optional[Mapping[str, Any]] = None) -> None:
        """One node's place among those that may be fenced or tainted now (S8); a node that has one keeps it for the window."""
        with self.write() as connection:
            now, wanted = self.now(), groups_of(groups or {})
            rule, tripped = self._rule(connection), self._tripped(connection)
            slots = self._slots_that_count(connection, rule)
            if any(slot.node == node for slot in slots):
                return
            if not tripped:
                full = overfull(slots, node, wanted, rule)
                if not full:
                    connection.execute(sa.insert(SLOTS), [slot_row(incident_id, Slot(node, now, wanted))])
                    return
                tripped = self._trip(connection, now, full, rule, node)
        raise BreakerTripped(
            "the breaker has tripped at %s (%s): node %s is left as it is; see what the nodes have in common, then reset it with %s"
            % (tripped["at"], tripped["group"], node, RESET_COMMAND),
            **tripped,
        )

    def _trip(self, connection: sa.Connection, now: datetime, full: Group, rule: Rule, node: str) -> dict[str, Any]:
        tripped = {"at": iso(now), "group": "%s: more than %d nodes in %d s" % (full.label, rule.allowed(full.size), rule.window_seconds)}
        self._set(connection, "breaker", tripped, "breaker", "node %s would have been one too many" % node)
        self._notify(connection, "breaker:%s" % tripped["at"], "breaker_tripped", {**tripped, "next_command": RESET_COMMAND})
        return tripped

    def _tripped(self, connection: sa.Connection) -> Optional[dict[str, Any]]:
        row = self._setting(connection, "breaker")
        return row["value"] if row else None

    def _reset_at(self, connection: sa.Connection) -> Optional[datetime]:
        row = self._setting(connection, "breaker")
        return row["set_at"] if row and row["value"] is None else None

    def _rule(self, connection: sa.Connection) -> Rule:
        row = self._setting(connection, "breaker_rule")
        return Rule(**row["value"]) if row else Rule()

    def _slots_that_count(self, connection: sa.Connection, rule: Rule) -> list[Slot]:
        now = self.now()
        return in_window(self._slots(connection, now - timedelta(seconds=rule.window_seconds)), now, rule, self._reset_at(connection))

    def _slots(self, connection: sa.Connection, since: datetime) -> list[Slot]:
        rows = connection.execute(sa.select(SLOTS).where(SLOTS.c.taken_at > since))
        return [Slot(row.node, row.taken_at, [Group(**group) for group in row.groups]) for row in rows]


def slot_row(incident_id: str, slot: Slot) -> dict[str, Any]:
    groups = [asdict(group) for group in slot.groups]
    return {"node": slot.node, "incident_id": incident_id, "groups": groups, "taken_at": slot.taken_at}
