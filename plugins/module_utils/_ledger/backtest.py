# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Faults of the past through the ledger's own rules, in memory and by the clock of the recording.

What opens an incident, what joins one and where the breaker stops is decided by the code that decides it in a run, so that a backtest
cannot promise what a run would not do. Nobody releases anything and nobody resets the breaker meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._incident.errors import BreakerTripped
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.replay import Fault
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.requests import Place, from_alert, place_of
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.times import iso, utc_now
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.store import Ledger
from ansible_collections.gpuops.remediation.plugins.module_utils._xid.policy import QUARANTINES

_SHOWN = ("domain", "scope", "action", "repair", "certainty", "xids", "reasons")


class _Clock:
    """Stands where the fault that is played stands."""

    def __init__(self) -> None:
        self.now = utc_now()

    def __call__(self) -> datetime:
        return self.now


def backtest(faults: Iterable[Fault], inventory: Mapping[str, Any], breaker: Optional[Mapping[str, Any]] = None) -> dict[str, Any]:
    """The incidents that there would have been, oldest first, and their totals."""
    clock = _Clock()
    ledger = Ledger.open("sqlite://", clock=clock)
    try:
        ledger.configure("act", breaker, False, "backtest", "a replay")
        played = _Played(ledger, clock, inventory)
        for fault in sorted(faults, key=lambda one: one.alert.starts_at):
            played.play(fault)
        return {"incidents": list(played.incidents.values()), "totals": played.totals(), "breaker": ledger.breaker()}
    finally:
        ledger.close()


class _Played:
    def __init__(self, ledger: Ledger, clock: _Clock, inventory: Mapping[str, Any]) -> None:
        self._ledger, self._clock, self._inventory = ledger, clock, inventory
        self.incidents: dict[str, dict[str, Any]] = {}
        self._ignored: Counter[str] = Counter()
        self._unknown: set[str] = set()

    def play(self, fault: Fault) -> None:
        alert = fault.alert
        self._clock.now = alert.starts_at
        place = self._place(alert.node)
        opening = self._ledger.open_incident(from_alert(place, alert, alert.starts_at))
        if opening.record is None:
            self._ignored["resolved" if alert.status == "resolved" else "old or settled"] += 1
            return
        if not opening.record["open"]:
            self._ignored["opted out"] += 1
            return
        incident_id = opening.record["id"]
        if opening.record["state"] != "running":  # it has ended and stands for the fault
            self._again(incident_id)
            return
        record = self._ledger.finish_stage(incident_id, "diagnose", "ok", {"verdict": fault.verdict})[1]
        merged = record["verdict"].get("merged_into")
        if merged:
            self._again(merged)
            self._ledger.close_incident(incident_id)
            return
        self._again(incident_id)
        breaker = self._slot(incident_id, place) if fault.verdict["action"] in QUARANTINES else None
        self.incidents[incident_id] = {
            "time": iso(alert.starts_at),
            "node": alert.node,
            "gpu": record["gpu"],
            "seen_again": 0,
            **self.incidents.get(incident_id, {}),
            **{name: fault.verdict[name] for name in _SHOWN},
            "fence": fault.fences and breaker != "tripped",
            "breaker": breaker,
        }
        self._close(incident_id, fault.verdict["action"], breaker)

    def totals(self) -> dict[str, Any]:
        lines = self.incidents.values()
        return {
            "incidents": len(lines),
            "nodes": len({line["node"] for line in lines}),
            "actions": dict(sorted(Counter(line["action"] for line in lines).items())),
            "fences": sum(line["fence"] for line in lines),
            "tainted_nodes": len({line["node"] for line in lines if line["breaker"] == "slot"}),
            "held_by_breaker": sum(line["breaker"] == "tripped" for line in lines),
            "seen_again": sum(line["seen_again"] for line in lines),
            "ignored": dict(sorted(self._ignored.items())),
            "not_in_inventory": sorted(self._unknown),
        }

    def _place(self, node: str) -> Place:
        """A node that the inventory does not have is played all the same: recordings outlive nodes."""
        if node in self._inventory:
            return place_of(self._inventory, node)
        self._unknown.add(node)
        return Place(node, node, groups={"fleet": len(self._inventory)})

    def _slot(self, incident_id: str, place: Place) -> str:
        try:
            self._ledger.take_slot(incident_id, place.node, place.groups)
        except BreakerTripped:
            return "tripped"
        return "slot"

    def _close(self, incident_id: str, action: str, breaker: Optional[str]) -> None:
        if action in QUARANTINES:
            self._ledger.close_incident(incident_id, "contained" if breaker == "slot" else "held_for_human", "a replay")
        else:
            self._ledger.close_incident(incident_id, None if action in ("none", "observe") else "held_for_human")

    def _again(self, incident_id: str) -> None:
        if incident_id in self.incidents:
            self.incidents[incident_id]["seen_again"] += 1
