# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.
"""Slots as bits: the kinds of things that can stand on them, and what free slots are still good for.

A GPU's memory slices and a GPU instance's compute slices are both such a board.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from ansible_collections.gpuops.remediation.plugins.module_utils._mig.profiles import Model, Profile


def span(start: int, size: int) -> int:
    """The slots from start on, as bits."""
    return ((1 << size) - 1) << start


@dataclass(frozen=True)
class Worth:
    """What is lost when exactly these slots stay free. Less is better, and the first that differs decides."""

    stranded: int  # free slots that nothing can use
    short_of_largest: int
    short_of_choices: int  # of kinds and places


@dataclass(eq=False)
class Board:
    """So many slots; each kind of thing has a size, the places where it can start, and how many of it there may be."""

    slots: int
    sizes: Mapping[str, int]
    starts: Mapping[str, tuple[int, ...]]
    limits: Mapping[str, int]
    _choices: tuple[int, ...] = field(init=False)
    _spans: tuple[int, ...] = field(init=False)
    _worth: dict[int, Worth] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._choices = tuple(span(start, self.sizes[kind]) for kind, starts in self.starts.items() for start in starts)
        self._spans = tuple(sorted(set(self._choices)))

    @property
    def all_slots(self) -> int:
        return span(0, self.slots)

    def worth(self, free: int) -> Worth:
        known = self._worth.get(free)
        if known is None:
            fitting = [one for one in self._choices if one & ~free == 0]
            largest = max((bin(one).count("1") for one in fitting), default=0)
            stranded = bin(free).count("1") - self._cover(free)
            known = self._worth[free] = Worth(stranded, self.slots - largest, len(self._choices) - len(fitting))
        return known

    def _cover(self, free: int) -> int:
        """The most of these slots that can be in use at once."""
        if not free:
            return 0
        lowest = free & -free
        with_it = (bin(one).count("1") + self._cover(free & ~one) for one in self._spans if one & lowest and one & ~free == 0)
        return max(self._cover(free & ~lowest), *with_it, 0)


@lru_cache(maxsize=64)
def board_of(model: Model) -> Board:
    """The memory slices of a GPU and its kinds of instances."""
    return Board(
        model.memory_slices,
        {profile.name: profile.memory_slices for profile in model.profiles},
        {profile.name: profile.starts for profile in model.profiles},
        {profile.name: profile.limit for profile in model.profiles},
    )


@lru_cache(maxsize=256)
def compute_board_of(profile: Profile) -> Board:
    """The compute slices of a GPU instance; its kinds of compute instances are named by their size."""
    starts = {str(slices): places for slices, places in profile.compute_starts}
    return Board(
        profile.compute_slices, {kind: int(kind) for kind in starts}, starts, {kind: len(places) for kind, places in starts.items()}
    )
