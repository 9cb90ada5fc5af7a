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

from ansible_collections.gpuops.remediation.plugins.module_utils._mig.errors import Busy, Fragmented
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.layout import Layout
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.planner import plan
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.profiles import Model
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.tables import model_named
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.wants import want_counts
from mig import instance, random_layout

MODELS = [model_named(name) for name in ("a30-24", "a100-80", "h200-141", "b200-180")]
PAIRS = 10_000
FLEET = 8_000  # GPUs: 1000 nodes with 8 each


@dataclass(frozen=True)
class Pair:
    model: Model
    have: Layout
    want: dict[str, int]
    busy: frozenset[str]


def show() -> None:
    print("\n| MIG plans | median | 99 % | longest | all of them |\n| --- | --- | --- | --- | --- |")
    fleet = list(itertools.islice(_pairs(MODELS, random.Random(1), busy=0.2), FLEET))
    for what in ("8000 GPUs, nothing known before", "the same again"):
        times = []
        began, cpu = time.perf_counter(), time.process_time()
        for pair in fleet:
            start = time.perf_counter()
            _optimal(pair)
            times.append((time.perf_counter() - start) * 1e3)
        wall, cpu = time.perf_counter() - began, time.process_time() - cpu
        slow = statistics.quantiles(times, n=100)[98]
        print(
            f"| {what} | {statistics.median(times):.2f} ms | {slow:.2f} ms | {max(times):.1f} ms | {wall:.1f} s, CPU {cpu:.1f} s |",
            flush=True,
        )
    for busy in (0.0, 0.2):
        _compare(busy)


def _compare(busy: float) -> None:
    pairs = list(itertools.islice(_pairs([model_named("h200-141")], random.Random(2), busy), PAIRS))
    planners = {"this one": _optimal, "largest first": _largest_first, "first fit": _first_fit, "destroy all": _destroy_all}
    answers = {name: [planner(pair) for pair in pairs] for name, planner in planners.items()}
    shared = [all(answer is not None for answer in row) for row in zip(*answers.values())]
    print(f"\n| {PAIRS} pairs of an H200, {busy:.0%} of instances busy | solved | destroyed in the {sum(shared)} that all solve |")
    print("| --- | --- | --- |")
    for name, found in answers.items():
        destroyed = sum(answer for answer, counts in zip(found, shared) if counts and answer is not None)
        print(f"| {name} | {sum(answer is not None for answer in found)} | {destroyed} |", flush=True)


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


def _optimal(pair: Pair) -> int | None:
    """How many it destroys; None for no plan, here and below."""
    try:
        return len(plan(pair.model, pair.have, want_counts(pair.model, pair.want), pair.busy).destroy)
    except (Busy, Fragmented):
        return None


def _largest_first(pair: Pair) -> int | None:
    order = sorted(pair.want, key=lambda name: -_size(pair.model, name))
    return _keep_and_place(pair, order)


def _first_fit(pair: Pair) -> int | None:
    return _keep_and_place(pair, list(pair.want))


def _keep_and_place(pair: Pair, order: Sequence[str]) -> int | None:
    """Keeps what is wanted wherever it is, busy ones first, and puts each of the others at the lowest place that is free."""
    missing = Counter(pair.want)
    kept = []
    for one in sorted(pair.have.instances, key=lambda one: one.name not in pair.busy):
        if missing[one.profile]:
            missing[one.profile] -= 1
            kept.append(one)
        elif one.name in pair.busy:
            return None
    placed = _placed(pair.model, sum(one.placement.slots for one in kept), [name for name in order for _one in range(missing[name])])
    return len(pair.have.instances) - len(kept) if placed else None


def _destroy_all(pair: Pair) -> int | None:
    """Leaves a GPU alone that has the right counts, and else clears it and tries one order after the other."""
    if Counter(one.profile for one in pair.have.instances) == Counter(pair.want):
        return 0
    names = sorted(Counter(pair.want).elements(), key=lambda name: -_size(pair.model, name))
    if pair.busy or not any(_placed(pair.model, 0, order) for order in itertools.permutations(names)):
        return None
    return len(pair.have.instances)


def _placed(model: Model, taken: int, names: Sequence[str]) -> bool:
    for name in names:
        slots = [one for one in _slots(model, name) if not one & taken]
        if not slots:
            return False
        taken |= slots[0]
    return True


def _slots(model: Model, name: str) -> list[int]:
    return [((1 << _size(model, name)) - 1) << start for start in model.profile(name).starts]


def _size(model: Model, name: str) -> int:
    return model.profile(name).memory_slices
