# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""The grammar of MIG profile names: 3g.71gb, 1g.18gb+me, 1g.24gb-me, and 1c.3g.71gb for a compute instance that is a part of its GPU instance."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Optional

_NAME = re.compile(r"(?:([1-9]\d*)c\.)?(([1-9]\d*)g\.(?:0|[1-9]\d*)gb((?:[+-][a-z][a-z0-9.,]*)?))")


@dataclass(frozen=True)
class ProfileName:
    """`profile` names the GPU instance; `compute_slices` is what the compute instance takes of its `slices`."""

    profile: str
    slices: int
    compute_slices: int
    attribute: str

    @property
    def whole(self) -> bool:
        return self.compute_slices == self.slices


def parse_name(text: str) -> Optional[ProfileName]:
    """None for what is no profile name."""
    found = _NAME.fullmatch(text)
    if found is None:
        return None
    compute, profile, slices, attribute = found.groups()
    if int(compute or slices) > int(slices):
        return None
    return ProfileName(profile, int(slices), int(compute or slices), attribute)


# what NVML's numbers of the profile queries add to a name; most add nothing
_ATTRIBUTES = {7: "+me", 8: "+me", **dict.fromkeys((10, 11, 12, 17), "+gfx"), 13: "-me", 14: "-me", 15: "+me.all", 16: "+me.all"}


def computed_name(query: int, slices: int, memory_mib: int, total_mib: int) -> str:
    """A GPU instance profile's name where the driver has none, as NVIDIA's tools make it: its eighths of the memory, in whole GB."""
    eighths = math.ceil(memory_mib / total_mib * 8) / 8
    return f"{slices}g.{int(eighths * math.ceil(total_mib / 1024) + 0.5)}gb{_ATTRIBUTES.get(query, '')}"


def device_name(profile: str, compute_slices: int) -> str:
    """How a compute instance of so many slices is called in a GPU instance of this profile."""
    name = parse_name(profile)
    return profile if name and name.slices == compute_slices else f"{compute_slices}c.{profile}"
