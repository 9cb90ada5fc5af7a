# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Incidents as playbooks and people see them: plain data, times as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from ansible_collections.gpuops.remediation.plugins.module_utils._incident.budget import left
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.keys import ENDED_OPEN_STATES, OPEN_STATES
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.times import iso

# In check mode an incident that would be opened has this id, and whoever is given it answers as if it existed.
PREDICTED = "predicted"

_PLAIN = [
    "id",
    "kind",
    "state",
    "round",
    "node",
    "node_uid",
    "host",
    "nodes",
    "groups",
    "gpu",
    "pci_bus_id",
    "serial",
    "slot",
    "domain",
    "scope",
    "mode",
    "alert",
    "verdict",
    "detected_late_seconds",
    "reason",
    "release",
]
_TIMES = ["opened_at", "received_at", "starts_at", "clock_at", "deadline_at", "ended_at", "closed_at"]


def incident_record(row: Any, stages: Iterable[Any], now: datetime, *, found: bool = True) -> dict[str, Any]:
    return {
        **{name: getattr(row, name) for name in _PLAIN},
        **{name: iso(getattr(row, name)) for name in _TIMES},
        "open": row.state in OPEN_STATES,
        "resume": "verify" if row.state in ENDED_OPEN_STATES else "",
        "seconds_left": None if row.state == "fenced_waiting" else left(now, row.deadline_at),  # its time begins when there is room
        "stages": {stage.name: stage_record(stage) for stage in stages if stage.round == row.round},
        "found": found,
        # as node_taint takes a node
        "target": {"name": row.node, "uid": row.node_uid, "incident_id": row.id, "groups": row.groups or {}},
    }


def predicted(record: Mapping[str, Any]) -> dict[str, Any]:
    """As whoever goes on with it in check mode has to name it: what the ledger was told of it is taken back."""
    return {**record, "id": PREDICTED, "target": {**record["target"], "incident_id": PREDICTED}}


def stage_record(row: Any) -> dict[str, Any]:
    seconds = (row.finished_at - row.started_at).total_seconds() if row.finished_at else None
    return {
        "state": row.state,
        "outcome": row.outcome,
        "error_kind": row.error_kind,
        "reason": row.reason,
        "data": row.data,
        "attempts": row.attempts,
        "started_at": iso(row.started_at),
        "finished_at": iso(row.finished_at),
        "seconds": seconds,
    }


def place(incident: Mapping[str, Any]) -> str:
    """Where to walk to: node, GPU, serial number, slot."""
    words = [incident["node"]]
    if incident["gpu"] != "-":
        words.append("GPU %s" % incident["gpu"])
    words += ["%s %s" % (word, incident[word]) for word in ("serial", "slot") if incident.get(word)]
    return ", ".join(words)


def next_command(incident: Mapping[str, Any]) -> str:
    """What a person types next."""
    state, incident_id = incident["state"], incident["id"]
    if state in ("running", "fenced_waiting"):
        return "ansible-playbook gpuops.remediation.reconcile"
    if state == "held_for_human" and incident.get("kind") == "group":  # nobody changed its nodes
        return "ansible-playbook gpuops.remediation.release -e gpuops_incident_id=%s" % incident_id
    stands = state == "held_for_human" and (incident.get("verdict") or {}).get("quarantine_stands")
    if stands or state in ("contained", "quarantined_overdue"):
        return "ansible-playbook gpuops.remediation.release -e gpuops_incident_id=%s" % incident_id
    if state == "held_for_human":
        return "ansible-playbook gpuops.remediation.remediate -e gpuops_incident_id=%s -e gpuops_anew=true" % incident_id
    return ""
