# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Read, plan, apply, read again: the one way in which modules change anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Callable, Generic, TypeVar

from ansible_collections.gpuops.remediation.plugins.module_utils._errors import RemediationError

State = TypeVar("State")


class NotConverged(RemediationError):
    """The steps ran, and reading again shows that something still differs."""


@dataclass(frozen=True)
class Step:
    """One change: what is done to what, and its value before and after."""

    action: str
    target: str
    before: Any
    after: Any


@dataclass(frozen=True)
class Outcome(Generic[State]):
    before: State
    after: State
    steps: Sequence[Step]

    def result(self, show: Callable[[State], Any]) -> dict[str, Any]:
        """The module's return values; `show` turns a state into plain data for people."""
        before, after = show(self.before), show(self.after)
        return {
            "changed": bool(self.steps),
            "actions": [asdict(step) for step in self.steps],
            "before": before,
            "after": after,
            "diff": {"before": before, "after": after},
        }


def converge(
    read: Callable[[], State],
    plan: Callable[[State], Sequence[Step]],
    predict: Callable[[State, Sequence[Step]], State],
    apply: Callable[[Step], None],
    *,
    check_mode: bool,
) -> Outcome[State]:
    """Bring what `read` sees to where `plan` finds nothing to do.

    Check mode stops after the plan and answers with the predicted state, so that it cannot promise what the real run would not do.
    """
    before = read()
    steps = plan(before)
    if check_mode or not steps:
        return Outcome(before, predict(before, steps), steps)
    for step in steps:
        apply(step)
    after = read()
    left = plan(after)
    if left:
        raise NotConverged("the change did not hold", left=[asdict(step) for step in left])
    return Outcome(before, after, steps)
