# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""The breaker (S8): how many nodes of a group may be fenced or tainted in a window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Optional, Union


@dataclass(frozen=True)
class Rule:
    nodes: int = 3
    percent: float = 5.0
    window_seconds: int = 600

    def allowed(self, size: int) -> int:
        """The larger of the two, so that small groups can still lose a few nodes and large ones a share."""
        return max(self.nodes, int(size * self.percent / 100))


@dataclass(frozen=True)
class Group:
    """A set of nodes that fail together: the fleet, a job, an NVLink domain, a rack."""

    kind: str
    name: str
    size: int = 0

    @property
    def label(self) -> str:
        return self.kind if self.name == self.kind else "%s %s" % (self.kind, self.name)


@dataclass(frozen=True)
class Slot:
    node: str
    taken_at: datetime
    groups: Sequence[Group]


def named(given: Union[int, str, Mapping[str, Any], None]) -> Optional[str]:
    """The name of a group as an inventory gives it, if it has one of its own."""
    name = given.get("name") if isinstance(given, Mapping) else given
    return name if isinstance(name, str) else None


def groups_of(given: Mapping[str, Union[int, str, Mapping[str, Any], None]]) -> list[Group]:
    """`{fleet: 40, job: train-7, rack: {name: r12, size: 16}}`: a number is a size, a text a name."""
    groups = [Group("fleet", "fleet")] if "fleet" not in given else []
    for kind, value in sorted(given.items()):
        if isinstance(value, Mapping):
            groups.append(Group(kind, str(value.get("name", kind)), int(value.get("size", 0))))
        elif isinstance(value, int):
            groups.append(Group(kind, kind, value))
        elif value:
            groups.append(Group(kind, value))
    return groups


def in_window(slots: Sequence[Slot], now: datetime, rule: Rule, reset_at: Optional[datetime]) -> list[Slot]:
    """The slots that still count; a reset starts a new count."""
    since = now - timedelta(seconds=rule.window_seconds)
    return [slot for slot in slots if slot.taken_at > since and (reset_at is None or slot.taken_at >= reset_at)]


def overfull(slots: Sequence[Slot], node: str, groups: Sequence[Group], rule: Rule) -> Optional[Group]:
    """The first group in which one more node would be too many."""
    for group in groups:
        nodes = {slot.node for slot in slots for other in slot.groups if (other.kind, other.name) == (group.kind, group.name)}
        if len(nodes | {node}) > rule.allowed(group.size):
            return group
    return None
