# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""The stages of an incident and what starting one means: do it, do it again, or skip it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._incident.budget import Limits, grant
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.keys import ENDED_OPEN_STATES, OPEN_STATES

LOOP = ("detect", "diagnose", "isolate", "taint", "evict", "verify")
LATER = ("repair", "validate", "release")
STAGES = LOOP + LATER
OUTCOMES = ("ok", "failed", "due", "skipped", "timed_out")


def start(stage: str, incident: Mapping[str, Any], stored: Optional[Mapping[str, Any]], now: datetime, limits: Limits) -> dict[str, Any]:
    """Whether to run a stage now and for how long; `incident` has state and deadline_at, `stored` is the stage as the ledger has it.

    An ended incident runs nothing but verify, which only looks: its time is over, and what it left behind stands.
    """
    state = incident["state"]
    if stage in LATER:
        return _answer(skip=state not in OPEN_STATES, seconds=limits.stage_seconds[stage])
    if state in ENDED_OPEN_STATES:
        return _answer(skip=stage != "verify", seconds=limits.stage_seconds["verify"])
    if state not in OPEN_STATES or (stored and stored["state"] == "finished"):
        return _answer(skip=True)
    seconds = grant(stage, now, incident["deadline_at"], limits)
    return _answer(skip=seconds == 0, seconds=seconds, overdue=seconds == 0)


def _answer(skip: bool, seconds: int = 0, overdue: bool = False) -> dict[str, Any]:
    return {"skip": skip, "seconds": 0 if skip else seconds, "overdue": overdue}
