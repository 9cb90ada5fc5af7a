# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Takes one GPU of a node out of service, and back: rules of the incident's own, written ahead, created and deleted.

The node is read, since it must be the one that was meant and ours to touch, and never written.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Callable

from ansible_collections.gpuops.remediation.plugins.module_utils._converge import NotConverged, Outcome, Step, converge
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.errors import IncidentEnded
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.deadline import Deadline
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.device_taints import (
    Device,
    DeviceId,
    Rule,
    Rules,
    as_made,
    devices_of,
    of_another_gpu,
    plan,
    rule_of,
    same_taint,
    wanted,
)
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.errors import (
    Conflict,
    DeviceNotTaintable,
    HumanOverride,
    NodeGone,
    NodeRecreated,
)
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.evictions import Pod, has_gpu_of_plugin, holds_claims
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.nodes import NodeWriter
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.permit import Change
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.resources import RULES, VERSIONS, ResourceApi
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.taints import Node, Taint
from ansible_collections.gpuops.remediation.plugins.module_utils._names import LABEL_INCIDENT

KIND = "device-taint"  # how the ledger names such a part of a node
PREVIEW = "-preview"
PREVIEW_SECONDS = NOTICE_SECONDS = 10.0
_CONDITION = "EvictionInProgress"


def part_of(rule: str) -> str:
    return f"{KIND}/{rule}"


def taintable(node: Node, devices: Sequence[Device], gpu: Sequence[str], standing: Collection[Rule] = ()) -> list[Device]:
    """The devices of the GPU, where a taint on them keeps all new work from it; none where only `standing` rules know them still."""
    if node.gpu_resources:
        raise DeviceNotTaintable(f"on node {node.name} a device plugin hands out {', '.join(node.gpu_resources)} too")
    found = devices_of(devices, node.name, gpu)
    if not found and not standing:
        raise DeviceNotTaintable(f"no ResourceSlice has {' or '.join(gpu)} on node {node.name}")
    for rule in of_another_gpu(standing, devices, found):
        raise DeviceNotTaintable(
            f"the device {rule.id.device} that {rule.name} taints on node {node.name} is no longer listed as {' or '.join(gpu)}"
        )
    return found


class DeviceWriter:
    """One GPU of one node, on behalf of the incident of `node`'s permit or of an operator."""

    def __init__(self, node: NodeWriter, resources: ResourceApi) -> None:
        self._node, self._resources = node, resources
        self._permit = node.permit

    @property
    def _incident(self) -> str:
        return self._permit.incident.id if self._permit.incident else ""

    def changes(self) -> dict[str, Change]:
        """The incident's rules as the ledger knows them, by name."""
        return {part.partition("/")[2]: change for part, change in self._permit.changes(KIND).items()}

    def standing(self) -> dict[str, Rule]:
        """Those of them that exist. Raises when one that was in force is gone or says something else: somebody decided so."""
        rules, undone = {}, []
        for name, change in self.changes().items():
            rule = self._resources.rule(name)
            if rule and rule.incident == self._incident and same_taint(rule.taint, change.wanted):
                rules[name] = rule
            elif change.status == "applied":
                undone.append(name)
        if undone:
            said = f"somebody undid {', '.join(undone)} on node {self._node.name}; it is not put back"
            if rules:
                said += f". In force still: {', '.join(rules)} (kubectl delete devicetaintrules -l {LABEL_INCIDENT}={self._incident})"
            raise HumanOverride(said, part=part_of(undone[0]))
        return rules

    def present(self, gpu: Sequence[str], taint: Taint, suffix: str = "") -> Outcome[Rules]:
        """Taint all devices of the GPU. One that its driver has ceased to list stays as it is."""
        changes = self.changes()
        made: dict[str, Rule] = {}
        owner: list[Node] = []

        def read() -> Rules:
            node = self._node.read()
            owner[:] = [node]
            standing = {name: rule for name, rule in self.standing().items() if name.endswith(PREVIEW) == bool(suffix)}
            want = {rule.name: rule for rule in self._rules(node, gpu, taint, suffix, standing)}
            there = {name: standing.get(name) or self._resources.rule(name) for name in want}
            for name, rule in there.items():
                if rule and not as_made(rule, want[name]):
                    raise HumanOverride(f"somebody wrote {name}; it is left as it is", part=part_of(name))
            made.clear()
            made.update(want)
            return {name: rule for name, rule in there.items() if rule}

        def before_write(rule: Rule) -> None:
            self._permit.check("taint")
            self._permit.take_slot()
            change = self._permit.intend(part_of(rule.name), None, dict(rule.taint))
            if change:
                changes[rule.name] = change

        def write(step: Step) -> None:
            rule = made[step.target.partition("/")[2]]
            before_write(rule)
            try:
                self._resources.create_rule(rule, owner[0].name, owner[0].uid, dry_run=self._node.check_mode)
            except DeviceNotTaintable:
                self.refused(rule)
                raise

        outcome = self._settle(read, lambda: made, write)
        if not self._node.check_mode:
            self._keep(changes, outcome.after)
        return outcome

    def _rules(self, node: Node, gpu: Sequence[str], taint: Taint, suffix: str, standing: Rules) -> list[Rule]:
        devices = taintable(node, self._resources.devices(node.name), gpu, standing.values())
        self._resources.rules_version()
        found = [rule_of(self._incident, device.id, taint, suffix) for device in devices]
        return [*found, *(rule for name, rule in standing.items() if name not in {each.name for each in found})]

    def _keep(self, changes: Mapping[str, Change], rules: Rules) -> None:
        """Read back. What nobody wants by now is taken off again: its incident was released while it was being written."""
        kept = {name: change for name, change in changes.items() if name in rules}
        undone = [name for name, change in kept.items() if not self._permit.applied(change, dict(rules[name].taint))]
        if undone:
            self.take_back([rules[name] for name in undone])

    def take_back(self, rules: Sequence[Rule]) -> None:
        self._remove({rule.name: rule for rule in rules})
        raise IncidentEnded(
            f"incident {self._incident} was ended while a device of node {self._node.name} was being tainted; what was written is gone again"
        )

    def refused(self, rule: Rule) -> None:
        """The server has not made it, so nothing is left to undo: an account that may not make it may not read it either."""
        for change in self._permit.disown([part_of(rule.name)]).values():
            self._permit.reverted(change)

    def absent(self, gpu: Sequence[str]) -> Outcome[Rules]:
        """Take an operator's own rules off."""
        node = self._node.read()
        names = [rule_of("", device.id, {}).name for device in devices_of(self._resources.devices(node.name), node.name, gpu)]
        return self._without(names, lambda rule: not rule.incident, lambda: self._permit.check("taint"))

    def release(self, only: Callable[[str], bool] = lambda name: True) -> Outcome[Rules]:
        """Delete the incident's own rules. What somebody else made of one stays."""
        mine = {name: change for name, change in self.changes().items() if only(name)}
        if not mine:
            return Outcome({}, {}, [])
        with contextlib.suppress(NodeGone, NodeRecreated):  # that takes nothing from whose the rules are
            self._node.read()
        self._permit.check("release")
        sole = self._permit.disown([part_of(name) for name in mine])

        def ours(rule: Rule) -> bool:
            return rule.incident == self._incident and same_taint(rule.taint, mine[rule.name].wanted)

        try:
            outcome = self._without(list(mine), ours, lambda: self._permit.check("release"))
        except DeviceNotTaintable as error:
            raise DeviceNotTaintable(
                f"{error}; the rules {', '.join(mine)} may stand on node {self._node.name}: "
                "give the account its rights (kubernetes_rbac.yml) or the server its rules back, then do it again"
            ) from error
        for change in sole.values():
            self._permit.reverted(change)
        return outcome

    def preview(self, gpu: Sequence[str], taint: Taint) -> str:
        """What the effect NoExecute would do, in the server's words: it is asked by a rule without effect, which is deleted again."""
        until = self._node.deadline.within(PREVIEW_SECONDS)
        rules = self.present(gpu, {**taint, "effect": "None"}, PREVIEW).after
        try:
            said = [self._said(name, until) for name in rules]
        finally:
            if self._incident:
                self.release(lambda name: name.endswith(PREVIEW))
            else:
                self._remove(rules)
        return " ".join(said)

    def noticed(self, rules: Iterable[str], seconds: float = NOTICE_SECONDS) -> None:
        """Raises where the API server keeps a rule and nobody acts on it, as with a feature gate that only it has; or somebody deletes it.

        The older version of the rules had no such status in all releases; there it is not asked for.
        """
        until = self._node.deadline.within(seconds)
        try:
            for name in rules if self._resources.rules_version() == VERSIONS[RULES][0] else ():
                self._said(name, until)
        except NotConverged as error:
            raise DeviceNotTaintable(f"{error}: is the feature gate DRADeviceTaintRules on in the controller manager too?") from None

    def _said(self, name: str, until: Deadline) -> str:
        resources, pause = self._resources.within(until), 0.01  # the controller manager answers in a few milliseconds
        while True:
            raw = resources.raw_rule(name)
            if raw is None:
                self._node.read()  # its rules go with it
                self.standing()  # names what is in force still
                raise HumanOverride(f"somebody undid {name} on node {self._node.name}; it is not put back", part=part_of(name))
            conditions = (raw.get("status") or {}).get("conditions") or ()
            found = next((each for each in conditions if each["type"] == _CONDITION), None)
            if found:
                return str(found.get("message", ""))
            if not until.left():
                raise NotConverged(f"nobody has taken notice of {name}")
            until.pause(pause)
            pause = min(2 * pause, 0.5)

    def _without(self, names: Collection[str], ours: Callable[[Rule], bool], before_write: Callable[[], None]) -> Outcome[Rules]:
        seen: dict[str, Rule] = {}

        def read() -> Rules:
            found = {name: self._resources.rule(name) for name in names}
            seen.clear()
            seen.update({name: rule for name, rule in found.items() if rule and ours(rule)})
            return dict(seen)

        def write(step: Step) -> None:
            before_write()
            self._resources.delete_rule(seen[step.target.partition("/")[2]], dry_run=self._node.check_mode)

        return self._settle(read, lambda: dict.fromkeys(names), write)

    def _remove(self, rules: Rules) -> None:
        self._without(list(rules), lambda rule: as_made(rule, rules[rule.name]), lambda: None)

    def _settle(
        self, read: Callable[[], Rules], want: Callable[[], Mapping[str, Rule | None]], write: Callable[[Step], None]
    ) -> Outcome[Rules]:
        """Read, plan, write, read again; from the start when somebody else wrote in between."""

        def attempt() -> Outcome[Rules]:
            outcome = converge(
                read,
                lambda rules: plan(rules, want()),
                lambda rules, steps: wanted(rules, want()),
                write,
                check_mode=self._node.check_mode,
            )
            if self._node.check_mode:
                for step in outcome.steps:  # the server says what it would refuse, and keeps nothing
                    write(step)
            return outcome

        return self._node.deadline.attempt(attempt, Conflict, NotConverged)


class DeviceHolders:
    """The pods that hold one GPU of a node, where its drivers' claims say so for certain."""

    def __init__(self, writer: DeviceWriter, resources: ResourceApi, gpu: Sequence[str]) -> None:
        self._writer, self._resources, self._gpu = writer, resources, gpu
        self._listed: list[Device] = []
        self._devices: list[Device] = []

    def uids(self, node: str, pods: Collection[Pod]) -> dict[str, bool] | None:
        """Their UIDs among `pods`, which are all of the node's, and whether each would get the GPU again.

        None where nobody can tell: it is in no slice, or a device plugin may have given it to one of the pods. A plugin that has gone
        leaves its resource behind on the node, so only the pods tell.
        """
        standing = self._standing()
        if any(has_gpu_of_plugin(pod) for pod in pods):
            return None
        namespaces = {pod["metadata"]["namespace"] for pod in pods if holds_claims(pod)}
        try:
            if not self._devices:
                self._listed = self._resources.devices(node)
                self._devices = devices_of(self._listed, node, self._gpu)
            others = of_another_gpu(standing, self._listed, self._devices)
            taints: dict[DeviceId, list[Taint]] = {rule.id: [rule.taint] for rule in standing if rule not in others}
            for device in self._devices:
                taints.setdefault(device.id, [])
            return self._resources.holders(taints, namespaces) if taints else None
        except DeviceNotTaintable:  # it may not be read
            return None

    def _standing(self) -> Collection[Rule]:
        """No rule where they can no longer be read: of a device that is listed, the claims are as certain without them."""
        try:
            return self._writer.standing().values()
        except DeviceNotTaintable:
            return ()


def device_holders(node: NodeWriter, gpu: Sequence[str]) -> DeviceHolders:
    resources = ResourceApi(node.api, node.deadline)
    return DeviceHolders(DeviceWriter(node, resources), resources, gpu)
