# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.errors import Busy, Fragmented, Infeasible
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.layout import Layout
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.planner import GPU, plan
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.profiles import Model
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.steps import CREATE, predict
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.tables import MODELS, model_named
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.wants import Want, WantedCompute, WantedInstance, want_counts
from hypothesis import given
from hypothesis import strategies as st
from mig import best, every_end, follow, instance, layout, layouts, random_busy, random_layout, random_want, stranded, touched

H200, A100, A30 = model_named("h200-141"), model_named("a100-40"), model_named("a30-24")
LARGE = [model_named(name) for name in ("a100-80", "h200-141", "b200-180", "rtx-pro-6000-96")]


def names(instances):
    return [one.name for one in instances]


def cost(model, current, made):
    lost = {one.compute_name(part) for one in current.instances for part in one.compute} - {
        one.compute_name(part) for one in made.layout.instances for part in one.compute
    }
    lost |= {one.compute_name(part) for one in made.destroy for part in one.compute}
    _end, least = follow(model, current, made.steps)
    ends = {(one.profile, one.placement.start) for one in made.layout.instances}
    return len(made.destroy), len(lost), stranded(model, ends), bool(current.instances and ends and not least)


def check(model, current, want, busy):
    """One plan, held against all that could have been done instead."""
    expected = best(model, current, want, busy)
    try:
        made = plan(model, current, want, busy)
    except Infeasible:
        assert not every_end(model, want)
        return
    except (Busy, Fragmented) as error:
        assert expected is None
        way = set(error.details["instances"])
        assert way and way <= {one.compute_name(part) for one in current.instances for part in one.compute} | set(names(current.instances))
        freed = {name for name in spelled_out(current, busy) if name not in way}
        assert best(model, current, want, freed) is not None, "the instances named are all that is in the way"
        for one in way:
            assert best(model, current, want, freed | {one}) is None, "each of them is"
        return
    end, _least = follow(model, current, made.steps)
    assert end == made.layout
    assert frozenset(
        (one.profile, one.placement.start, frozenset((part.slices, part.start) for part in one.compute)) for one in end.instances
    ) in every_end(model, want)
    gone = {step.target for step in made.steps if step.after is None}
    assert not touched(current, gone) & set(busy)
    assert expected is not None and cost(model, current, made) == expected
    assert not plan(model, end, want, busy=()).steps, "a second run has nothing to do"


def spelled_out(current, busy):
    found = set()
    for one in current.instances:
        compute = {one.compute_name(part) for part in one.compute}
        found |= (compute or {one.name}) if one.name in busy else compute & set(busy)
    return found


def test_every_state_and_every_want_of_a_small_gpu():
    plain = Model("a30", (), 4, tuple(one for one in A30.profiles if "+" not in one.name), "listed")
    states = [layout(plain, *(f"{name}@{start}" for name, start, _slots in one)) for one in layouts(plain)]
    wants = {tuple(sorted(Counter(name for name, _start, _slots in one).items())) for one in layouts(plain)}
    for current in states:
        everything = names(current.instances)
        for busy in ((), everything[:1], everything[1:], everything):
            for want in wants:
                check(plain, current, want_counts(plain, dict(want)), busy)


@given(st.sampled_from(LARGE), st.integers(0, 2**32))
def test_the_best_plan_of_a_large_gpu(model, seed):
    rng = random.Random(seed)
    current = random_layout(model, rng)
    check(model, current, random_want(model, rng), random_busy(current, rng))


@given(st.sampled_from(LARGE), st.integers(0, 2**32), st.data())
def test_any_want_is_planned_or_refused_with_the_reason(model, seed, data):
    rng = random.Random(seed)
    current = random_layout(model, rng)
    profiles = st.sampled_from([one.name for one in model.profiles])
    counts = data.draw(st.dictionaries(profiles, st.integers(0, 3), max_size=3))
    check(model, current, want_counts(model, counts), random_busy(current, rng))


@pytest.mark.parametrize(
    "have, want, busy, kept, gone, new",
    [
        pytest.param((), {"1g.18gb": 1}, (), [], [], ["1g.18gb@4"], id="leaves 4g its place and 2 slices that 1g.35gb can use"),
        pytest.param((), {"3g.71gb": 1, "1g.18gb": 4}, (), [], [], None, id="the documented order that fails without places"),
        pytest.param(("1g.18gb@6",), {"1g.18gb": 2}, ("1g.18gb@6",), ["1g.18gb@6"], [], ["1g.18gb@4"], id="adds beside a busy one"),
        pytest.param(
            ("3g.71gb@0",), {"3g.71gb": 1, "4g.71gb": 1}, (), [], ["3g.71gb@0"], ["3g.71gb@4", "4g.71gb@0"], id="moves what is in the way"
        ),
        pytest.param(("1g.18gb@0", "1g.18gb@1"), {"1g.18gb": 1}, ("1g.18gb@0",), ["1g.18gb@0"], ["1g.18gb@1"], [], id="the idle one goes"),
        pytest.param(
            ("1g.18gb@0", "1g.18gb@4"), {"1g.18gb": 1}, (), ["1g.18gb@4"], ["1g.18gb@0"], [], id="the one that leaves 4g its place stays"
        ),
        pytest.param(("3g.71gb@4 -", "3g.71gb@0"), {"3g.71gb": 1}, (), ["3g.71gb@0"], ["3g.71gb@4"], [], id="the one without compute goes"),
        pytest.param(("1g.18gb@0",), {"1g.18gb+me": 1}, (), [], ["1g.18gb@0"], ["1g.18gb+me@4"], id="media extensions are another profile"),
    ],
)
def test_plan(have, want, busy, kept, gone, new):
    current = layout(H200, *have)
    made = plan(H200, current, want_counts(H200, want), busy)
    assert (names(made.keep), names(made.destroy)) == (kept, gone)
    if new is not None:
        assert sorted(names(made.create)) == new
    check(H200, current, want_counts(H200, want), busy)


@pytest.mark.parametrize("order", [("1g.5gb", "1g.5gb", "2g.10gb", "3g.20gb"), ("3g.20gb", "1g.5gb", "2g.10gb", "1g.5gb")])
def test_the_order_of_a_want_says_nothing(order):
    want = Want(True, tuple(WantedInstance(name) for name in order))
    assert len(plan(A100, Layout(True), want).create) == 4


def test_a_compute_instance_that_is_missing_is_made_inside():
    current = layout(H200, "3g.71gb@4 -", "1g.18gb@0")
    made = plan(H200, current, want_counts(H200, {"3g.71gb": 1, "1g.18gb": 1}), ["1g.18gb@0"])
    assert [(step.action, step.target) for step in made.steps] == [("create_compute_instance", "3g.71gb@4/3c@0")]


def test_compute_instances_change_inside_and_spare_the_busy():
    current = layout(H200, "3g.71gb@4 2c@0 1c@2")
    want = Want(True, (WantedInstance("3g.71gb", compute=(WantedCompute(1),) * 3),))
    made = plan(H200, current, want, ["3g.71gb@4/1c@2"])
    assert [step.target for step in made.steps] == ["3g.71gb@4/2c@0", "3g.71gb@4/1c@0", "3g.71gb@4/1c@1"]


@pytest.mark.parametrize(
    "have, want, busy, error, way",
    [
        pytest.param(("1g.18gb@1",), {"3g.71gb": 1}, ("1g.18gb@1",), Busy, ["1g.18gb@1/1c@0"], id="busy, not wanted"),
        pytest.param(("1g.18gb@1",), {"1g.18gb": 1, "4g.71gb": 1}, ("1g.18gb@1",), Fragmented, ["1g.18gb@1/1c@0"], id="busy, in the way"),
        pytest.param(
            ("1g.18gb@0", "1g.18gb@1", "1g.18gb@5"),
            {"1g.18gb": 3, "3g.71gb": 1},
            ("1g.18gb@0", "1g.18gb@1", "1g.18gb@5"),
            Fragmented,
            ["1g.18gb@5/1c@0"],
            id="0, 1 and 5 are taken: only 5 is in the way",
        ),
        pytest.param(
            ("3g.71gb@4 1c@1",),
            {"2c.3g.71gb": 1, "1c.3g.71gb": 1},
            ("3g.71gb@4/1c@1",),
            Fragmented,
            ["3g.71gb@4/1c@1"],
            id="in the way inside",
        ),
        pytest.param(("3g.71gb@4 1c@1",), {"3g.71gb": 1}, ("3g.71gb@4/1c@1",), Busy, ["3g.71gb@4/1c@1"], id="not wanted inside"),
        pytest.param(("2g.35gb@2 -",), {"4g.71gb": 1}, ("2g.35gb@2",), Busy, ["2g.35gb@2"], id="busy without a compute instance"),
    ],
)
def test_refused_for_what_is_busy(have, want, busy, error, way):
    with pytest.raises(error) as caught:
        plan(H200, layout(H200, *have), want_counts(H200, want), busy)
    assert caught.value.details["instances"] == way
    assert way[0] in str(caught.value)


@pytest.mark.parametrize(
    "want, reason, words",
    [
        pytest.param([WantedInstance("1g.5gb")], "profile", "it has 1g.18gb, 1g.18gb+me", id="another model's profile"),
        pytest.param([WantedInstance("1c.3g.71gb")], "profile", "a part of a GPU instance", id="a part alone"),
        pytest.param([WantedInstance("3g.71gb", 2)], "start", "it can at 0, 4", id="a place that it cannot have"),
        pytest.param([WantedInstance("1g.18gb+me")] * 2, "limit", "can have 1 of 1g.18gb+me, not 2", id="one too many"),
        pytest.param(
            [WantedInstance("3g.71gb")] * 2 + [WantedInstance("1g.18gb")], "slices", "9 memory slices are wanted of 8", id="no slices"
        ),
        pytest.param(
            [WantedInstance("1g.18gb")] * 6 + [WantedInstance("2g.35gb")], "placement", "beside each other", id="8 slices, no places"
        ),
        pytest.param([WantedInstance("3g.71gb", compute=(WantedCompute(2),) * 2)], "compute", "no room for 2c, 2c", id="compute"),
        pytest.param([WantedInstance("3g.71gb", compute=(WantedCompute(2, 1),))], "compute", "no room for 2c@1", id="compute at no place"),
    ],
)
def test_refused_for_what_cannot_be(want, reason, words):
    with pytest.raises(Infeasible) as caught:
        plan(H200, layout(H200, "7g.141gb@0"), Want(True, tuple(want)))
    assert caught.value.details["reason"] == reason
    assert words in str(caught.value)


def test_idle_instances_move_only_where_they_may():
    current, want = layout(H200, "1g.18gb@1"), want_counts(H200, {"1g.18gb": 1, "4g.71gb": 1})
    assert names(plan(H200, current, want).moved) == ["1g.18gb@1"]
    both = plan(H200, layout(H200, "1g.18gb@0", "1g.18gb@1"), want)
    assert (len(both.destroy), len(both.moved)) == (2, 1)
    with pytest.raises(Fragmented, match=r"1g.18gb@1 would have to move"):
        plan(H200, current, want, may_move=False)


@pytest.mark.parametrize(
    "have, want, actions",
    [
        pytest.param(("1g.18gb@0",), ("4g.71gb",), "-+", id="nothing of the new can be there before"),
        pytest.param(("3g.71gb@4",), ("4g.71gb",), "+-", id="before the last goes"),
        pytest.param(("1g.18gb@0", "3g.71gb@4"), ("4g.71gb",), "-+-", id="the one that overlaps goes first"),
        pytest.param(("1g.18gb+me@6",), ("1g.18gb+me 0",), "-+", id="two of a kind that there can be one of"),
        pytest.param(("1g.18gb@0",), (), "-", id="none is wanted"),
    ],
)
def test_the_gpu_is_emptied_only_where_it_has_to_be(have, want, actions):
    wanted = (WantedInstance(name, int(start[0]) if start else None) for name, *start in (one.split() for one in want))
    made = plan(H200, layout(H200, *have), Want(True, tuple(wanted)))
    shown = {"destroy_gpu_instance": "-", "create_gpu_instance": "+"}
    assert "".join(shown.get(step.action, "") for step in made.steps) == actions


def test_what_creates_on_an_empty_gpu_says_what_that_takes():
    made = plan(H200, layout(H200, "1g.18gb@0"), want_counts(H200, {"3g.71gb": 2}))
    told = [bool(step.consequences) for step in made.steps if step.action == CREATE]
    assert told == [False, False]
    made = plan(H200, layout(H200, "1g.18gb@0"), want_counts(H200, {"7g.141gb": 1}))
    assert [step.consequences[0][:18] for step in made.steps if step.action == CREATE] == ["The first instance"]


OFF, ON = Layout(False), Layout(True)


@pytest.mark.parametrize(
    "current, mig, resetless, actions",
    [
        (OFF, True, True, ["enable_mig"]),
        (OFF, True, False, ["enable_mig", "reset_gpu"]),
        (Layout(False, pending=True), True, False, ["reset_gpu"]),
        (Layout(False, pending=True), True, True, ["enable_mig"]),
        (Layout(True, pending=False), True, False, ["enable_mig"]),
        (ON, False, True, ["disable_mig"]),
        (layout(H200, "7g.141gb@0"), False, False, ["destroy_compute_instance", "destroy_gpu_instance", "disable_mig", "reset_gpu"]),
        (ON, True, False, []),
        (OFF, False, False, []),
    ],
)
def test_mode(current, mig, resetless, actions):
    made = plan(H200, current, Want(mig), resetless=resetless)
    assert [step.action for step in made.steps] == actions
    assert predict(current, made.steps) == made.layout == Layout(mig)
    assert all(step.consequences for step in made.steps if step.instance is None)


@pytest.mark.parametrize("current", [Layout(True, layout(H200, "7g.141gb@0").instances, pending=False), Layout(False, pending=True)])
def test_a_mode_of_which_nothing_is_said_stays_pending(current):
    made = plan(H200, current, Want(None))
    assert made.layout == replace(current, instances=()) and all(step.instance for step in made.steps)


def test_the_mode_of_a_gpu_in_use_does_not_change():
    with pytest.raises(Busy) as caught:
        plan(H200, OFF, want_counts(H200, {"1g.18gb": 1}), [GPU])
    assert caught.value.details["instances"] == [GPU]
    assert plan(H200, ON, want_counts(H200, {"1g.18gb": 1}), [GPU]).create


def test_an_instance_of_an_unknown_profile_can_only_go():
    strange = Layout(True, (instance(A30, "2g.12gb@0"),))
    made = plan(H200, strange, want_counts(H200, {"4g.71gb": 1}))
    assert (names(made.destroy), names(made.create)) == (["2g.12gb@0"], ["4g.71gb@0"])


def test_another_boards_name_is_the_same_profile():
    board = model_named("a100-80")
    assert not plan(board, layout(board, "7g.80gb@0"), want_counts(board, {"7g.79gb": 1})).steps


def test_a_busy_instance_that_is_not_there_is_a_mistake():
    with pytest.raises(ValueError, match=r"3g.71gb@0"):
        plan(H200, ON, Want(True), ["3g.71gb@0"])


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_every_profile_of_every_model_can_be_made_in_every_place(model):
    for profile in model.profiles:
        for start in profile.starts:
            assert names(plan(model, ON, Want(True, (WantedInstance(profile.name, start),))).create) == [f"{profile.name}@{start}"]


def test_instances_that_share_an_engine_are_not_planned_beside_each_other():
    """As a driver tells it of an A30: there is one optical flow engine, and both sizes of +me take it."""
    shared = Model(
        "A30", (), 4, tuple(replace(one, optical_flow=int("+me" in one.name or one.name == "4g.24gb")) for one in A30.profiles), "driver"
    )
    with pytest.raises(Infeasible) as refused:
        plan(shared, Layout(True), want_counts(shared, {"1g.6gb+me": 1, "2g.12gb+me": 1}))
    assert refused.value.details["reason"] == "engine"
    made = plan(shared, layout(shared, "1g.6gb+me@0"), want_counts(shared, {"2g.12gb+me": 1}))
    assert [one.action for one in made.steps if one.compute is None] == ["destroy_gpu_instance", "create_gpu_instance"]
    beside = plan(A30, layout(A30, "1g.6gb+me@0"), want_counts(A30, {"2g.12gb+me": 1}))
    assert [one.action for one in beside.steps if one.compute is None] == ["create_gpu_instance", "destroy_gpu_instance"], (
        "where nobody told"
    )


@pytest.mark.parametrize("want", [{"3g.71gb": 3}, {"4g.71gb": 1, "2g.35gb": 3}, {"2g.35gb": 3, "3g.71gb": 1}])
def test_what_can_never_be_is_no_reason_to_end_anybody(want):
    """Who drains what is busy must not do it for nothing."""
    with pytest.raises(Infeasible):
        plan(H200, Layout(False), want_counts(H200, want), [GPU], resetless=True)
