# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Writes nodes: taints, the incidents annotation and the cordon, by compare-and-swap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Callable

from ansible_collections.gpuops.remediation.plugins.module_utils._converge import NotConverged, Outcome, Step, converge
from ansible_collections.gpuops.remediation.plugins.module_utils._errors import RemediationError
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.errors import IncidentEnded, UnknownIncident
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.client import CONNECTIONS, KubeApi, node_path
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.deadline import Deadline
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.errors import (
    Conflict,
    HumanOverride,
    NodeGone,
    NodeRecreated,
    NotFound,
    NotManaged,
)
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.permit import Change, Permit
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.taints import (
    Node,
    Taint,
    Want,
    parse_node,
    part_of,
    patch_of,
    plan,
    release_want,
    same,
    show,
    spot_of,
    wanted,
)


@dataclass(frozen=True)
class NodeWriter:
    """One node, which must be the one that was meant (`uid`) and ours to touch."""

    api: KubeApi
    permit: Permit
    deadline: Deadline
    uid: str | None = None
    check_mode: bool = False

    @property
    def name(self) -> str:
        return self.permit.node

    def read(self) -> Node:
        try:
            node = parse_node(self.api.get(node_path(self.name), self.deadline))
        except NotFound:
            raise NodeGone(f"node {self.name} does not exist") from None
        if self.uid and node.uid != self.uid:
            raise NodeRecreated(f"node {self.name} was recreated: its UID is {node.uid} now, not {self.uid}")
        if not node.managed:
            raise NotManaged(f"node {self.name} is labelled as not managed by this collection")
        return node

    def present(self, taints: Sequence[Taint] = (), cordon: bool = False) -> Outcome[Node]:
        """Taint or cordon the node, and name the incident in its annotation."""
        incident = self.permit.incident
        parts: dict[str, Any] = {"taint/" + spot_of(taint): dict(taint) for taint in taints}
        if cordon:
            parts["cordon"] = True
        want = Want({spot_of(taint): taint for taint in taints}, {incident.id: True} if incident else {}, cordon or None)
        changes = self.permit.changes()
        in_force = {part for part, change in changes.items() if change.status == "applied"}

        def prepare() -> Callable[[Node], Want]:
            return wanted_of

        def wanted_of(node: Node) -> Want:
            refuse_overridden(node, {part: value for part, value in parts.items() if part in in_force})
            return want

        def before_write(node: Node) -> None:
            self.permit.check("taint")
            self.permit.take_slot()
            for part, value in parts.items():
                change = self.permit.intend(part, part_of(node, part), value)
                if change:
                    changes[part] = change

        outcome = self._settle(prepare, before_write, after_write=lambda: in_force.update(parts))
        made = [part for part in parts if part in changes and not self.check_mode]
        undone = [part for part in made if not self.permit.applied(changes[part], part_of(outcome.after, part))]
        if undone and incident:
            self.take_back([part for part in undone if self.permit.is_free(part)], incident.id)
        return outcome

    def take_back(self, parts: Sequence[str], incident_id: str) -> None:
        """Nobody wants these taints, and nothing would ever lift them: the incident was released while they were being written."""
        want = Want({part.partition("/")[2]: None for part in parts if part != "cordon"}, {incident_id: False})
        self._settle(lambda: lambda node: want, lambda node: None)
        raise IncidentEnded(f"incident {incident_id} was ended while node {self.name} was being written; what was written is gone again")

    def absent(self, taints: Sequence[Taint]) -> Outcome[Node]:
        """Take the taints off, whoever put them there: an operator's own use, without an incident."""
        want = Want({spot_of(taint): None for taint in taints})
        return self._settle(lambda: lambda node: want, lambda node: self.permit.check("taint"))

    def lift(self, taints: Sequence[Taint]) -> Outcome[Node]:
        """Take the taints off, whoever put them there, but for those that another open incident wants. What else the incident changed stays."""
        incident = self.permit.incident
        if incident is None:
            return self.absent(taints)
        parts = ["taint/" + spot_of(taint) for taint in taints]
        changes = self.permit.changes()
        mine = {part: change for part, change in changes.items() if part in parts}
        lifted: dict[str, Change] = {}

        def prepare() -> Callable[[Node], Want]:
            asked = False

            def want(node: Node) -> Want:
                nonlocal asked
                if not asked:  # as in a release
                    asked = True
                    lifted.clear()
                    if mine:
                        self.permit.check("release")
                    lifted.update(self.permit.disown(mine))
                free = [part for part in parts if part in lifted or self.permit.is_free(part)]
                named = {} if changes.keys() - mine.keys() else {incident.id: False}
                return Want({part.partition("/")[2]: None for part in free}, named)

            return want

        outcome = self._settle(prepare, lambda node: self.permit.check("release"))
        for change in lifted.values():
            self.permit.reverted(change)
        return outcome

    def release(self, *, keep_cordon: bool = False) -> Outcome[Node]:
        """Undo what the incident changed on this node, as far as no other incident wants it, to what was there before the first of them."""
        incident = self.permit.incident
        if incident is None:
            raise ValueError("only an incident has something to release")
        mine = self.permit.changes()
        kept = keep_cordon and mine.pop("cordon", None) is not None
        to_undo: dict[str, Change] = {}

        def prepare() -> Callable[[Node], Want]:
            asked = False

            def want(node: Node) -> Want:
                nonlocal asked
                if not asked:  # anew in each attempt and after the node was read: an incident that joined meanwhile keeps its taint
                    asked = True
                    to_undo.clear()
                    if mine:
                        self.permit.check("release")
                    to_undo.update(self.permit.disown(mine))
                undo = {part: (change.before, change.wanted) for part, change in to_undo.items()}
                return release_want(node, incident.id, undo, named=kept)

            return want

        outcome = self._settle(prepare, lambda node: self.permit.check("release"))
        for change in to_undo.values():
            self.permit.reverted(change)
        return outcome

    def forget(self) -> Outcome[Node]:
        """Take the name of the incident, which a human ended, off the node, and nothing else."""
        incident = self.permit.incident
        if incident is None:
            raise UnknownIncident(f"no incident is named that node {self.name} is to forget")
        want = Want(incidents={incident.id: False})
        return self._settle(lambda: lambda node: want, lambda node: self.permit.check("forget"))

    def _settle(
        self,
        prepare: Callable[[], Callable[[Node], Want]],
        before_write: Callable[[Node], None],
        after_write: Callable[[], None] = lambda: None,
    ) -> Outcome[Node]:
        """Read, plan, write, read again; from the start when somebody else wrote in between."""

        def attempt() -> Outcome[Node]:
            want = prepare()
            seen: list[Node] = []

            def read() -> Node:
                seen.append(self.read())
                return seen[-1]

            def write(step: Step) -> None:
                node = seen[-1]
                before_write(node)
                try:
                    self.api.patch(node_path(self.name), patch_of(node, wanted(node, want(node))), self.deadline)
                except NotFound:
                    raise NodeGone(f"node {self.name} was deleted") from None
                after_write()

            outcome = converge(
                read,
                lambda node: plan(node, want(node)),
                lambda node, steps: wanted(node, want(node)),
                write,
                check_mode=self.check_mode,
            )
            if self.check_mode and outcome.steps:
                before_write(outcome.before)  # what would forbid the write forbids its prediction; the ledger takes it back
            return outcome

        return self.deadline.attempt(attempt, Conflict, NotConverged)


def refuse_overridden(node: Node, in_force: Mapping[str, Any]) -> None:
    """Raises when a change that was in force is gone: somebody undid it."""
    for part, value in in_force.items():
        if not same(part_of(node, part), value):
            raise HumanOverride(f"somebody undid {part} on node {node.name}; it is not put back", part=part)


def side_by_side(nodes: Sequence[Mapping[str, Any]], write: Callable[[Mapping[str, Any]], Outcome[Node]]) -> list[dict[str, Any]]:
    """A result for each node: one node's trouble is its own."""

    with ThreadPoolExecutor(max_workers=CONNECTIONS) as pool:
        return list(pool.map(lambda node: result_of(node["name"], lambda: write(node)), nodes))


def result_of(name: str, write: Callable[[], Outcome[Any]], shown: Callable[[Any], Any] = show) -> dict[str, Any]:
    """One node's entry in a module's result."""
    try:
        return {"name": name, **write().result(shown), "error": None, "error_kind": None}
    except RemediationError as error:
        return failed_of(name, error)


def failed_of(name: str, error: RemediationError) -> dict[str, Any]:
    failure = error.failure()
    return {"name": name, "changed": False, "error": failure.pop("msg"), **failure}


def summary(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The module's return values; with `msg` when a node failed."""
    failed = [result for result in results if result["error"]]
    kinds = {result["error_kind"] for result in failed}
    diffs = [
        {**result.pop("diff"), "before_header": result["name"], "after_header": result["name"]} for result in results if "diff" in result
    ]
    answer: dict[str, Any] = {"changed": any(result["changed"] for result in results), "nodes": list(results), "diff": diffs}
    if failed:
        told = "; ".join(f"{result['name']}: {result['error']}" for result in failed[:5])
        answer["msg"] = f"{len(failed)} of {len(results)} nodes failed: {told}"
        answer["error_kind"] = kinds.pop() if len(kinds) == 1 else "several"
    return answer
