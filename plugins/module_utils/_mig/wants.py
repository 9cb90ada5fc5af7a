# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.
"""What somebody wants a GPU to have: instances with or without a place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._mig.arrange import Change, Piece, arrange
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.board import compute_board_of
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.errors import Infeasible
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.layout import Layout
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.names import device_name, parse_name
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.profiles import Model, Profile


@dataclass(frozen=True)
class WantedCompute:
    slices: int
    start: Optional[int] = None


@dataclass(frozen=True)
class WantedInstance:
    """`compute` None is what nearly everybody wants: one compute instance that is all of it. Empty is a GPU instance without any."""

    profile: str
    start: Optional[int] = None
    compute: Optional[tuple[WantedCompute, ...]] = None


@dataclass(frozen=True)
class Want:
    """All that a GPU shall have; what it has beyond this goes. `mig` None leaves the mode as it is, pending or not."""

    mig: Optional[bool]
    instances: tuple[WantedInstance, ...] = ()


def want_counts(model: Model, counts: Mapping[str, int]) -> Want:
    """So many of each, by the names that users know: 3g.71gb is a GPU instance with all its compute, 1c.3g.71gb a part of one.

    Parts fill one GPU instance after the other, largest first.
    """
    instances: list[WantedInstance] = []
    parts: dict[Profile, list[int]] = {}
    for name, count in counts.items():
        profile, slices = known_profile(model, name)
        if count < 0:
            raise Infeasible(f"{count} of {name} are wanted", reason="limit", profile=name)
        if slices == profile.compute_slices:
            instances += [WantedInstance(profile.name)] * count
        else:
            parts.setdefault(profile, []).extend([slices] * count)
    for profile, slices_of in parts.items():
        instances += [
            WantedInstance(profile.name, compute=tuple(WantedCompute(slices) for slices in one)) for one in _packed(profile, slices_of)
        ]
    return Want(True, tuple(instances))


def counts_of(layout: Layout) -> Counter[str]:
    """The compute instances of a layout, which are what users see as MIG devices. GPU instances without any do not show here."""
    return Counter(device_name(instance.profile, compute.slices) for instance in layout.instances for compute in instance.compute)


def known_profile(model: Model, name: str) -> tuple[Profile, int]:
    """The profile of a name, and how many compute slices a compute instance of that name has."""
    parsed = parse_name(name)
    profile = model.profile(parsed.profile) if parsed else None
    if parsed is None or profile is None:
        known = ", ".join(one.name for one in model.profiles)
        raise Infeasible(f"{model.name} has no profile {name}; it has {known}", reason="profile", profile=name)
    return profile, parsed.compute_slices


@lru_cache(maxsize=1024)
def fits_inside(profile: Profile, compute: tuple[WantedCompute, ...]) -> bool:
    board = compute_board_of(profile)
    pieces = [Piece(str(one.slices), one.start) for one in compute]
    known = all(piece.kind in board.starts and piece.start in (None, *board.starts[piece.kind]) for piece in pieces)
    return known and arrange(board, (), pieces, lambda _one, _piece: Change()) is not None


def _packed(profile: Profile, slices: list[int]) -> Iterator[tuple[int, ...]]:
    instances: list[tuple[int, ...]] = []
    for one in sorted(slices, reverse=True):
        for place, others in enumerate(instances):
            if fits_inside(profile, tuple(WantedCompute(size) for size in (*others, one))):
                instances[place] = (*others, one)
                break
        else:
            instances.append((one,))
    return iter(instances)
