# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""What the module `incident` is asked to open, turned into requests to the ledger."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._errors import RemediationError
from ansible_collections.gpuops.remediation.plugins.module_utils._fleet.argspec import alertmanager_of
from ansible_collections.gpuops.remediation.plugins.module_utils._fleet.silences import Silences
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.alerts import MAX_MESSAGE_BYTES
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.arrivals import Correlation
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.budget import Limits
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.errors import BadMessage
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.records import PREDICTED
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.requests import Want, from_group, from_operator, place_of
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.store import Ledger
from ansible_collections.gpuops.remediation.plugins.module_utils._xid.policy import load_policy

_RETRY_SECONDS = 1.0


def open_incidents(ledger: Ledger, params: Mapping[str, Any]) -> dict[str, Any]:
    """The module's result: the incidents, and what became of everything else in a message."""
    limits, inventory = Limits.of(params["limits"]), params["inventory"]
    silences, missing = _silences(params)
    message = {
        "inventory": inventory,
        "labels": params["alert_labels"],
        "limits": limits,
        "max_running": params["max_running"],
        "correlation": correlation_of(params),
        "silences": silences,
    }
    if params["alert_file"]:
        result = ledger.open_from_file(read_file(params["alert_file"]), "file:%s" % params["alert_file"], **message)
    elif params["inbox_ids"]:
        result = ledger.open_from_inbox(params["inbox_ids"], **message)
    else:
        ids = params["incident_ids"] or ()
        again = {name: params[name] for name in ("max_running", "anew", "only_due")}
        openings = [ledger.reopen(one, limits, inventory=inventory, silences=silences, **again) for one in ids]
        if not openings:
            want = wanted(params, ledger.now())
            openings = [ledger.open_incident(want, limits, max_running=params["max_running"], anew=params["anew"])]
        records = [record for opening in openings for record in opening.records]
        ignored = [{"incident_id": one, "reason": opening.reason} for one, opening in zip(ids, openings) if opening.how == "ignored"]
        result = {"incidents": records, "held": [], "ignored": ignored, "truncated_alerts": 0}
    new = {record["id"]: record["state"] for record in result["incidents"] if not record["found"]}
    return {**result, "changed": bool(new or result["held"]), "missing": missing, "diff": {"before": {}, "after": new}}


def _silences(params: Mapping[str, Any]) -> tuple[Optional[Silences], list[dict[str, str]]]:
    """What humans have silenced. Who cannot be asked holds up nothing but what was left for a silence, and is named."""
    alertmanager = alertmanager_of(params) if params["alert_file"] or params["inbox_ids"] or params["incident_ids"] else None
    try:
        return (alertmanager.silences() if alertmanager else None), []
    except RemediationError as error:
        return Silences(known=False), [{"source": "alertmanager", "why": str(error)}]


def correlation_of(params: Mapping[str, Any]) -> Optional[Correlation]:
    """None without a policy, which alone knows what may be one fault of many nodes."""
    if not params["policy_file"]:
        return None
    return Correlation.by(load_policy(params["policy_file"]), params["correlation"])


def wanted(params: Mapping[str, Any], now: datetime) -> Want:
    group = params["group"]
    if group:
        return from_group(group["kind"], group["name"], group["nodes"], group["domain"], now)
    return from_operator(place_of(params["inventory"], params["node"]), params["gpu"], now)


def read_file(path: str) -> bytes:
    """The message, read here and nowhere else (S1)."""
    try:
        with open(path, "rb") as file:
            return file.read(MAX_MESSAGE_BYTES + 1)
    except OSError as error:
        raise BadMessage("alert_file %s cannot be read: %s" % (path, error.strerror)) from None


def begun(ledger: Ledger, params: Mapping[str, Any]) -> dict[str, Any]:
    """The module's result for incidents of a node that wait until fewer nodes are being worked on."""
    until = time.monotonic() + (0 if ledger.check_mode else params["wait_seconds"])
    while True:
        last = time.monotonic() + _RETRY_SECONDS > until
        may, records = ledger.begin(
            params["incident_ids"], Limits.of(params["limits"]), max_running=params["max_running"], asks_again=not last
        )
        if may or last:
            diff = {"before": {one["id"]: "fenced_waiting" for one in records}, "after": {one["id"]: one["state"] for one in records}}
            return {"changed": bool(records), "begun": may, "incident_ids": list(diff["after"]), "diff": diff}
        time.sleep(_RETRY_SECONDS)


def ended(ledger: Ledger, params: Mapping[str, Any]) -> dict[str, Any]:
    """The module's result for an incident that is closed or released."""
    before = ledger.incident(params["incident_id"])
    if params["incident_id"] == PREDICTED:  # its stages were never stored, so how it would end is not known
        return {"changed": True, "incident": before}
    if params["state"] == "released":
        changed, after = ledger.release_incident(params["incident_id"], params["checks"], params["reason"])
    else:
        how = (params["end_state"], params["reason"])
        changed, after = ledger.close_incident(params["incident_id"], *how, overdue_because=params["overdue_because"])
    names = ("state", "reason")
    return {"changed": changed, "incident": after, "diff": {"before": {n: before[n] for n in names}, "after": {n: after[n] for n in names}}}
