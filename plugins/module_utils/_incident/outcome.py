# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""In which state an incident ends: one pure function, so that no path through the playbooks can invent another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._incident.stages import LOOP

# Reasons of a failed stage that a human has decided already (S6).
_HUMAN = {"human_override": "our taint or rule was removed by somebody else", "node_recreated": "the node was recreated under its name"}


@dataclass(frozen=True)
class End:
    state: str
    reason: str


def end(
    verdict: Optional[Mapping[str, Any]],
    stages: Mapping[str, Mapping[str, Any]],
    *,
    changed: bool,
    standing: bool,
    overdue: bool = False,
) -> End:
    """The end state, from the verdict and the stages.

    changed: anything was changed at all. standing: a change of ours still stands. overdue: the deadline has passed.
    """
    bad = {name: stages[name] for name in LOOP if name in stages and stages[name].get("outcome") in ("failed", "timed_out", "due")}
    for name, stage in bad.items():
        if stage.get("error_kind") in _HUMAN:
            return End("cancelled_by_human", "%s: %s" % (name, _why(stage, _HUMAN[stage["error_kind"]])))
    if verdict is None:
        # Silence is not a verdict (S12): whatever was fenced stays fenced.
        diagnose = stages.get("diagnose", {})
        return (
            _overdue("diagnose gave no verdict" + _because(diagnose)) if overdue and standing else _held("no verdict" + _because(diagnose))
        )
    action = verdict.get("action", "none")
    if action in ("none", "observe"):
        if standing:
            return _held("the verdict asks for nothing, and yet a change of ours stands")
        return End("fence_lifted" if changed else "no_action", _words(verdict))
    if action == "hold":
        return _held(_words(verdict))
    if any(stage["outcome"] == "due" for stage in bad.values()):
        due = "due, not done, for the mode forbids it: %s" % ", ".join(name for name in bad if bad[name]["outcome"] == "due")
        return _held(due) if standing else End("no_action", due)
    return _worst(bad, stages, standing=standing, overdue=overdue) or End("contained", _words(verdict))


def _worst(
    bad: Mapping[str, Mapping[str, Any]], stages: Mapping[str, Mapping[str, Any]], *, standing: bool, overdue: bool
) -> Optional[End]:
    """What kept the incident from being contained; None where nothing did."""
    late = [name for name, stage in bad.items() if stage["outcome"] == "timed_out"]
    unfinished = [name for name in LOOP if name in stages and stages[name].get("state") == "started"]
    kept = (stages.get("evict", {}).get("data") or {}).get("kept") or []
    for name, stage in bad.items():
        # Work or holders left on a quarantined GPU are a matter of time; every other failure needs a person.
        if name in ("evict", "verify") or name in late:
            continue
        return _held("%s failed%s" % (name, _because(stage)))
    if standing and (late or bad or (overdue and (unfinished or "verify" not in stages))):
        if "evict" in bad and bad["evict"].get("error_kind") == "pods_kept":
            return _held("pods stay that only a person may end%s" % _because(bad["evict"]))
        name = next(iter(bad), (unfinished or ["verify"])[0])
        return _overdue("%s did not finish%s" % (name, _because(stages.get(name, {}))))
    if bad or unfinished or (overdue and "verify" not in stages):
        name = next(iter(bad), (unfinished or ["verify"])[0])
        return _held("%s did not finish%s" % (name, _because(stages.get(name, {}))))
    return _held("%d pods stay that only a person may end" % len(kept)) if kept else None


def _held(reason: str) -> End:
    return End("held_for_human", reason)


def _overdue(reason: str) -> End:
    return End("quarantined_overdue", reason)


def _why(stage: Mapping[str, Any], otherwise: str) -> str:
    return stage.get("reason") or otherwise


def _because(stage: Mapping[str, Any]) -> str:
    reason = stage.get("reason") or stage.get("error_kind")
    return ": %s" % reason if reason else ""


def _words(verdict: Mapping[str, Any]) -> str:
    return "; ".join(str(reason) for reason in verdict.get("reasons") or ()) or "as the verdict says"
