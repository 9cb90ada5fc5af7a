# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from dataclasses import replace

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.apply import Order
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.device_id import DeviceId
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.layout import GpuInstance, Layout, Placement
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.outcome import Work, result
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.reading import Reading
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.survey import GpuState
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.tables import model_named
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.task import LayoutTask
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.wants import want_counts
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.watched import GpuAnswer
from mig import layout

H200 = model_named("h200-141")
PRIOR = layout(H200, "1g.18gb@0")
READING = Reading(0, "GPU-a", "0000:06:00.0", 0, "GPU", DeviceId(0), True, H200, PRIOR)
WANT = want_counts(H200, {"3g.71gb": 1})


def work(**more):
    made = Work(GpuState(GpuAnswer(0, "GPU-a", "0000:06:00.0", READING)), order=Order("GPU-a", WANT), **more)
    made.plan = made.order.plan(READING)
    made.made = made.plan.steps
    return made


@pytest.mark.parametrize(
    "after, changed",
    [
        (replace(READING, layout=layout(H200, "3g.71gb@4")), True),
        pytest.param(READING, False, id="taken back"),
        pytest.param(
            replace(READING, layout=Layout(True, (GpuInstance("1g.18gb", Placement(0, 1), PRIOR.instances[0].compute, 9),))),
            False,
            id="as new",
        ),
        pytest.param(None, True, id="nobody can tell"),
    ],
)
def test_what_was_taken_back_is_no_change(after, changed):
    [gpu] = result([work(after=after)], [], None)["gpus"]
    assert gpu["changed"] is changed and gpu["steps"] and (gpu["after"] is None) == (after is None)


def test_a_gpu_that_somebody_else_changed_meanwhile_hides_no_other():
    """The plan from what is there now may be a refusal."""
    done = work()
    done.order = replace(done.order, busy=["1g.18gb@0"])
    LayoutTask(None, None, None, None, None)._judge(done, GpuAnswer(0, "GPU-a", "0000:06:00.0", READING), None)
    assert done.error["error_kind"] == "mig_differs" and done.error["differs"] == ["busy, and not in the wanted layout: 1g.18gb@0/1c@0"]
