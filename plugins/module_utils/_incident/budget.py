# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""The 720 seconds: when an incident is due, and what each stage may still spend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._errors import RemediationError

_STAGE_SECONDS = {
    "detect": 90,
    "diagnose": 180,
    # together 450
    "isolate": 90,
    "taint": 60,
    "evict": 240,
    "verify": 60,
    # after the incident's own time
    "repair": 3600,
    "validate": 900,
    "release": 600,
}


class BadLimit(RemediationError):
    kind = "bad_limit"


@dataclass(frozen=True)
class Limits:
    total_seconds: int = 720
    on_time_seconds: int = 90
    after_receipt_seconds: int = 630
    taint_floor_seconds: int = 30
    stage_seconds: Mapping[str, int] = field(default_factory=lambda: dict(_STAGE_SECONDS))

    @classmethod
    def of(cls, given: Optional[Mapping[str, Any]]) -> Limits:
        """The defaults with what is given: `total_seconds: 900`, `evict_seconds: 300`."""
        stages, totals = dict(_STAGE_SECONDS), {}
        for name, value in (given or {}).items():
            try:
                seconds = int(value)
            except (TypeError, ValueError):
                raise BadLimit("limit %s is not a number of seconds" % name) from None
            stage = name[: -len("_seconds")] if name.endswith("_seconds") else ""
            if seconds < 0:
                raise BadLimit("limit %s is negative" % name)
            if stage in stages:
                stages[stage] = seconds
            elif name in ("total_seconds", "on_time_seconds", "after_receipt_seconds", "taint_floor_seconds"):
                totals[name] = seconds
            else:
                raise BadLimit("there is no limit %s" % name)
        return cls(stage_seconds=stages, **totals)


@dataclass(frozen=True)
class Deadline:
    clock_at: datetime  # when the time began to run
    at: datetime
    detected_late_seconds: int = 0


def deadline(received_at: datetime, starts_at: Optional[datetime], limits: Limits) -> Deadline:
    """Counted from the fault where we heard of it in time, else from when we heard; a run without an alert starts its own."""
    if starts_at is None or starts_at > received_at:
        return Deadline(received_at, received_at + timedelta(seconds=limits.total_seconds))
    late = (received_at - starts_at).total_seconds()
    if late <= limits.on_time_seconds:
        return Deadline(starts_at, starts_at + timedelta(seconds=limits.total_seconds))
    return Deadline(received_at, received_at + timedelta(seconds=limits.after_receipt_seconds), int(late))


def after_waiting(now: datetime, limits: Limits) -> datetime:
    """A fenced_waiting incident's time starts when its slot opens."""
    return now + timedelta(seconds=limits.after_receipt_seconds)


def left(now: datetime, deadline_at: datetime) -> int:
    return max(0, int((deadline_at - now).total_seconds()))


def grant(stage: str, now: datetime, deadline_at: datetime, limits: Limits) -> int:
    """Seconds that a stage may spend: its own limit or what is left, and never too little for the taint (S16)."""
    own = limits.stage_seconds[stage]
    seconds = min(own, left(now, deadline_at))
    return max(seconds, limits.taint_floor_seconds) if stage == "taint" else seconds
