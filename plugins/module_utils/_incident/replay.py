# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Recorded messages and kernel logs -> faults as the loop would have met them, each with its verdict. Nothing here reads a file.

A recording does not hold what the node would have answered, so each fault is judged on what is there: an alert's Xid as if the node
confirms it, a kernel log as if NVML had nothing to add.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._diagnosis.correlation import domain_of
from ansible_collections.gpuops.remediation.plugins.module_utils._diagnosis.verdict import Verdict, diagnose, diagnose_all
from ansible_collections.gpuops.remediation.plugins.module_utils._errors import RemediationError
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.alerts import Alert, LabelMap, is_own, judge_all, parse_message
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.history import failed_programs
from ansible_collections.gpuops.remediation.plugins.module_utils._xid.lines import Event, gpu_identities, parse_lines
from ansible_collections.gpuops.remediation.plugins.module_utils._xid.policy import QUARANTINES, Policy
from ansible_collections.gpuops.remediation.plugins.module_utils._xid.times import parse_time

QUIET = timedelta(seconds=720)  # lines of a node with less between them are of one episode: so long has an incident


class RecordingInvalid(RemediationError):
    """A recording cannot be replayed."""

    kind = "recording_invalid"


@dataclass(frozen=True)
class Fault:
    """What opens an incident, what would be found, and whether the alert alone fences."""

    alert: Alert
    verdict: Verdict
    fences: bool


@dataclass(frozen=True)
class Replayed:
    """A message's faults, why others of its alerts would be held, and how many Alertmanager had left out."""

    faults: Sequence[Fault]
    held: Sequence[str]
    truncated: int


def of_message(body: bytes, policy: Policy, labels: Optional[LabelMap] = None) -> Replayed:
    message = parse_message(body)
    judged = [one for one in judge_all(message, labels) if not is_own(one.raw)]
    faults = [of_alert(one.alert, policy) for one in judged if one.alert]
    return Replayed(faults, [str(one.reason) for one in judged if one.alert is None], message.truncated)


def of_alert(alert: Alert, policy: Policy) -> Fault:
    alone = _alone(alert, policy)
    fences = _is_fence(alone)
    if alert.xid is None or fences or alert.status != "firing":
        return Fault(alert, alone, fences)
    row = policy.row(alert.xid).under({"xids": {alert.xid}, "later_xids": (), "severity": None})
    reasons = ["Xid %d, if the node confirms it: %s" % (alert.xid, row.meaning), *alone["reasons"]]
    confirmed = {name: getattr(row, name) for name in ("domain", "scope", "action", "repair", "evict_blind")}
    return Fault(alert, {**alone, **confirmed, "certainty": "likely", "reasons": reasons}, False)


def of_kernel_log(lines: Sequence[str], node: str, policy: Policy, boot_time: Optional[datetime] = None) -> Iterator[Fault]:
    """The faults of one node's log, in the order of their episodes."""
    identities = gpu_identities(lines)
    failures: list[dict[str, Any]] = []
    for episode in _episodes(parse_lines(lines, boot_time=boot_time, boot_id="replayed"), node):
        info = {
            "node": {"boot_id": episode[0]["boot_id"], "collected_at": episode[-1]["time"]},
            "gpus": [
                {"pci_bus_id": pci, "uuid": None, "serial": None, **identities.get(pci, {})}
                for pci in sorted({event["pci_bus_id"] for event in episode if event["pci_bus_id"] and not event["sxid"]})
            ],
            "xids": episode,
        }
        for verdict in diagnose_all({"node": {"name": node}, "info": info, "history": failures}, policy):
            alerts = [replace(_alert_of(verdict, episode, node), name="an Xid", xid=code) for code in verdict["xids"]]
            fences = any(_is_fence(_alone(alert, policy)) for alert in alerts)
            yield Fault(_one_of(alerts, policy) or _alert_of(verdict, episode, node), verdict, fences)
            failures += failed_programs(verdict, info)


def _episodes(events: Iterable[Event], node: str) -> Iterator[list[Event]]:
    """Each of one boot, and without a pause in it."""
    dated = [(parse_time(event["time"]), event) for event in events]
    if any(time is None for time, _event in dated):
        raise RecordingInvalid(
            "the kernel log of %s has lines without a date: give boot_time where they count the seconds since boot, "
            "else record it by journalctl -k -o short-iso or -o json" % node
        )
    episode: list[Event] = []
    last: Optional[datetime] = None
    for time, event in sorted(dated, key=lambda one: one[0]):  # type: ignore[arg-type, return-value]
        if last is not None and time is not None and (time - last > QUIET or event["boot_id"] != episode[-1]["boot_id"]):
            yield episode
            episode = []
        episode.append(event)
        last = time
    if episode:
        yield episode


def _alert_of(verdict: Verdict, episode: Sequence[Event], node: str) -> Alert:
    """The alert that an exporter's metrics would have raised at the first line."""
    pci = verdict["pci_bus_id"]
    first = next((event for event in episode if event["pci_bus_id"] == pci and not event["sxid"]), episode[0])
    starts_at = parse_time(first["time"])
    if starts_at is None:
        raise ValueError("the lines of an episode are dated")
    labels = "%s %s %s %s" % (node, verdict["gpu_uuid"] or pci, verdict["domain"], verdict["xids"])
    return Alert(hashlib.sha256(labels.encode()).hexdigest()[:16], "firing", starts_at, node, None, verdict["gpu_uuid"], pci)


def _one_of(alerts: Sequence[Alert], policy: Policy) -> Optional[Alert]:
    """The first, if each of them says that it may be one of many: what is the GPU's own is not to vanish in a group."""
    domains = {domain_of(alert.xid, policy) for alert in alerts}
    return alerts[0] if len(domains) == 1 and None not in domains else None


def _alone(alert: Alert, policy: Policy) -> Verdict:
    """What the controller knows before anybody has asked the node."""
    gpu: Mapping[str, Any] = {"uuid": alert.gpu_uuid, "pci_bus_id": alert.pci_bus_id, "index": alert.gpu_index}
    return diagnose({"node": {"name": alert.node}, "gpu": gpu, "alert": alert.record()}, policy)


def _is_fence(verdict: Verdict) -> bool:
    return verdict["action"] in QUARANTINES and verdict["certainty"] == "certain"
