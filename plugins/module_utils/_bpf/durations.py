# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Durations by powers of two, as bpf/histogram.h counts them."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

SLOTS = 32
_DURATIONS = struct.Struct(f"={2 + SLOTS}Q")
SIZE = _DURATIONS.size


@dataclass(frozen=True)
class Durations:
    """`slots`: number N has those from 2^N ns on that are shorter than 2^(N+1) ns; the first begins at 0, and the last has no end."""

    count: int
    total_ns: int
    slots: tuple[int, ...]

    @classmethod
    def parse(cls, data: bytes) -> Durations:
        count, total_ns, *slots = _DURATIONS.unpack_from(data)
        return cls(count, total_ns, tuple(slots))

    def show(self) -> dict[str, Any]:
        histogram = [{"from_ns": 1 << at if at else 0, "count": count} for at, count in enumerate(self.slots) if count]
        return {"count": self.count, "total_ns": self.total_ns, "histogram": histogram}
