# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import random
import time
from dataclasses import replace

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.errors import LockLost
from ansible_collections.gpuops.remediation.plugins.module_utils._mig import apply, steps
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.apply import Child, Order, heard
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.device_id import DeviceId
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.errors import Busy, MigError, Refused
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.layout import Layout
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.reading import Reading
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.reset import RESET_SECONDS
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.tables import model_named
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.wants import Want, WantedCompute, WantedInstance, want_counts
from mig import follow, layout, random_busy, random_layout, random_want

H200 = model_named("h200-141")
A100 = model_named("a100-80")


class Cut(Exception):
    """The child is killed."""


class FakeDevice:
    """A GPU in memory, which fails or hangs at the Nth step, or cannot be read once after it; `after_effect`: once the step has been taken."""

    def __init__(
        self,
        there,
        model=H200,
        resetless=True,
        fail_at=None,
        hang_at=None,
        after_effect=False,
        starts=None,
        elsewhere=None,
        blind_at=None,
        error=Refused,
    ):
        self.there, self.model, self.resetless = there, model, resetless
        self.fail_at, self.hang_at, self.after_effect = fail_at, hang_at, after_effect
        self.starts = starts or {}  # what the driver says of compute instances, once there is one of that kind
        self.elsewhere = elsewhere  # where it puts them instead
        self.blind_at = blind_at
        self.error = error
        self.steps = []

    def read(self):
        if len(self.steps) == self.blind_at:
            self.blind_at = None
            raise Refused("unreadable", call="nvmlDeviceGetGpuInstances")
        kinds = {one.profile for one in self.there.instances}
        profiles = tuple(
            replace(one, driver_compute_starts=self.starts[one.name]) if one.name in self.starts and one.name in kinds else one
            for one in self.model.profiles
        )
        return Reading(
            0, "GPU-a", "0000:06:00.0", 0, "GPU", DeviceId(0), self.resetless, replace(self.model, profiles=profiles), self.there
        )

    def do(self, todo, there):
        self.steps.append(todo.action)
        if len(self.steps) == self.fail_at and not self.after_effect:
            raise self.error("refused", call="nvmlCall")
        if len(self.steps) == self.hang_at and not self.after_effect:
            raise Cut
        if todo.instance is None:
            self._mode(todo)
        else:
            if todo.action == steps.CREATE_COMPUTE and self.elsewhere is not None:
                todo = replace(todo, compute=replace(todo.compute, start=self.elsewhere))
            try:
                follow(self.model, self.there, [todo])
            except (AssertionError, KeyError) as error:
                raise Refused(f"refused: {error}", call="nvmlCall") from error
            self.there = steps.predict(self.there, [todo])
        if len(self.steps) == self.hang_at:
            raise Cut
        if len(self.steps) == self.fail_at:
            raise self.error("refused", call="nvmlCall")

    def _mode(self, todo):
        if todo.action == steps.RESET:
            self.there = Layout(bool(todo.after))
        elif self.resetless:
            self.there = replace(self.there, mig=bool(todo.after))
        else:
            self.there = replace(self.there, pending=todo.after if todo.after != self.there.mig else None)


class NoJournal:
    def intended(self, *_line):
        pass

    applied = intended


def child(device, items, keep_lock=lambda: None, seconds=600.0):
    return Child(device, NoJournal(), keep_lock, items.append, time.monotonic() + seconds)


def change(device, order, **options):
    items, why = [], None
    try:
        child(device, items, **options).change(order)
    except Cut:
        why = "did not answer within 9 s"
    return heard(items, why)


def take_back(device, told, prior, allow_reset=False, **options):
    items = []
    child(device, items, **options).take_back("GPU-a", told.attempted, prior, allow_reset)
    return heard(items, None)


def order(want, busy=(), **options):
    return Order("GPU-a", want, busy, **options)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(
    "how", [{"fail_at": 1}, {"fail_at": 1, "after_effect": True}, {"hang_at": 1}, {"hang_at": 1, "after_effect": True}, {"blind_at": 1}]
)
def test_a_failure_at_each_step_is_taken_back(seed, how):
    """Of random changes, also where the step that was refused or hung had been taken, or could not be read back."""
    rng = random.Random(seed)
    prior, want = random_layout(H200, rng), random_want(H200, rng)
    busy = random_busy(prior, rng)
    try:
        number = len(order(want, busy).plan(FakeDevice(prior).read()).steps)
    except MigError:
        return
    for nth in range(1, number + 1):
        device = FakeDevice(prior, **{name: nth if value is not True else True for name, value in how.items()})
        told = change(device, order(want, busy))
        assert len(told.problems) == 1
        back = FakeDevice(device.there)
        assert not take_back(back, told, prior).problems
        assert back.there == prior and len(back.steps) <= nth
    untroubled = FakeDevice(prior)
    assert not change(untroubled, order(want, busy)).problems and not order(want).plan(untroubled.read()).steps


def test_what_hangs_is_named_by_its_call():
    [problem] = heard([{"begins": "nvmlGpuInstanceDestroy"}], "did not answer within 9 s").problems
    assert problem["msg"] == "nvmlGpuInstanceDestroy: did not answer within 9 s" and problem["call"] == "nvmlGpuInstanceDestroy"


def test_what_others_made_meanwhile_is_not_taken_back():
    """The creation that was refused had made nothing, though such an instance is there now."""
    device = FakeDevice(Layout(True), fail_at=1, error=Busy)
    told = change(device, order(want_counts(H200, {"3g.71gb": 1})))
    [wanted] = order(want_counts(H200, {"3g.71gb": 1})).plan(FakeDevice(Layout(True)).read()).create
    other = FakeDevice(Layout(True, (wanted,)))
    take_back(other, told, Layout(True))
    assert other.steps == []


@pytest.mark.parametrize("error", [Refused, Busy])
def test_a_mode_that_was_refused_may_be_pending_all_the_same(error):
    device = FakeDevice(Layout(False), A100, resetless=False, fail_at=1, after_effect=True, error=error)
    told = change(device, order(want_counts(A100, {"7g.80gb": 1})))
    assert told.problems and device.there == Layout(False, (), True)
    back = FakeDevice(device.there, A100, resetless=False)
    take_back(back, told, Layout(False))
    assert back.there == Layout(False)


def test_the_rest_is_taken_back_though_a_part_cannot_be():
    prior = layout(H200, "1g.18gb@0", "1g.18gb@1")
    device = FakeDevice(prior, fail_at=5)
    told = change(device, order(want_counts(H200, {"4g.71gb": 1})))
    back = FakeDevice(device.there, fail_at=1)
    assert take_back(back, told, prior).problems
    assert steps.differences(prior, back.there) == ["1g.18gb@1 is missing", "1g.18gb@1/1c@0 is missing"]


def test_planned_again_where_the_driver_knows_better_where_compute_instances_can_be():
    device = FakeDevice(Layout(True), starts={"3g.71gb": ((1, (0, 2)), (2, (0,)), (3, (0,)))})
    told = change(device, order(Want(True, (WantedInstance("3g.71gb", 0, (WantedCompute(1), WantedCompute(1))),))))
    assert not told.problems and device.there == layout(H200, "3g.71gb@0 1c@0 1c@2")


def test_a_place_that_the_driver_has_not_is_refused_and_taken_back():
    device = FakeDevice(Layout(True), starts={"3g.71gb": ((1, (0, 2)), (3, (0,)))})
    told = change(device, order(Want(True, (WantedInstance("3g.71gb", 0, (WantedCompute(1, 1),)),))))
    assert [one["error_kind"] for one in told.problems] == ["mig_infeasible"]
    take_back(device, told, Layout(True))
    assert device.there == Layout(True)


def test_a_compute_instance_that_was_put_elsewhere_is_found_out_and_taken_back():
    prior = layout(H200, "3g.71gb@0 -")
    device = FakeDevice(prior, elsewhere=0)
    told = change(device, order(Want(True, (WantedInstance("3g.71gb", 0, (WantedCompute(1, 2),)),))))
    [problem] = told.problems
    assert (problem["error_kind"], problem["differs"]) == ("mig_differs", ["3g.71gb@0/1c@2 is missing", "3g.71gb@0/1c@0 is there too"])
    assert not take_back(device, told, prior).problems and device.there == prior


def test_it_stops_before_a_reset_that_it_may_not_do():
    device = FakeDevice(Layout(False), A100, resetless=False)
    wanted = order(want_counts(A100, {"7g.80gb": 1}))
    told = change(device, wanted)
    assert told.reset_required and not told.problems and device.there == Layout(False, (), True)
    again = change(device, wanted)
    assert again.reset_required and again.made == []
    assert not change(device, replace(wanted, allow_reset=True)).problems and device.there == layout(A100, "7g.80gb@0")


@pytest.mark.parametrize("allow_reset", [True, False])
def test_a_mode_is_taken_back_as_far_as_may_be(allow_reset):
    """Disabled and reset; the creations that would bring the instances back need the mode first."""
    prior = layout(A100, "3g.40gb@0", "2g.20gb@4")
    device = FakeDevice(Layout(False), A100, resetless=False)
    [*gone] = order(Want(False), allow_reset=True).plan(FakeDevice(prior, A100, resetless=False).read()).steps
    told = apply.Told(made=gone)
    take_back(device, told, prior, allow_reset=allow_reset)
    assert device.there == (prior if allow_reset else Layout(False, (), True))


def test_a_pending_mode_that_the_run_did_not_set_stays():
    """Of somebody who will reset the GPU; also where the run did that and has to go back over it."""
    prior = replace(layout(A100, "3g.40gb@0"), pending=False)
    device = FakeDevice(prior, A100, resetless=False)
    take_back(device, apply.Told(made=[*steps.create(layout(A100, "2g.20gb@4").instances[0])]), prior)
    assert device.steps == [] and device.there == prior
    waits = Layout(False, (), True)
    device = FakeDevice(waits, A100, resetless=False, fail_at=2)
    told = change(device, order(want_counts(A100, {"7g.80gb": 1}), allow_reset=True))
    assert told.problems and device.there == Layout(True)
    back = FakeDevice(device.there, A100, resetless=False)
    assert not take_back(back, told, waits, allow_reset=True).problems and back.there == waits


def test_no_step_begins_without_time_or_lock():
    def lost():
        raise LockLost("run 2 has it")

    for options, kind in (({"seconds": 0}, "timeout"), ({"keep_lock": lost}, "lock_lost")):
        device = FakeDevice(layout(H200, "1g.18gb@0", "1g.18gb@1"))
        told = change(device, order(Want(True)), **options)
        assert [one["error_kind"] for one in told.problems] == [kind] and device.steps == []
        made = replace(told, made=list(order(Want(True)).plan(device.read()).steps))
        emptied = FakeDevice(Layout(True))
        assert [one["error_kind"] for one in take_back(emptied, made, device.there, **options).problems] == [kind] and emptied.steps == []


def test_no_reset_begins_that_would_have_to_be_killed_midway():
    device = FakeDevice(Layout(False), A100, resetless=False)
    told = change(device, order(want_counts(A100, {"7g.80gb": 1}), allow_reset=True), seconds=RESET_SECONDS - 1)
    assert [one["error_kind"] for one in told.problems] == ["timeout"] and device.steps == ["enable_mig"]
    assert not take_back(device, told, Layout(False), allow_reset=True, seconds=5).problems and device.there == Layout(False)


def test_what_was_busy_and_has_gone_by_itself_is_in_nobodys_way():
    reading = FakeDevice(layout(H200, "3g.71gb@0")).read()
    wanted = order(want_counts(H200, {"3g.71gb": 1}), ["1g.18gb@5/1c@0"])
    assert wanted.plan(reading).steps == ()
    with pytest.raises(Busy):
        order(Want(True), ["3g.71gb@0"]).plan(reading)
