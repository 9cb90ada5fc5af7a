# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""The functions of libcuda that launch, and what the pinned maps of cuda_launch say of them. The layouts are those of bpf/launch.h."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from ansible_collections.gpuops.remediation.plugins.module_utils._bpf import arrays
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.durations import Durations
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.layout import CgroupIds, text
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.maps import PinnedMap


class LaunchKind(IntEnum):
    LAUNCH_KERNEL = 1
    LAUNCH_COOPERATIVE = 2
    LAUNCH_GRAPH = 3


_BY_KIND = {
    LaunchKind.LAUNCH_KERNEL: ("cuLaunchKernel", "cuLaunchKernelEx"),
    LaunchKind.LAUNCH_COOPERATIVE: ("cuLaunchCooperativeKernel",),
    LaunchKind.LAUNCH_GRAPH: ("cuGraphLaunch",),
}
LAUNCH_COOKIES = {f"{name}{stream}": int(kind) for kind, names in _BY_KIND.items() for name in names for stream in ("", "_ptsz")}

COUNTERS = ("launch_hits", "launch_programs_ns", "launches_full", "abandoned_launches")
_KEY = struct.Struct("=QII")
_HEAD = struct.Struct("=QQII16sQ")


@dataclass(frozen=True)
class Launches:
    """What one process launched of one kind. `cgroup` is the one in which its first launch was."""

    tgid: int
    start_boottime_ns: int
    kind: LaunchKind
    ns_tgid: int
    comm: str
    cgroup: CgroupIds
    failed: int
    durations: Durations

    @classmethod
    def parse(cls, key: bytes, value: bytes) -> Launches:
        start, tgid, kind = _KEY.unpack(key)
        v2, v1, ns_tgid, _unused, comm, failed = _HEAD.unpack_from(value)
        found = Durations.parse(value[_HEAD.size :])
        return cls(tgid, start, LaunchKind(kind), ns_tgid, text(comm), CgroupIds(v2, v1), failed, found)


def launches(maps: Path) -> list[Launches]:
    with PinnedMap(str(maps / "launches")) as entries:
        found = [Launches.parse(*item) for item in entries.items()]
    return sorted(found, key=lambda each: (each.tgid, each.start_boottime_ns, each.kind))


def counters(maps: Path) -> dict[str, int]:
    return arrays.counters(maps / "launch_counters", COUNTERS)
