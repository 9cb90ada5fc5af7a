# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""A node's lock as a coordination.k8s.io Lease: the pure part.

Whoever takes the lock gets a token, and every taking makes a higher one: whoever still writes with an older one has lost the lock. The Lease is never
deleted by us, so that the token keeps growing; should somebody delete it, the next first token is the time, which no counter catches up with.

Times are the API server's, which every holder reads from its answers: the clocks of two controllers are never compared. (client-go watches a
lease for its whole duration instead; a module lives too short for that.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

ANNOTATION_TOKEN = "gpuops.remediation/lock-token"
RESOLUTION_SECONDS = 1.0  # of the server's clock, as its answers show it


@dataclass(frozen=True)
class Lock:
    """What a Lease says; `holder` is empty when it is free."""

    holder: str
    token: int
    expires: float
    transitions: int = 0

    def held_by_other(self, holder: str, now: float) -> bool:
        return bool(self.holder) and self.holder != holder and now < self.expires + RESOLUTION_SECONDS

    def is_mine(self, holder: str, token: int) -> bool:
        """Also when it has lapsed: nobody took it, or the token would be higher."""
        return self.holder == holder and self.token == token


def parse_lease(raw: Mapping[str, Any]) -> Lock:
    spec = raw.get("spec") or {}
    transitions = int(spec.get("leaseTransitions") or 0)
    renewed = spec.get("renewTime")
    token = str((raw["metadata"].get("annotations") or {}).get(ANNOTATION_TOKEN, ""))
    return Lock(
        holder=spec.get("holderIdentity") or "",
        token=int(token) if token.isdigit() else transitions,
        expires=_seconds(renewed) + float(spec.get("leaseDurationSeconds") or 0) if renewed else 0.0,
        transitions=transitions,
    )


def taken(before: Mapping[str, Any] | None, name: str, holder: str, now: float, lease_seconds: int) -> dict[str, Any]:
    """The Lease when `holder` takes it."""
    lock = parse_lease(before) if before else None
    old = before or {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name}}
    token = lock.token + 1 if lock else int(now)
    annotations = {**(old["metadata"].get("annotations") or {}), ANNOTATION_TOKEN: str(token)}
    spec = {
        "holderIdentity": holder,
        "leaseDurationSeconds": lease_seconds,
        "acquireTime": _micro_time(now),
        "renewTime": _micro_time(now),
        "leaseTransitions": lock.transitions + 1 if lock else 0,
    }
    return {**old, "metadata": {**old["metadata"], "annotations": annotations}, "spec": spec}


def renewed(before: Mapping[str, Any], now: float) -> dict[str, Any]:
    return {**before, "spec": {**before["spec"], "renewTime": _micro_time(now)}}


def released(before: Mapping[str, Any]) -> dict[str, Any]:
    """Free; the token stays, to be counted on from."""
    return {**before, "spec": {"leaseTransitions": before["spec"].get("leaseTransitions", 0)}}


def _micro_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _seconds(micro_time: str) -> float:
    return datetime.fromisoformat(micro_time.replace("Z", "+00:00")).timestamp()
