# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Taints, the incidents annotation and the cordon of a node: the pure part. Nothing here touches a clock or the network.

A taint is known by key and effect (its spot), as the API server knows it. All fields of a taint are kept as they were sent, so that another
writer's taint, with its timeAdded, survives our write byte for byte.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ansible_collections.gpuops.remediation.plugins.module_utils._converge import Step
from ansible_collections.gpuops.remediation.plugins.module_utils._gpu.resources import may_be_gpu
from ansible_collections.gpuops.remediation.plugins.module_utils._names import ANNOTATION_INCIDENTS, LABEL_MANAGED

Taint = Mapping[str, Any]


@dataclass(frozen=True)
class Node:
    """What this collection reads of a node."""

    name: str
    uid: str
    resource_version: str
    taints: tuple[Taint, ...] = ()
    incidents: tuple[str, ...] = ()
    unschedulable: bool = False
    managed: bool = True
    ready: bool = True  # its kubelet answers
    gpu_resources: tuple[str, ...] = ()  # what a device plugin hands out there, or did when it last ran: the kubelet then says 0

    def taint(self, spot: str) -> Taint | None:
        return next((taint for taint in self.taints if spot_of(taint) == spot), None)


@dataclass(frozen=True)
class Want:
    """What a node shall look like. What is not named is left alone."""

    taints: Mapping[str, Taint | None] = field(default_factory=dict)  # by spot; None asks for its absence
    incidents: Mapping[str, bool] = field(default_factory=dict)  # named in the annotation, or not
    unschedulable: bool | None = None


def spot_of(taint: Taint) -> str:
    return "{}:{}".format(taint["key"], taint["effect"])


def same(one: Any, other: Any) -> bool:
    """Whether two values of a part mean the same. A taint's timeAdded does not count: nobody writes a taint only to change it."""
    return bool(_meaning(one) == _meaning(other))


def _meaning(value: Any) -> Any:
    return value.get("value") or "" if isinstance(value, Mapping) else value


def part_of(node: Node, part: str) -> Any:
    """What stands at `taint/<key>:<effect>` (the taint, or None) or at `cordon` (yes or no)."""
    if part == "cordon":
        return node.unschedulable
    taint = node.taint(part.partition("/")[2])
    return None if taint is None else dict(taint)


def parse_node(raw: Mapping[str, Any]) -> Node:
    metadata = raw["metadata"]
    spec = raw.get("spec") or {}
    return Node(
        name=metadata["name"],
        uid=metadata["uid"],
        resource_version=metadata["resourceVersion"],
        taints=tuple(spec.get("taints") or ()),
        incidents=_parse_incidents((metadata.get("annotations") or {}).get(ANNOTATION_INCIDENTS)),
        unschedulable=bool(spec.get("unschedulable")),
        managed=(metadata.get("labels") or {}).get(LABEL_MANAGED) != "false",
        ready=all(each["status"] == "True" for each in (raw.get("status") or {}).get("conditions") or () if each["type"] == "Ready"),
        gpu_resources=tuple(name for name in sorted((raw.get("status") or {}).get("capacity") or {}) if may_be_gpu(name)),
    )


def _parse_incidents(text: str | None) -> tuple[str, ...]:
    try:
        named = json.loads(text or "[]")
    except ValueError:  # the annotation is ours: what nobody can read is written anew
        return ()
    return tuple(str(name) for name in named) if isinstance(named, list) else ()


def wanted(node: Node, want: Want) -> Node:
    """`node` as it shall be: taints stay in their order, new ones come last."""
    differing = {spot: taint for spot, taint in want.taints.items() if not same(node.taint(spot), taint)}
    kept = [differing.get(spot_of(taint), taint) if spot_of(taint) in differing else taint for taint in node.taints]
    new = [taint for spot, taint in differing.items() if node.taint(spot) is None]
    incidents = [name for name in node.incidents if want.incidents.get(name, True)]
    incidents += [name for name, named in want.incidents.items() if named and name not in incidents]
    return replace(
        node,
        taints=tuple(taint for taint in [*kept, *new] if taint is not None),
        incidents=tuple(incidents),
        unschedulable=node.unschedulable if want.unschedulable is None else want.unschedulable,
    )


def plan(node: Node, want: Want) -> list[Step]:
    """Nothing, or one step: whatever differs is written together, or not at all."""
    after = wanted(node, want)
    return [] if after == node else [Step("patch", "node/" + node.name, show(node), show(after))]


def release_want(node: Node, incident: str, to_undo: Mapping[str, tuple[Any, Any]], *, named: bool = False) -> Want:
    """How the node looks without the incident; `to_undo` has what was there before and what the incidents wanted, by part.

    `named`: something else of the incident's stays there, and so does its name.
    Where something else stands by now, somebody else has decided: that stays.
    """
    back = {part: before for part, (before, ours) in to_undo.items() if same(part_of(node, part), ours)}
    uncordon = not back["cordon"] if "cordon" in back else False
    taints = {part.partition("/")[2]: before for part, before in back.items() if part != "cordon"}
    return Want(taints, {} if named else {incident: False}, False if uncordon else None)


def patch_of(node: Node, after: Node) -> dict[str, Any]:
    """The JSON merge patch from `node` to `after`; the API server refuses it (409) when the node is no longer the one that was read."""
    metadata: dict[str, Any] = {"resourceVersion": node.resource_version, "uid": node.uid}
    spec: dict[str, Any] = {}
    if after.incidents != node.incidents:
        metadata["annotations"] = {ANNOTATION_INCIDENTS: json.dumps(after.incidents) if after.incidents else None}
    if after.taints != node.taints:
        spec["taints"] = list(after.taints)
    if after.unschedulable != node.unschedulable:
        spec["unschedulable"] = after.unschedulable or None
    return {"metadata": metadata, "spec": spec}


def show(node: Node) -> dict[str, Any]:
    """For people and results."""
    return {"taints": [dict(taint) for taint in node.taints], "incidents": list(node.incidents), "unschedulable": node.unschedulable}
