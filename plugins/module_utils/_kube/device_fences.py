# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Fences of single GPUs, where they are handed out by themselves: many new incidents at once, and no node is written.

As with nodes, the ledger is asked about all of them in one transaction and told of all in another, and what is not so plain goes the long way of
a device's taint. What cannot be taken out alone is left to the nodes' fence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ansible_collections.gpuops.remediation.plugins.module_utils._converge import Outcome
from ansible_collections.gpuops.remediation.plugins.module_utils._errors import RemediationError
from ansible_collections.gpuops.remediation.plugins.module_utils._kube import permit as permits
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.client import CONNECTIONS, KubeApi
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.deadline import Deadline
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.device_taints import (
    Device,
    Rule,
    parse_rule,
    plan,
    rule_of,
    show,
)
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.devices import DeviceWriter, part_of, taintable
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.errors import DeviceNotTaintable
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.fences import TAINT, Fence, Ledger, read_nodes, write_granted
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.nodes import NodeWriter, failed_of, result_of
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.resources import ResourceApi
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.taints import Node

NOTICE_SECONDS = 2.0  # a fence is early or nothing, and a node too many is given back


@dataclass(frozen=True)
class DeviceFence:
    """A GPU that one new incident wants fenced, by its names."""

    on: Fence
    gpu: Sequence[str]


@dataclass
class _Work:
    """What is known of one fence on its way."""

    fence: DeviceFence
    writer: DeviceWriter
    rule: Rule | None = None  # where it is plain
    made: Rule | None = None
    error: RemediationError | None = None

    @property
    def on(self) -> Fence:
        return self.fence.on

    @property
    def target(self) -> str:
        return permits.target_of(self.on.node, part_of(self.rule.name if self.rule else ""))

    @property
    def written(self) -> bool:
        return self.made is not None


def fence_devices(
    api: KubeApi, ledger: Ledger, fences: Sequence[DeviceFence], deadline: Deadline, check_mode: bool = False
) -> list[dict[str, Any] | None]:
    """A result for each, in their order, as device_taint gives it; None where only the node can be fenced."""
    if not fences:
        return []
    resources = ResourceApi(api, deadline)
    names = {one.on.node for one in fences}
    try:
        resources.rules_version()
        devices = resources.devices(next(iter(names)) if len(names) == 1 else None)
    except DeviceNotTaintable:
        return [None] * len(fences)
    except RemediationError as error:  # what nobody could read is no reason to take the whole node
        return [failed_of(one.on.node, error) for one in fences]
    works = [_Work(one, _writer(api, ledger, one.on, resources, deadline, check_mode)) for one in fences]
    with ThreadPoolExecutor(max_workers=CONNECTIONS) as pool:
        if not check_mode:
            nodes = read_nodes(api, names, pool, deadline)
            for work in works:
                work.rule = _plain(work, nodes.get(work.on.node), devices)
            _fence_plain(works, ledger, resources, pool)
        answers = list(pool.map(_result, works))
    made = [(work, answer) for work, answer in zip(works, answers) if answer and not answer["error"]]
    if made and not check_mode and not _is_acted_on(*made[0]):
        return [answer if answer and answer["error"] else None for answer in answers]
    return answers


def _is_acted_on(work: _Work, answer: Mapping[str, Any]) -> bool:
    """One rule speaks for the server. It stays, as its incident's taint stage will leave it."""
    try:
        work.writer.noticed([answer["after"]["rules"][0]["name"]], NOTICE_SECONDS)
    except DeviceNotTaintable:
        return False
    except RemediationError:  # which says nothing of the rule; the taint stage looks again
        return True
    return True


def _writer(api: KubeApi, ledger: Ledger, on: Fence, resources: ResourceApi, deadline: Deadline, check_mode: bool) -> DeviceWriter:
    permit = permits.Permit(on.node, permits.Incident(on.incident_id, ledger, on.groups))
    return DeviceWriter(NodeWriter(api, permit, deadline, on.uid, check_mode), resources)


def _plain(work: _Work, node: Node | None, devices: Sequence[Device]) -> Rule | None:
    """The one rule that it takes, on the node that was meant; all else is for the long way to see and to name."""
    if node is None or node.uid != work.on.uid or not node.managed:
        return None
    try:
        found = taintable(node, devices, work.fence.gpu)
    except DeviceNotTaintable as error:
        work.error = error
        return None
    return rule_of(work.on.incident_id, found[0].id, TAINT) if len(found) == 1 else None


def _fence_plain(works: Sequence[_Work], ledger: Ledger, resources: ResourceApi, pool: ThreadPoolExecutor) -> None:
    def write(work: _Work) -> None:
        if not work.rule:
            return
        try:
            work.made = parse_rule(resources.create_rule(work.rule, work.on.node, work.on.uid))
        except DeviceNotTaintable as error:
            work.error = error
            with suppress(RemediationError):  # its release will look for a rule that is not there; the others have their fences
                work.writer.refused(work.rule)
        except RemediationError:  # the long way finds out
            pass

    def take_back(work: _Work) -> None:
        try:
            work.writer.take_back([work.made] if work.made else [])
        except RemediationError as error:  # that it was ended, too
            work.error = error

    write_granted(ledger, pool, {work.on.incident_id: work for work in works if work.rule}, write, take_back)


def _result(work: _Work) -> dict[str, Any] | None:
    """None where only the node can be fenced."""
    node, made, error = work.on.node, work.made, work.error
    if made and not error:
        return result_of(node, lambda: Outcome({}, {made.name: made}, plan({}, {made.name: made})), show)
    if not error:
        try:
            outcome = work.writer.present(work.fence.gpu, TAINT)
            return result_of(node, lambda: outcome, show)
        except RemediationError as failure:
            error = failure
    return None if isinstance(error, DeviceNotTaintable) else failed_of(node, error)
