# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.
"""What is on a GPU: its GPU instances, their compute instances and what they leave free."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._mig.board import board_of, span
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.profiles import Model


@dataclass(frozen=True, order=True)
class Placement:
    """Memory slices of a GPU."""

    start: int
    size: int

    @property
    def slots(self) -> int:
        return span(self.start, self.size)


@dataclass(frozen=True, order=True)
class ComputeInstance:
    """Compute slices of a GPU instance; `start` counts from the instance's own first one."""

    start: int
    slices: int
    id: Optional[int] = field(default=None, compare=False)

    @property
    def name(self) -> str:
        return f"{self.slices}c@{self.start}"


@dataclass(frozen=True)
class GpuInstance:
    """Its name is unique on its GPU and stays the same while it is there; the driver's id is for calls and tells nothing."""

    profile: str
    placement: Placement
    compute: tuple[ComputeInstance, ...] = ()
    id: Optional[int] = field(default=None, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "compute", tuple(sorted(self.compute)))

    @property
    def name(self) -> str:
        return f"{self.profile}@{self.placement.start}"

    def compute_name(self, instance: ComputeInstance) -> str:
        return f"{self.name}/{instance.name}"


@dataclass(frozen=True)
class Layout:
    """`pending` is the mode after the next reset, where it differs."""

    mig: bool
    instances: tuple[GpuInstance, ...] = ()
    pending: Optional[bool] = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "instances", tuple(sorted(self.instances, key=lambda one: one.placement)))

    @property
    def to_be(self) -> bool:
        """The mode after the next reset."""
        return self.mig if self.pending is None else self.pending

    @property
    def occupied(self) -> int:
        return sum(instance.placement.slots for instance in self.instances)


@dataclass(frozen=True)
class Room:
    """What is left of a GPU in memory slices. `fragmentation` is 0 where all that is free can be one instance, and 1 where nothing can."""

    free: int
    stranded: int  # free, and of no use to any further instance
    largest: int  # of the instances that can be created now

    @property
    def fragmentation(self) -> float:
        return 1 - self.largest / self.free if self.free else 0.0


def room(model: Model, layout: Layout) -> Room:
    board = board_of(model)
    free = board.all_slots & ~layout.occupied
    worth = board.worth(free)
    return Room(bin(free).count("1"), worth.stranded, board.slots - worth.short_of_largest)


def free_placements(model: Model, layout: Layout) -> Iterator[tuple[str, Placement]]:
    """Everything that could be created now. NVML answers where a profile can ever be, not where there is room."""
    for profile in model.profiles:
        if sum(instance.profile == profile.name for instance in layout.instances) < profile.limit:
            for start in profile.starts:
                placement = Placement(start, profile.memory_slices)
                if not placement.slots & layout.occupied:
                    yield profile.name, placement
