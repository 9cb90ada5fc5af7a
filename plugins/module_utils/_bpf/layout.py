# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""The pinned maps' contents as records. The layouts are those of bpf/gpuops.h."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

KINDS = ("device", "managed", "host", "pool", "handle", "shared")
HELD = KINDS[:-1]  # what is shared is another process's
COUNTERS = (
    "next_serial",
    "calls",
    "untracked_allocations",
    "untracked_bytes",
    "untracked_mappings",
    "untracked_frees",
    "assumed_frees",
    "replaced",
    "abandoned_calls",
    "lost_calls",
    "unknown_contexts",
    "unknown_locations",
    "undeleted",
)
_USAGE = struct.Struct(f"={len(KINDS)}Q{len(KINDS)}Q2Q")
_ACCOUNT = struct.Struct("=QQQQII16s")
_FAILURE = struct.Struct("=QQII")
_PAIR = struct.Struct("=QQ")


def text(data: bytes) -> str:
    """Of a field of a fixed length."""
    return data.split(b"\0")[0].decode(errors="replace")


@dataclass(frozen=True)
class Usage:
    """`live` are allocations that are not freed yet; `held_bytes` and `live` are by kind."""

    held_bytes: Mapping[str, int]
    live: Mapping[str, int]
    allocations: int
    frees: int

    @classmethod
    def parse(cls, data: bytes) -> Usage:
        numbers = _USAGE.unpack(data)
        kinds = len(KINDS)
        return cls(dict(zip(KINDS, numbers)), dict(zip(KINDS, numbers[kinds:])), numbers[-2], numbers[-1])

    @property
    def is_empty(self) -> bool:
        return not any(self.held_bytes.values()) and not any(self.live.values())

    @classmethod
    def sum(cls, usages: Iterable[Usage]) -> Usage:
        all_of = list(usages)
        return cls(
            {kind: sum(each.held_bytes[kind] for each in all_of) for kind in KINDS},
            {kind: sum(each.live[kind] for each in all_of) for kind in KINDS},
            sum(each.allocations for each in all_of),
            sum(each.frees for each in all_of),
        )


@dataclass(frozen=True)
class CgroupIds:
    """Inodes of the cgroup's folders. `v1` is the memory controller's, 0 where that is on the unified hierarchy."""

    v2: int
    v1: int

    @classmethod
    def parse(cls, data: bytes) -> CgroupIds:
        return cls(*_PAIR.unpack(data))


@dataclass(frozen=True)
class Account:
    """One process's memory in one cgroup and one context; a process is the sum of its accounts."""

    start_boottime_ns: int
    context: int
    cgroup: CgroupIds
    tgid: int
    ns_tgid: int
    comm: str
    usage: Usage

    @classmethod
    def parse(cls, data: bytes) -> Account:
        start, context, v2, v1, tgid, ns_tgid, comm = _ACCOUNT.unpack_from(data)
        return cls(start, context, CgroupIds(v2, v1), tgid, ns_tgid, text(comm), Usage.parse(data[_ACCOUNT.size :]))


@dataclass(frozen=True)
class FailureKey:
    cgroup: CgroupIds
    operation: int
    result: int

    @classmethod
    def parse(cls, data: bytes) -> FailureKey:
        v2, v1, operation, result = _FAILURE.unpack(data)
        return cls(CgroupIds(v2, v1), operation, result)
