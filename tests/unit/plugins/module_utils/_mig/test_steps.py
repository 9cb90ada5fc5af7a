# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import random

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.errors import MigError
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.layout import Layout
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.planner import plan
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.steps import CREATE, differences, predict, undo
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.tables import model_named
from mig import follow, layout, random_layout, random_want

H200 = model_named("h200-141")


@pytest.mark.parametrize("seed", range(100))
def test_undone_from_anywhere_it_is_as_it_was(seed):
    rng = random.Random(seed)
    prior, want = random_layout(H200, rng), random_want(H200, rng)
    try:
        steps = plan(H200, prior, want).steps
    except MigError:
        return
    for number in range(len(steps) + 1):
        there = predict(prior, steps[:number])
        back = list(undo(there, steps))  # what was not done is not undone
        assert len(back) == number and follow(H200, there, back)[0] == prior
        assert not differences(prior, predict(there, back))


def test_with_what_is_in_it_by_now():
    """What this run made goes as a whole."""
    steps = plan(H200, Layout(True), random_want(H200, random.Random(3))).steps
    created = [one for one in steps if one.action == CREATE][:1]
    there = predict(predict(Layout(True), created), [one for one in steps if one.instance == created[0].instance and one.compute])
    assert predict(there, undo(there, created)) == Layout(True)


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (layout(H200, "3g.71gb@4"), []),
        (layout(H200, "3g.71gb@4 -"), ["3g.71gb@4/3c@0 is missing"]),
        (layout(H200, "3g.71gb@4", "1g.18gb@0 -"), ["1g.18gb@0 is there too"]),
        (layout(H200, "4g.71gb@0 -"), ["3g.71gb@4 is missing", "3g.71gb@4/3c@0 is missing", "4g.71gb@0 is there too"]),
        (Layout(False, (), True), ["MIG is off with on pending, not on", "3g.71gb@4 is missing", "3g.71gb@4/3c@0 is missing"]),
    ],
)
def test_differences(found, told):
    assert differences(layout(H200, "3g.71gb@4"), found) == told
