# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Many alerts that are one fault: what an application, an NVLink or a fabric does to many nodes of one job, NVLink domain or rack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._incident.breaker import groups_of
from ansible_collections.gpuops.remediation.plugins.module_utils._xid.policy import Policy

KINDS = ("job", "nvlink_domain", "rack")  # the nearest first: the nodes of one job say more than those of one rack
DOMAINS = ("application", "nvlink", "fabric")


@dataclass(frozen=True)
class Rule:
    """nodes: as many different ones make a group. seconds: how far apart two of its alerts may arrive."""

    nodes: int = 3
    seconds: float = 15.0


@dataclass(frozen=True)
class Key:
    kind: str
    name: str
    domain: str


@dataclass(frozen=True)
class Seen:
    """A firing alert. groups: by kind, as the breaker takes them."""

    node: str
    domain: str
    groups: Mapping[str, Any]
    received_at: datetime

    @property
    def keys(self) -> list[Key]:
        names = {group.kind: group.name for group in groups_of(self.groups)}
        return [Key(kind, names[kind], self.domain) for kind in KINDS if kind in names]


def domain_of(xid: Optional[int], policy: Policy) -> Optional[str]:
    """The domain in which an alert may be one of many; None for all others, which say something about their own GPU."""
    domain = policy.row(xid).domain if xid is not None else None
    return domain if domain in DOMAINS else None


def correlated(seen: Sequence[Seen], rule: Rule) -> dict[Key, list[int]]:
    """The positions of those that belong together; each belongs to one group at most."""
    groups: dict[Key, list[int]] = {}
    taken: set[int] = set()
    for kind in KINDS:
        by_key: dict[Key, list[int]] = {}
        for position, one in enumerate(seen):
            for key in one.keys:
                if key.kind == kind and position not in taken:
                    by_key.setdefault(key, []).append(position)
        for key, positions in by_key.items():
            members = [position for burst in _bursts(seen, positions, rule) for position in burst]
            if members:
                groups[key] = members
                taken.update(members)
    return groups


def _bursts(seen: Sequence[Seen], positions: Sequence[int], rule: Rule) -> list[list[int]]:
    """Those that arrived one after the other, on enough nodes."""
    bursts: list[list[int]] = []
    for position in sorted(positions, key=lambda one: seen[one].received_at):
        if bursts and seen[position].received_at - seen[bursts[-1][-1]].received_at <= timedelta(seconds=rule.seconds):
            bursts[-1].append(position)
        else:
            bursts.append([position])
    return [burst for burst in bursts if len({seen[position].node for position in burst}) >= rule.nodes]
