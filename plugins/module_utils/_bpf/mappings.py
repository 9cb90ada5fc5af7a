# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""What the pinned maps of gpu_vm say. The layouts are those of bpf/vm.h. Needs no privilege beyond what the pins' modes ask for."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from ansible_collections.gpuops.remediation.plugins.module_utils._bpf import arrays
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.durations import Durations
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.layout import CgroupIds, text
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.maps import PinnedMap


class VmCall(IntEnum):
    IOCTL = 1
    MMAP = 2


COUNTERS = ("vm_full",)
_KEY = struct.Struct("=QII24s")
_HEAD = struct.Struct("=QQII16sQQ")


@dataclass(frozen=True)
class VmCalls:
    """What one process asked of one device file. `mapped_bytes` are all that it mapped, whether or not they still are."""

    tgid: int
    start_boottime_ns: int
    call: VmCall
    device: str
    ns_tgid: int
    comm: str
    cgroup: CgroupIds
    failed: int
    mapped_bytes: int
    durations: Durations

    @classmethod
    def parse(cls, key: bytes, value: bytes) -> VmCalls:
        start, tgid, call, device = _KEY.unpack(key)
        v2, v1, ns_tgid, _unused, comm, failed, size = _HEAD.unpack_from(value)
        found = Durations.parse(value[_HEAD.size :])
        return cls(tgid, start, VmCall(call), text(device), ns_tgid, text(comm), CgroupIds(v2, v1), failed, size, found)


def calls(maps: Path) -> list[VmCalls]:
    with PinnedMap(str(maps / "vm_calls")) as entries:
        found = [VmCalls.parse(*item) for item in entries.items()]
    return sorted(found, key=lambda each: (each.tgid, each.start_boottime_ns, each.device, each.call))


def counters(maps: Path) -> dict[str, int]:
    return arrays.counters(maps / "vm_counters", COUNTERS)
