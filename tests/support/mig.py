# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""States of a GPU that a driver could be in, and the best plan between two of them by trying every layout: what the planner is held against."""

from __future__ import annotations

import functools
import itertools
import random
from collections import Counter

from ansible_collections.gpuops.remediation.plugins.module_utils._mig import steps as step
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.layout import ComputeInstance, GpuInstance, Layout, Placement
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.wants import Want, WantedCompute, WantedInstance


def instance(model, name, *compute):
    """`3g.71gb@4` with the whole of its compute, or with `1c@0 1c@1`, or with none: `-`."""
    profile_name, start = name.split("@")
    profile = model.profile(profile_name)
    parts = [part.split("c@") for part in compute if part != "-"] if compute else [(profile.compute_slices, 0)]
    return GpuInstance(
        profile.name,
        Placement(int(start), profile.memory_slices),
        tuple(ComputeInstance(int(where), int(slices)) for slices, where in parts),
    )


def layout(model, *names):
    return Layout(True, tuple(instance(model, *name.split()) for name in names))


def spots(model):
    """Every place of every profile, as (profile, start, its slots)."""
    return [
        (profile.name, start, frozenset(range(start, start + profile.memory_slices)))
        for profile in model.profiles
        for start in profile.starts
    ]


def layouts(model, rest=None, taken=()):
    """Every legal set of spots, the empty one too."""
    rest = spots(model) if rest is None else rest
    if not rest:
        yield taken
        return
    first, *others = rest
    yield from layouts(model, others, taken)
    limit = model.profile(first[0]).limit
    if all(not first[2] & one[2] for one in taken) and sum(one[0] == first[0] for one in taken) < limit:
        yield from layouts(model, others, (*taken, first))


def random_layout(model, rng: random.Random, changes=12) -> Layout:
    """What is left after instances came and went as a driver allows it; some have compute instances in parts, some have none."""
    there = {}
    for _change in range(rng.randrange(changes)):
        if there and rng.random() < 0.4:
            del there[rng.choice(sorted(there, key=lambda one: (one[0], one[1])))]
            continue
        counts = Counter(name for name, _start, _slots in there)
        free = [
            one for one in spots(model) if counts[one[0]] < model.profile(one[0]).limit and not any(one[2] & other[2] for other in there)
        ]
        if free:
            there[rng.choice(free)] = True
    return Layout(
        True,
        tuple(GpuInstance(name, Placement(start, len(slots)), _random_compute(model.profile(name), rng)) for name, start, slots in there),
    )


def random_want(model, rng: random.Random) -> Want:
    """Feasible, because it describes a layout; sometimes with places."""
    return Want(
        True,
        tuple(
            WantedInstance(
                one.profile,
                one.placement.start if rng.random() < 0.15 else None,
                tuple(WantedCompute(part.slices, part.start if rng.random() < 0.15 else None) for part in one.compute),
            )
            for one in random_layout(model, rng).instances
        ),
    )


def random_busy(current: Layout, rng: random.Random, share=0.3):
    names = [(one.name, one.compute_name(part)) for one in current.instances for part in one.compute]
    return {rng.choice(pair) for pair in names if rng.random() < share}


def _random_compute(profile, rng):
    if rng.random() < 0.7:
        return (ComputeInstance(0, profile.compute_slices),)
    return rng.choice(_compute_layouts(profile))


def _compute_layouts(profile, rest=None, taken=()):
    rest = [(slices, start) for slices, starts in profile.compute_starts for start in starts] if rest is None else rest
    if not rest:
        return [tuple(ComputeInstance(start, slices) for slices, start in taken)]
    (slices, start), *others = rest
    found = _compute_layouts(profile, others, taken)
    if all(start >= other + size or start + slices <= other for size, other in taken):
        found += _compute_layouts(profile, others, (*taken, (slices, start)))
    return found


# ---------------------------------------------------------------- the best plan, by trying every layout


@functools.lru_cache(maxsize=64)
def every_end(model, want: Want):
    """Every layout that is what is wanted."""
    wanted = [(model.profile(one.profile), one.start, one.compute) for one in want.instances]
    if any(number > profile.limit for profile, number in Counter(profile for profile, _start, _compute in wanted).items()):
        return frozenset()
    return frozenset(_ends(wanted, (), set()))


def _ends(wanted, taken, used):
    if not wanted:
        yield frozenset(taken)
        return
    (profile, prescribed, compute), *others = wanted
    for start in profile.starts:
        slots = set(range(start, start + profile.memory_slices))
        if prescribed in (None, start) and not slots & used:
            for inside in _ends_inside(profile, compute):
                yield from _ends(others, (*taken, (profile.name, start, inside)), used | slots)


def _ends_inside(profile, compute):
    if compute is None:
        compute = (WantedCompute(profile.compute_slices),)
    wanted = Counter(one.slices for one in compute)
    pinned = {(one.slices, one.start) for one in compute if one.start is not None}
    for one in _compute_layouts(profile):
        if Counter(part.slices for part in one) == wanted and pinned <= {(part.slices, part.start) for part in one}:
            yield frozenset((part.slices, part.start) for part in one)


def best(model, current: Layout, want: Want, busy):
    """(GPU instances destroyed, compute instances destroyed, slots stranded, whether the GPU is emptied); None where nothing spares the busy."""
    have = {(one.profile, one.placement.start): one for one in current.instances}
    costs = []
    for end in every_end(model, want):
        inside = {(profile, start): parts for profile, start, parts in end}
        kept = have.keys() & inside.keys()
        lost = {
            one.compute_name(part)
            for place, one in have.items()
            for part in one.compute
            if place not in kept or (part.slices, part.start) not in inside[place]
        }
        gone = {have[place].name for place in have.keys() - kept}
        if not touched(current, gone | lost) & set(busy):
            costs.append((len(gone), len(lost), stranded(model, inside), _emptied(model, have, inside, kept)))
    return min(costs, default=None)


def touched(current, gone):
    """What is gone, and the GPU instances that lose a compute instance."""
    return gone | {one.name for one in current.instances for part in one.compute if one.compute_name(part) in gone}


def stranded(model, ends):
    used = {slot for profile, start in ends for slot in range(start, start + model.profile(profile).memory_slices)}
    free = frozenset(range(model.memory_slices)) - used
    return len(free) - max(len(one) for one in _coverable(model) if one <= free)


_COVERABLE: dict[str, set[frozenset[int]]] = {}


def _coverable(model):
    if model.name not in _COVERABLE:
        _COVERABLE[model.name] = {frozenset().union(*(slots for _name, _start, slots in one)) for one in layouts(model)}
    return _COVERABLE[model.name]


def _emptied(model, have, ends, kept):
    if kept or not have or not ends:
        return False
    slots = {place: set(range(place[1], place[1] + model.profile(place[0]).memory_slices)) for place in {*have, *ends}}
    return not any(
        not slots[old] & slots[new] and (old[0] != new[0] or model.profile(new[0]).limit > 1) for old, new in itertools.product(have, ends)
    )


def follow(model, current: Layout, steps):
    """The layout after these steps, on a driver that refuses what a real one refuses; and the least number of GPU instances on the way."""
    there = {one.name: (one.profile, one.placement, {part.name: part for part in one.compute}) for one in current.instances}
    least = len(there)
    for one in steps:
        if one.action == step.DESTROY_COMPUTE:
            del there[one.instance.name][2][one.compute.name]
        elif one.action == step.DESTROY:
            _profile, _placement, inside = there.pop(one.instance.name)
            assert not inside, "a GPU instance with compute instances cannot go"
        elif one.action == step.CREATE:
            profile = model.profile(one.instance.profile)
            placement = one.instance.placement
            assert placement.start in profile.starts and placement.size == profile.memory_slices
            assert all(not placement.slots & other.slots for _name, other, _inside in there.values()), "the place is taken"
            assert sum(name == profile.name for name, _place, _inside in there.values()) < profile.limit
            there[one.instance.name] = (profile.name, placement, {})
        elif one.action == step.CREATE_COMPUTE:
            profile, _placement, inside = there[one.instance.name]
            assert one.compute.start in dict(model.profile(profile).compute_starts)[one.compute.slices]
            assert all(
                one.compute.start >= part.start + part.slices or one.compute.start + one.compute.slices <= part.start
                for part in inside.values()
            )
            inside[one.compute.name] = one.compute
        least = min(least, len(there))
    return Layout(True, tuple(GpuInstance(profile, place, tuple(inside.values())) for profile, place, inside in there.values())), least
