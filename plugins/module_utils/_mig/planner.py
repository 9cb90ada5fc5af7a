# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.
"""From what a GPU has to what it shall have: which instances stay, which go, which come, and in which order. docs/mig.md has the rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Optional, TypeVar

from ansible_collections.gpuops.remediation.plugins.module_utils._mig import steps as step
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.arrange import (
    Arrangement,
    Change,
    Piece,
    arrange,
    bridge,
    can_all_stay,
)
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.board import board_of, compute_board_of, span
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.errors import Busy, Fragmented, Infeasible
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.layout import ComputeInstance, GpuInstance, Layout, Placement
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.profiles import Model, Profile
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.wants import (
    Want,
    WantedCompute,
    WantedInstance,
    fits_inside,
    known_profile,
)

Found = TypeVar("Found")

GPU = "gpu"  # the name, among what is busy, of a GPU that processes use outside of MIG


@dataclass(frozen=True)
class Plan:
    """`moved` are those to destroy that are wanted, but elsewhere. `layout` is what the steps lead to."""

    keep: tuple[GpuInstance, ...]
    destroy: tuple[GpuInstance, ...]
    create: tuple[GpuInstance, ...]
    moved: tuple[GpuInstance, ...]
    steps: tuple[step.MigStep, ...]
    layout: Layout


def plan(model: Model, current: Layout, want: Want, busy: Collection[str] = (), *, resetless: bool = False, may_move: bool = True) -> Plan:
    """`busy` holds names of GPU instances and compute instances; `resetless` is what the driver says of this GPU (NVML field 184)."""
    return _Planner(model, current, want, busy).plan(resetless, may_move)


class _Planner:
    def __init__(self, model: Model, current: Layout, want: Want, busy: Collection[str]) -> None:
        self.model, self.current = model, current
        self.mode_left = want.mig is None
        self.mode_wanted = current.mig if want.mig is None else want.mig
        self.board = board_of(model)
        self.gpu_busy = GPU in busy
        self.busy = _busy_names(current, busy)
        self.want = [_wanted_piece(model, one) for one in want.instances]
        self.have = [
            Piece(self._kind(one), one.placement.start, one.placement.slots, inside=len(one.compute), busy=len(self._busy_in(one)))
            for one in current.instances
        ]
        self._inside: dict[tuple[int, Piece, bool], Optional[Arrangement]] = {}

    def plan(self, resetless: bool, may_move: bool) -> Plan:
        if self.want and not self.mode_wanted:
            raise Infeasible("a GPU without MIG has no instances", reason="mode")
        self._check_limits()
        found = arrange(self.board, self.have, self.want, partial(self._change, spare_busy=True))
        if found is None:
            self._refuse()
        if self.current.mig != self.mode_wanted and self.gpu_busy:
            raise Busy("the mode of a GPU cannot change while processes use it", instances=[GPU])
        found = _there(found)
        plan = self._plan(found, resetless)
        if plan.moved and not may_move:
            names = [one.name for one in plan.moved]
            raise Fragmented(f"{_list(names)} would have to move, and may not", instances=names)
        return plan

    def _kind(self, instance: GpuInstance) -> str:
        """An instance whose profile the model does not have is like no other; it can only go."""
        profile = self.model.profile(instance.profile)
        return profile.name if profile else instance.profile

    def _busy_in(self, instance: GpuInstance) -> list[str]:
        return [name for name in (instance.name, *map(instance.compute_name, instance.compute)) if name in self.busy]

    def _change(self, one: int, piece: Piece, spare_busy: bool) -> Optional[Change]:
        if not self._same_place(one, piece):
            return None
        inside = self._arranged_inside(one, piece, spare_busy)
        return inside.change if inside else None

    def _same_place(self, one: int, piece: Piece) -> bool:
        return self.have[one].kind == piece.kind and piece.start in (None, self.have[one].start)

    def _arranged_inside(self, one: int, piece: Piece, spare_busy: bool) -> Optional[Arrangement]:
        key = (one, piece, spare_busy)
        if key not in self._inside:
            instance = self.current.instances[one]
            have = self._compute_pieces(instance)
            self._inside[key] = arrange(
                compute_board_of(_profile(self.model, piece.kind)),
                have,
                _compute_wanted(piece),
                partial(_same_compute, have),
                spare_busy=spare_busy,
            )
        return self._inside[key]

    def _compute_pieces(self, instance: GpuInstance) -> list[Piece]:
        return [
            Piece(str(one.slices), one.start, span(one.start, one.slices), busy=int(instance.compute_name(one) in self.busy))
            for one in instance.compute
        ]

    def _check_limits(self) -> None:
        for kind, number in Counter(piece.kind for piece in self.want).items():
            if number > self.board.limits[kind]:
                raise Infeasible(
                    f"{self.model.name} can have {self.board.limits[kind]} of {kind}, not {number}", reason="limit", profile=kind
                )
        slices = sum(self.board.sizes[piece.kind] for piece in self.want)
        if slices > self.board.slots:
            raise Infeasible(f"{slices} memory slices are wanted of {self.board.slots}", reason="slices")
        sharing = [piece.kind for piece in self.want if _profile(self.model, piece.kind).optical_flow]
        if self._engines_short(sharing):
            raise Infeasible(f"{self.model.name} has not as many optical flow engines as {_list(sharing)} take", reason="engine")

    def _engines_short(self, kinds: Sequence[str]) -> bool:
        """Kinds of instances have limits of their own, and +me of different sizes share what the GPU has once."""
        profiles = [profile for profile in map(self.model.profile, kinds) if profile]
        return sum(one.optical_flow for one in profiles) > max(one.optical_flow for one in self.model.profiles)

    def _refuse(self) -> None:
        """There is no plan: says why."""
        if arrange(self.board, (), self.want, lambda _one, _piece: None) is None:
            raise Infeasible(
                f"{self.model.name} has no places for {_list([piece.kind for piece in self.want])} beside each other", reason="placement"
            )
        # with everything out of the way it is the empty GPU
        found = _there(arrange(self.board, self.have, self.want, partial(self._change, spare_busy=False), spare_busy=False))
        names = [name for one in found.gone for name in self._busy_in(self.current.instances[one])]
        for one, piece in found.kept:
            instance = self.current.instances[one]
            inside = self._arranged_inside(one, piece, False)
            lost = [instance.compute_name(instance.compute[gone]) for gone in inside.gone] if inside else []
            names += [name for name in lost if name in self.busy]
        if self._all_busy_are_wanted():
            raise Fragmented(f"busy, and where the rest of the wanted layout has to be: {_list(names)}", instances=names)
        raise Busy(f"busy, and not in the wanted layout: {_list(names)}", instances=names)

    def _all_busy_are_wanted(self) -> bool:
        busy = [one for one, piece in enumerate(self.have) if piece.busy]

        def fit(one: int, piece: Piece) -> Optional[Change]:
            compute = [one for one in self._compute_pieces(self.current.instances[busy[one]]) if one.busy]
            stays = self._same_place(busy[one], piece) and can_all_stay(compute, _compute_wanted(piece), partial(_same_compute, compute))
            return Change() if stays else None

        return can_all_stay([self.have[one] for one in busy], self.want, fit)

    def _plan(self, found: Arrangement, resetless: bool) -> Plan:
        current, instances = self.current, self.current.instances
        gone = [instances[one] for one in found.gone]
        new = [self._new(piece, start) for piece, start in found.placed]
        inside = [self._steps_inside(one, piece) for one, piece in found.kept]
        mode = [] if self.mode_left else list(step.mode_steps(current.mig, current.to_be, self.mode_wanted, resetless))
        layout_steps = [*(one for few in inside for one in few), *self._ordered(gone, new, bool(found.kept))]
        ordered = [*mode, *layout_steps] if self.mode_wanted else [*layout_steps, *mode]
        steps = tuple(step.with_first_creations_named(current, ordered))
        after = step.predict(current, steps)
        kept = {instances[one].placement for one, _piece in found.kept}
        return Plan(
            tuple(one for one in after.instances if one.placement in kept),
            tuple(gone),
            tuple(new),
            tuple(instances[one] for one in _moved(self.have, found)),
            steps,
            after,
        )

    def _new(self, piece: Piece, start: int) -> GpuInstance:
        profile = _profile(self.model, piece.kind)
        # looked at when the wanted was read
        inside = _there(arrange(compute_board_of(profile), (), _compute_wanted(piece), lambda _one, _piece: None))
        compute = tuple(ComputeInstance(where, int(one.kind)) for one, where in inside.placed)
        return GpuInstance(profile.name, Placement(start, profile.memory_slices), compute)

    def _steps_inside(self, one: int, piece: Piece) -> list[step.MigStep]:
        instance = self.current.instances[one]
        inside = _there(self._arranged_inside(one, piece, True))
        return [
            *(step.destroy_compute(instance, instance.compute[gone]) for gone in inside.gone),
            *(step.create_compute(instance, ComputeInstance(start, int(new.kind))) for new, start in inside.placed),
        ]

    def _ordered(self, gone: list[GpuInstance], new: list[GpuInstance], something_stays: bool) -> Iterator[step.MigStep]:
        """All that goes, then all that comes. Where nothing stays, one of the new comes before the last of the old has gone, if it can."""
        pair = (
            None
            if something_stays
            else bridge(
                self.board, [(one.profile, one.placement.start) for one in new], [(self._kind(one), one.placement.slots) for one in gone]
            )
        )
        if pair and self._engines_short([new[pair[0]].profile, gone[pair[1]].profile]):
            pair = None
        if pair:
            early, late = new[pair[0]], gone[pair[1]]
            gone, new = [one for one in gone if one is not late], [one for one in new if one is not early]
        yield from (one for instance in gone for one in step.destroy(instance))
        if pair:
            yield from step.create(early)
            yield from step.destroy(late)
        yield from (one for instance in new for one in step.create(instance))


def _busy_names(current: Layout, busy: Collection[str]) -> frozenset[str]:
    """Busy without saying which of its compute instances means each of them."""
    found: set[str] = set()
    known = {GPU}
    for instance in current.instances:
        compute = {instance.compute_name(one) for one in instance.compute}
        known |= {instance.name, *compute}
        found |= (compute or {instance.name}) if instance.name in busy else compute.intersection(busy)
    unknown = sorted(set(busy) - known)
    if unknown:
        raise ValueError(f"busy, but not there: {_list(unknown)}")
    return frozenset(found)


def _wanted_piece(model: Model, wanted: WantedInstance) -> Piece:
    profile, slices = known_profile(model, wanted.profile)
    if slices != profile.compute_slices:
        raise Infeasible(f"{wanted.profile} is a part of a GPU instance", reason="profile", profile=wanted.profile)
    if wanted.start not in (None, *profile.starts):
        starts = _list([str(start) for start in profile.starts])
        raise Infeasible(f"{profile.name} cannot start at {wanted.start}; it can at {starts}", reason="start", profile=profile.name)
    compute = (WantedCompute(profile.compute_slices),) if wanted.compute is None else wanted.compute
    if not fits_inside(profile, compute):
        parts = _list([f"{one.slices}c" + ("" if one.start is None else f"@{one.start}") for one in compute])
        raise Infeasible(f"{profile.name} has no room for {parts} beside each other", reason="compute", profile=profile.name)
    return Piece(profile.name, wanted.start, detail=tuple(sorted(compute, key=lambda one: (one.slices, one.start is None, one.start or 0))))


def _compute_wanted(piece: Piece) -> list[Piece]:
    compute: tuple[WantedCompute, ...] = piece.detail  # type: ignore[assignment]
    return [Piece(str(one.slices), one.start) for one in compute]


def _same_compute(have: Sequence[Piece], one: int, piece: Piece) -> Optional[Change]:
    return Change() if have[one].kind == piece.kind and piece.start in (None, have[one].start) else None


def _moved(have: Sequence[Piece], found: Arrangement) -> Iterator[int]:
    """Those that go although one of the new could have been them."""
    new = [piece for piece, _start in found.placed]
    for one in found.gone:
        same = next((piece for piece in new if piece.kind == have[one].kind and piece.start in (None, have[one].start)), None)
        if same is not None:
            new.remove(same)
            yield one


def _profile(model: Model, kind: str) -> Profile:
    return _there(model.profile(kind))


def _there(found: Optional[Found]) -> Found:
    """What was checked before, so that its absence is a fault of this file."""
    if found is None:
        raise LookupError("the planner lost what it had found")
    return found


def _list(names: Sequence[str]) -> str:
    return ", ".join(names)
