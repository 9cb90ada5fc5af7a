# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""What kinds of instances a GPU can have, and where. Records only; tables.py holds the models that are known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

Starts = tuple[tuple[int, tuple[int, ...]], ...]  # compute slices of a compute instance -> where in its GPU instance it can start

_COMPUTE_STARTS = {1: (0, 1, 2, 3, 4, 5, 6), 2: (0, 2, 4), 3: (0, 4), 4: (0,), 7: (0,)}


@dataclass(frozen=True)
class Profile:
    """A kind of GPU instance. Its name is its key: profile ids mean different things on different models."""

    name: str
    query: int  # the number that NVML's profile query takes
    profile_id: int  # the number that create and list take
    limit: int  # so many at once on one GPU
    compute_slices: int
    memory_slices: int
    starts: tuple[int, ...]
    memory_mib: Optional[int] = None
    multiprocessors: Optional[int] = None
    aliases: tuple[str, ...] = ()  # the same kind under another board's or driver's name
    driver_compute_starts: Optional[Starts] = None
    optical_flow: int = 0  # engines of that kind, of which a GPU has as many as its largest profile

    @property
    def compute_starts(self) -> Starts:
        """The driver's own answer where there is one: on Hopper and later it aligns compute instances in ways that no document describes."""
        if self.driver_compute_starts is not None:
            return self.driver_compute_starts
        fitting = (
            (slices, tuple(start for start in starts if start + slices <= self.compute_slices))
            for slices, starts in _COMPUTE_STARTS.items()
        )
        return tuple((slices, starts) for slices, starts in fitting if starts)


@dataclass(frozen=True)
class Model:
    """`evidence` says where the figures come from: measured, listed (a vendor's listing of that GPU), documented, or unverified.

    What is unverified has the placements of its family, and no figures.
    """

    name: str
    pci_device_ids: tuple[int, ...]
    memory_slices: int
    profiles: tuple[Profile, ...]
    evidence: str

    def profile(self, name: str) -> Optional[Profile]:
        exact = (profile for profile in self.profiles if profile.name == name)
        return next(exact, None) or next((profile for profile in self.profiles if name in profile.aliases), None)
