# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""A webhook message, cut into what the inbox keeps: the alerts of one node are one row, so that a busy node holds no other back."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Callable, Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._incident.alerts import Alert, Judged, LabelMap, judge_all, parse_message
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.times import iso


@dataclass(frozen=True)
class Parcel:
    """body: a whole message of its own. digest: the same for each delivery of the same alerts. node: None where no usable label names one.

    firing: whether any of its alerts is, or cannot be judged. patient: they may be some of many that are one fault, and wait for the others.
    """

    node: Optional[str]
    firing: bool
    digest: str
    body: bytes
    patient: bool = False


def parcels(body: bytes, labels: Optional[LabelMap] = None, is_patient: Callable[[Alert], bool] = lambda alert: False) -> list[Parcel]:
    """The parcels of one message, in the order in which their nodes come up; BadMessage for what is none.

    An alert that cannot be judged is kept too: the run that reads it holds it for people.
    """
    message = parse_message(body)
    by_node: dict[Optional[str], list[Judged]] = {}
    for judged in judge_all(message, labels):
        by_node.setdefault(judged.alert.node if judged.alert else None, []).append(judged)
    if not by_node and message.truncated:
        by_node = {None: []}  # what was left out is news too
    teller = min(
        by_node, key=lambda node: node or "", default=None
    )  # people are told once of what was left out, by the same part each time
    found: list[Parcel] = []
    for node, alerts in by_node.items():
        truncated = message.truncated if node == teller else 0
        part = {**message.whole, "alerts": [judged.raw for judged in alerts], "truncatedAlerts": truncated}
        kept = body if len(by_node) == 1 else json.dumps(part).encode()
        found.append(Parcel(node, _firing(alerts), _digest(alerts, truncated), kept, _patient(alerts, is_patient)))
    return found


def _patient(alerts: list[Judged], is_patient: Callable[[Alert], bool]) -> bool:
    return bool(alerts) and all(one.alert is not None and one.alert.status == "firing" and is_patient(one.alert) for one in alerts)


def _firing(alerts: list[Judged]) -> bool:
    return not alerts or any(judged.alert is None or judged.alert.status == "firing" for judged in alerts)


def _digest(alerts: list[Judged], truncated: int) -> str:
    """A message that had alerts left out is another one than the same without."""
    return hashlib.sha256("\n".join([*sorted(map(_delivery, alerts)), *([str(truncated)] if truncated else [])]).encode()).hexdigest()


def _delivery(judged: Judged) -> str:
    """An episode is (fingerprint, startsAt), a delivery adds the status; a hint is no delivery. What cannot be judged is known by all of it."""
    if judged.alert:
        status = "hint" if judged.alert.hint else judged.alert.status
        return " ".join((judged.fingerprint, str(iso(judged.alert.starts_at)), status))
    return hashlib.sha256(json.dumps(judged.raw, sort_keys=True).encode()).hexdigest()
