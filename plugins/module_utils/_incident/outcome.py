# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""In which state an incident ends: one pure function, so that no path through the playbooks can invent another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._incident.stages import LOOP

# Errors of a stage that say that a human was faster (S6).
_HUMAN = {
    "human_override": "our taint or rule was removed by somebody else",
    "node_recreated": "the node was recreated under its name",
    "node_gone": "the node was taken out of the cluster",
}
# What a repeated verify saw against a containment, rather than failed to see; an ended incident may not write the taint that is missing.
_SEEN = (*_HUMAN, "incident_ended")
# What the stages can do about a fault; all other actions are left to a person.
_MEANS = ("freeze", "kill", "quarantine_gpu", "quarantine_node", "hold")
# Work left on a GPU that is out of service is a matter of time; what else fails needs a person.
_TIME = ("evict", "verify")


@dataclass(frozen=True)
class End:
    state: str
    reason: str


def end(
    verdict: Optional[Mapping[str, Any]],
    stages: Mapping[str, Mapping[str, Any]],
    *,
    changed: bool = False,
    standing: bool = False,
    overdue: bool = False,
) -> End:
    """The end state, from the verdict and the stages.

    changed: anything was changed at all. standing: a change of ours still stands. overdue: the deadline has passed.
    """
    problems = list(_problems(stages, overdue))
    for name, stage in problems:
        if stage.get("error_kind") in _HUMAN:
            return End("cancelled_by_human", "%s: %s" % (name, stage.get("reason") or _HUMAN[stage["error_kind"]]))
    if verdict is None:
        # Silence is not a verdict (S12): what was fenced stays fenced.
        reason = "no verdict%s" % _because(stages.get("diagnose", {}))
        return End("quarantined_overdue" if standing and overdue else "held_for_human", reason)
    reasons = _reasons(verdict)
    action = verdict.get("action", "none")
    if action in ("none", "observe"):
        if standing:
            return End("held_for_human", "the verdict asks for nothing, and yet a change of ours stands")
        return End("fence_lifted" if changed else "no_action", reasons)
    if action not in _MEANS:
        return End("held_for_human", "this version leaves it to a person to %s. %s" % (_by_hand(verdict), reasons))
    due = [name for name, stage in problems if stage.get("outcome") == "due"]
    if due and not changed:
        return End("no_action", "the mode forbids what was due: %s" % ", ".join(due))
    if not changed and any(stage.get("error_kind") == "not_managed" for name, stage in problems):
        return End("no_action", "the node is opted out")
    if action == "hold":
        return End("held_for_human", reasons)
    evict, verify = (stages.get(name, {}) for name in ("evict", "verify"))
    kept: list[Mapping[str, Any]] = next(
        (data["kept"] for data in (verify.get("data") or {}, evict.get("data") or {}) if "kept" in data), []
    )
    came_back = verify.get("error_kind") == "evict_incomplete"
    if kept and evict.get("outcome") == "ok" and not came_back:  # verify may well fail for them
        return End("held_for_human", "only a person may end these pods: %s" % ", ".join(_pod(pod) for pod in kept))
    if not problems:
        if verify.get("outcome") != "ok":  # a stage that was left out for another verdict than this one has proven nothing
            return End("held_for_human", "nothing was proven: verify was %s%s" % (verify.get("outcome"), _because(verify)))
        return End("contained", reasons)
    quarantined = standing or stages.get("isolate", {}).get("outcome") == "ok"
    for name, stage in problems:
        if not (quarantined and _is_time(name, stage)):
            return End("held_for_human", _told(name, stage))
    return End("quarantined_overdue", _told(*problems[0]))


def repeated(computed: End, verdict: Optional[Mapping[str, Any]], stages: Mapping[str, Mapping[str, Any]]) -> End:
    """The end of a contained incident after verify ran once more: what was proven stays until the contrary is seen."""
    verify = stages.get("verify", {})
    left = verify.get("outcome") == "failed" and (verify.get("data") or {}).get("left")
    if computed.state == "contained" or left or verify.get("error_kind") in _SEEN:
        return computed
    return End("contained", "%s Not seen again since: %s" % (_reasons(verdict), computed.reason))


def group_end(kind: str, name: str, domain: str, nodes: Sequence[str]) -> End:
    """A group's incident asks for a look at what its nodes have in common; each node's own incident has the stages."""
    if kind == "controller":
        return End("held_for_human", "%d nodes are silent at once (%s): look at the controller first" % (len(nodes), ", ".join(nodes)))
    what = "%s %s" % (kind.replace("_", " "), name)
    told = (len(nodes), what, domain, ", ".join(nodes))
    return End(
        "held_for_human", "%d nodes of %s have a fault of the %s at once (%s): look at what they share; the nodes are as they were" % told
    )


def _reasons(verdict: Optional[Mapping[str, Any]]) -> str:
    return " ".join(str(reason) for reason in (verdict or {}).get("reasons") or ()) or "as the verdict says"


def _by_hand(verdict: Mapping[str, Any]) -> str:
    """What a person has to do, and to whom."""
    gpu = verdict.get("gpu_uuid") or verdict.get("pci_bus_id") or "the GPU"
    if verdict["action"] == "terminate_client":
        suspects = ["%s (%s)" % (one["pid"], one["name"]) if one.get("name") else str(one["pid"]) for one in verdict.get("suspects") or ()]
        return "terminate an MPS client on %s: %s" % (gpu, ", ".join(suspects) or "none is known")
    if verdict["action"] == "close_instance":
        return "close GPU instance %s of %s" % ("?" if verdict.get("gi") is None else verdict["gi"], gpu)
    return "%s on %s" % (verdict["action"], gpu)


def _problems(stages: Mapping[str, Mapping[str, Any]], overdue: bool) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Stages that did not end well; verify has to end well for anything to count as contained."""
    for name in LOOP:
        stage = stages.get(name, {})
        if stage.get("outcome") in ("failed", "timed_out", "due"):
            yield name, stage
        elif stage.get("state") == "started" or (name == "verify" and not stage):
            yield name, {**stage, "outcome": "timed_out" if overdue else "unfinished"}


def _is_time(name: str, stage: Mapping[str, Any]) -> bool:
    return stage["outcome"] == "timed_out" or (name in _TIME and stage["outcome"] == "failed")


def _pod(pod: Mapping[str, Any]) -> str:
    return "%s/%s" % (pod.get("namespace"), pod.get("name"))


def _told(name: str, stage: Mapping[str, Any]) -> str:
    words = {"timed_out": "ran out of time", "due": "is forbidden by the mode", "unfinished": "has not finished"}
    return "%s %s%s" % (name, words.get(stage["outcome"], "failed"), _because(stage))


def _because(stage: Mapping[str, Any]) -> str:
    reason = stage.get("reason") or stage.get("error_kind")
    return ": %s" % reason if reason else ""
