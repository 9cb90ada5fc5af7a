# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The MIG planner: how long a plan takes, and what it destroys beside planners that do not look at every way."""

from __future__ import annotations

import itertools
import random
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ansible_collections.gpuops.remediation.plugins.module_utils._mig.board import board_of
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.errors import Busy, Fragmented
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.layout import Layout, room
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.planner import plan
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.profiles import Model
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.tables import model_named
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.wants import want_counts
from mig import instance, random_layout

MODELS = [model_named(name) for name in ("a30-24", "a100-80", "h200-141", "b200-180")]
PAIRS = 10_000
FLEET = 8_000  # GPUs: 1000 nodes with 8 each
Figures = tuple[int, int]


@dataclass(frozen=True)
class Pair:
    model: Model
    have: Layout
    want: dict[str, int]
    busy: frozenset[str]


def show() -> None:
    print("\n| MIG plans | CPU time of one: median | 99 % | longest | of all | wall time of all |\n| --- | --- | --- | --- | --- | --- |")
    fleet = list(itertools.islice(_pairs(MODELS, random.Random(1), busy=0.2), FLEET))
    for what in ("8000 GPUs, nothing known before", "the same again"):
        times = []
        began = time.perf_counter()
        for pair in fleet:
            start = time.process_time()
            _optimal(pair)
            times.append((time.process_time() - start) * 1e3)
        wall = time.perf_counter() - began
        slow = statistics.quantiles(times, n=100)[98]
        figures = [
            f"{statistics.median(times):.2f} ms",
            f"{slow:.2f} ms",
            f"{max(times):.1f} ms",
            f"{sum(times) / 1e3:.1f} s",
            f"{wall:.1f} s",
        ]
        print(f"| {what} | {' | '.join(figures)} |", flush=True)
    for busy in (0.0, 0.2):
        _compare(busy)


def _compare(busy: float) -> None:
    pairs = list(itertools.islice(_pairs([model_named("h200-141")], random.Random(2), busy), PAIRS))
    planners = {"this one": _optimal, "largest first": _largest_first, "first fit": _first_fit, "destroy all": _destroy_all}
    answers = {name: [planner(pair) for pair in pairs] for name, planner in planners.items()}
    shared = [all(answer is not None for answer in row) for row in zip(*answers.values())]
    print(
        f"\n| {PAIRS} pairs of an H200, {busy:.0%} of instances busy | solved | in the {sum(shared)} that all solve: destroyed | slices stranded |"
    )
    print("| --- | --- | --- | --- |")
    for name, found in answers.items():
        destroyed, stranded = (sum(figures) for figures in zip(*(answer for answer, counts in zip(found, shared) if counts and answer)))
        print(f"| {name} | {sum(answer is not None for answer in found)} | {destroyed} | {stranded} |", flush=True)


def _pairs(models: Sequence[Model], rng: random.Random, busy: float) -> Iterator[Pair]:
    while True:
        model = rng.choice(models)
        have, want = (_whole(model, random_layout(model, rng)) for _one in range(2))
        names = [one.name for one in have.instances]
        yield Pair(
            model, have, dict(Counter(one.profile for one in want.instances)), frozenset(name for name in names if rng.random() < busy)
        )


def _whole(model: Model, layout: Layout) -> Layout:
    return Layout(True, tuple(instance(model, one.name) for one in layout.instances))


def _optimal(pair: Pair) -> Figures | None:
    """How many instances it destroys and how many slices it leaves that nothing can use; None for no plan, here and below."""
    try:
        made = plan(pair.model, pair.have, want_counts(pair.model, pair.want), pair.busy)
    except (Busy, Fragmented):
        return None
    return len(made.destroy), room(pair.model, made.layout).stranded


def _largest_first(pair: Pair) -> Figures | None:
    order = sorted(pair.want, key=lambda name: -_size(pair.model, name))
    return _keep_and_place(pair, order)


def _first_fit(pair: Pair) -> Figures | None:
    return _keep_and_place(pair, list(pair.want))


def _keep_and_place(pair: Pair, order: Sequence[str]) -> Figures | None:
    """Keeps what is wanted wherever it is, busy ones first, and puts each of the others at the lowest place that is free."""
    missing = Counter(pair.want)
    kept = []
    for one in sorted(pair.have.instances, key=lambda one: one.name not in pair.busy):
        if missing[one.profile]:
            missing[one.profile] -= 1
            kept.append(one)
        elif one.name in pair.busy:
            return None
    taken = _placed(pair.model, sum(one.placement.slots for one in kept), [name for name in order for _one in range(missing[name])])
    return None if taken is None else (len(pair.have.instances) - len(kept), _stranded(pair.model, taken))


def _destroy_all(pair: Pair) -> Figures | None:
    """Leaves a GPU alone that has the right counts, and else clears it and tries one order after the other."""
    if Counter(one.profile for one in pair.have.instances) == Counter(pair.want):
        return 0, room(pair.model, pair.have).stranded
    names = sorted(Counter(pair.want).elements(), key=lambda name: -_size(pair.model, name))
    ends = (_placed(pair.model, 0, order) for order in itertools.permutations(names))
    taken = None if pair.busy else next((end for end in ends if end is not None), None)
    return None if taken is None else (len(pair.have.instances), _stranded(pair.model, taken))


def _placed(model: Model, taken: int, names: Sequence[str]) -> int | None:
    """The slots that are taken then."""
    for name in names:
        slots = [one for one in _slots(model, name) if not one & taken]
        if not slots:
            return None
        taken |= slots[0]
    return taken


def _stranded(model: Model, taken: int) -> int:
    board = board_of(model)
    return board.worth(board.all_slots & ~taken).stranded


def _slots(model: Model, name: str) -> list[int]:
    return [((1 << _size(model, name)) - 1) << start for start in model.profile(name).starts]


def _size(model: Model, name: str) -> int:
    return model.profile(name).memory_slices
