# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Fences: many nodes tainted for new incidents at once.

The ledger is asked about all of them in one transaction and told of all in another; between these the nodes are written side by side. A node
that is not so plain (tainted already, refused by mode or breaker, written by somebody else meanwhile, with two incidents; and any in check mode)
goes the long way of a taint.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Callable, Protocol, TypeVar

from ansible_collections.gpuops.remediation.plugins.module_utils._converge import Outcome
from ansible_collections.gpuops.remediation.plugins.module_utils._errors import RemediationError
from ansible_collections.gpuops.remediation.plugins.module_utils._kube import permit as permits
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.client import CONNECTIONS, KubeApi, node_path
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.deadline import Deadline
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.nodes import NodeWriter, failed_of, result_of
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.taints import (
    Node,
    Taint,
    Want,
    parse_node,
    patch_of,
    plan,
    spot_of,
    wanted,
)
from ansible_collections.gpuops.remediation.plugins.module_utils._names import TAINT_EFFECT, TAINT_KEY, TAINT_VALUE

TAINT: Taint = {"key": TAINT_KEY, "value": TAINT_VALUE, "effect": TAINT_EFFECT}
PART = "taint/" + spot_of(TAINT)
FEW = 2 * CONNECTIONS  # as many nodes are read one by one; for more the whole list is cheaper


class Ledger(permits.Ledger, Protocol):
    def grant(self, wants: Mapping[str, tuple[str, str, Mapping[str, Any]]], wanted: Any) -> Mapping[str, permits.Change]: ...

    def all_applied(self, changes: Iterable[Any], after: Any) -> Container[int]: ...


class Plain(Protocol):
    """A fence that takes one write, of what is named by `target`."""

    @property
    def on(self) -> Fence: ...

    @property
    def target(self) -> str: ...

    @property
    def written(self) -> bool: ...


PlainFence = TypeVar("PlainFence", bound=Plain)


@dataclass(frozen=True)
class Fence:
    """A node that one new incident wants fenced."""

    node: str
    uid: str
    incident_id: str
    groups: Mapping[str, Any]


@dataclass
class _Work:
    """What is known of one fence on its way."""

    on: Fence
    permit: permits.Permit
    before: Node | None = None
    after: Node | None = None
    error: RemediationError | None = None

    @property
    def want(self) -> Want:
        return Want({spot_of(TAINT): TAINT}, {self.on.incident_id: True})

    @property
    def written(self) -> bool:
        return self.after is not None

    @property
    def is_plain(self) -> bool:
        """Nothing of it is there yet, and it is the node that was meant: all else is for the long way to see and to name."""
        node = self.before
        return node is not None and node.uid == self.on.uid and node.managed and node.taint(spot_of(TAINT)) is None

    @property
    def target(self) -> str:
        return permits.target_of(self.on.node, PART)


def fence_all(api: KubeApi, ledger: Ledger, fences: Sequence[Fence], deadline: Deadline, check_mode: bool = False) -> list[dict[str, Any]]:
    """A result for each, in their order, as node_taint gives it: one node's trouble is its own."""
    works = [_Work(one, permits.Permit(one.node, permits.Incident(one.incident_id, ledger, one.groups))) for one in fences]
    with ThreadPoolExecutor(max_workers=CONNECTIONS) as pool:
        if not check_mode:
            one_a_node = _first_of_each_node(works)
            nodes = read_nodes(api, {work.on.node for work in one_a_node}, pool, deadline)
            for work in one_a_node:
                work.before = nodes.get(work.on.node)
            plain = {work.on.incident_id: work for work in one_a_node if work.is_plain}
            write_granted(ledger, pool, plain, lambda work: _write(api, work, deadline), lambda work: _take_back(api, work, deadline))

        def result(work: _Work) -> dict[str, Any]:
            before, after, error = work.before, work.after, work.error
            if error:
                return failed_of(work.on.node, error)
            if before and after:
                return result_of(work.on.node, lambda: Outcome(before, after, plan(before, work.want)))
            writer = NodeWriter(api, work.permit, deadline, work.on.uid, check_mode)
            return result_of(work.on.node, lambda: writer.present([TAINT]))

        return list(pool.map(result, works))


def write_granted(
    ledger: Ledger,
    pool: ThreadPoolExecutor,
    plain: Mapping[str, PlainFence],
    write: Callable[[PlainFence], None],
    take_back: Callable[[PlainFence], None],
) -> None:
    """By incident: what the ledger grants is written, and what a release undid meanwhile is taken back."""
    granted = ledger.grant({name: (work.on.node, work.target, work.on.groups) for name, work in plain.items()}, dict(TAINT))
    list(pool.map(lambda name: write(plain[name]), granted))
    written = [name for name in granted if plain[name].written]
    standing = ledger.all_applied([granted[name] for name in written], dict(TAINT))
    list(pool.map(take_back, [plain[name] for name in written if granted[name].id not in standing]))


def _first_of_each_node(works: Sequence[_Work]) -> list[_Work]:
    """Two writes of one node would only meet each other."""
    first: dict[str, _Work] = {}
    for work in works:
        first.setdefault(work.on.node, work)
    return list(first.values())


def read_nodes(api: KubeApi, names: Collection[str], pool: ThreadPoolExecutor, deadline: Deadline) -> dict[str, Node]:
    """What each node is now; one that cannot be read is left to the long way, which says why."""
    found: dict[str, Node] = {}

    def read(name: str) -> None:
        with contextlib.suppress(RemediationError):
            found[name] = parse_node(api.request("GET", node_path(name), deadline))

    if len(names) <= FEW:
        list(pool.map(read, names))
        return found
    with contextlib.suppress(RemediationError):
        listed = map(parse_node, api.request("GET", "/api/v1/nodes", deadline, query={"resourceVersion": "0"})["items"])
        found.update((node.name, node) for node in listed if node.name in names)
    return found


def _write(api: KubeApi, work: _Work, deadline: Deadline) -> None:
    """The API's answer is the node as it stands after the write; without one, the long way finds out."""
    node = work.before
    if node is None:
        return
    with contextlib.suppress(RemediationError):
        patch = patch_of(node, wanted(node, work.want))
        work.after = parse_node(api.request("PATCH", node_path(work.on.node), deadline, patch))


def _take_back(api: KubeApi, work: _Work, deadline: Deadline) -> None:
    try:
        NodeWriter(api, work.permit, deadline, work.on.uid).take_back([PART] if work.permit.is_free(PART) else [], work.on.incident_id)
    except RemediationError as error:  # that it was ended, too
        work.error = error
