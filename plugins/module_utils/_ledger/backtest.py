# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Faults of the past through the ledger's own rules, in memory and by the clock of the recording.

What opens an incident, what joins one, what is one fault of many nodes and where the breaker stops is decided by the code that decides it
in a run, so that a backtest cannot promise what a run would not do. Nobody releases anything and nobody resets the breaker meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._incident.alerts import DEFAULT_LABELS, Judged
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.arrivals import Arrived, Correlation, How, Told
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.budget import Limits
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.errors import BreakerTripped
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.replay import Fault
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.requests import Place, from_alert, place_with
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


def backtest(
    faults: Iterable[Fault],
    inventory: Mapping[str, Any],
    breaker: Optional[Mapping[str, Any]] = None,
    correlation: Optional[Correlation] = None,
) -> dict[str, Any]:
    """The incidents that there would have been, oldest first, and their totals."""
    clock = _Clock()
    ledger = Ledger.open("sqlite://", clock=clock)
    in_order = sorted(faults, key=lambda one: one.alert.starts_at)
    unknown = sorted({fault.alert.node for fault in in_order} - set(inventory))
    # A node that the inventory does not have is played all the same: recordings outlive nodes.
    places = {**{node: {"host": node, "groups": {"fleet": len(inventory)}} for node in unknown}, **inventory}
    try:
        ledger.configure("act", breaker, False, "backtest", "a replay")
        played = _Played(ledger, How(places, DEFAULT_LABELS, Limits(), correlation=correlation))
        for now, batch in _batches(in_order, correlation):
            clock.now = now
            played.play(batch)
        incidents = sorted(played.incidents.values(), key=lambda line: line["time"])
        totals = {**played.totals(), "not_in_inventory": unknown}
        return {"incidents": incidents, "totals": totals, "breaker": ledger.breaker()}
    finally:
        ledger.close()


def _batches(faults: Iterable[Fault], correlation: Optional[Correlation]) -> Iterator[tuple[datetime, list[Fault]]]:
    """What a run gets together, and when: one that may be one of many waits for the others, as in the event source."""
    waiting: list[Fault] = []
    ends = datetime.min
    for fault in faults:
        starts_at = fault.alert.starts_at
        if waiting and starts_at > ends:
            yield ends, waiting
            waiting = []
        if not correlation or fault.alert.status != "firing" or correlation.domain_of(fault.alert.xid) is None:
            yield starts_at, [fault]
            continue
        if not waiting:
            ends = starts_at + timedelta(seconds=correlation.rule.seconds)
        waiting.append(fault)
    if waiting:
        yield ends, waiting


class _Played:
    def __init__(self, ledger: Ledger, how: How) -> None:
        self._ledger, self._how = ledger, how
        self.incidents: dict[str, dict[str, Any]] = {}
        self._ignored: Counter[str] = Counter()

    def play(self, faults: Sequence[Fault]) -> None:
        """Those that reach a run together."""
        arrived = [
            Arrived(0, fault.alert.starts_at, Judged(number, fault.alert.fingerprint, None, fault.alert))
            for number, fault in enumerate(faults)
        ]
        told = Told()
        alone = {one.judged.position for one in self._ledger.open_groups(arrived, self._how, told)}
        grouped = [fault for number, fault in enumerate(faults) if number not in alone]
        for record in told.records.values():
            self._group(record, [fault for fault in grouped if self._is_of(record, fault)])
        for number in sorted(alone):
            self._fault(faults[number])

    def _fault(self, fault: Fault) -> None:
        alert = fault.alert
        place = place_with(self._how.inventory, alert)
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
            "kind": "fault",
            "node": alert.node,
            "nodes": [alert.node],
            "gpu": record["gpu"],
            "seen_again": 0,
            **self.incidents.get(incident_id, {}),
            **{name: fault.verdict[name] for name in _SHOWN},
            "fence": fault.fences and breaker != "tripped",
            "breaker": breaker,
        }
        self._close(incident_id, fault.verdict["action"], breaker)

    def _is_of(self, record: Mapping[str, Any], fault: Fault) -> bool:
        domain = self._how.correlation.domain_of(fault.alert.xid) if self._how.correlation else None
        return domain == record["domain"] and fault.alert.node in record["nodes"]

    def _group(self, record: Mapping[str, Any], members: Sequence[Fault]) -> None:
        """One line for all that have joined it so far."""
        before = self.incidents.get(record["id"], {"time": iso(members[0].alert.starts_at), "xids": [], "nodes": [], "seen_again": 0})
        xids = {fault.alert.xid for fault in members} | {*before["xids"]}
        self.incidents[record["id"]] = {
            "time": before["time"],
            "kind": "group",
            "node": record["node"],
            "nodes": record["nodes"],
            "gpu": record["gpu"],
            "seen_again": before["seen_again"] + len(members) - (len(record["nodes"]) - len(before["nodes"])),
            "domain": record["domain"],
            "scope": record["scope"],
            "action": "hold",
            "repair": "none",
            "certainty": "none",
            "xids": sorted(xids),
            "reasons": [record["reason"]],
            "fence": False,
            "breaker": None,
        }

    def totals(self) -> dict[str, Any]:
        lines = self.incidents.values()
        return {
            "incidents": len(lines),
            "groups": sum(line["kind"] == "group" for line in lines),
            "nodes": len({node for line in lines for node in line["nodes"]}),
            "actions": dict(sorted(Counter(line["action"] for line in lines).items())),
            "fences": sum(line["fence"] for line in lines),
            "tainted_nodes": len({line["node"] for line in lines if line["breaker"] == "slot"}),
            "held_by_breaker": sum(line["breaker"] == "tripped" for line in lines),
            "seen_again": sum(line["seen_again"] for line in lines),
            "ignored": dict(sorted(self._ignored.items())),
        }

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
