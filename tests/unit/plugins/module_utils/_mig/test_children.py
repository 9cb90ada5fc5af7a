# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._mig import children
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.apply import Order
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.layout import Layout
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.outcome import Work
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.planner import plan
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.reset import RESET_SECONDS
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.survey import GpuState
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.tables import model_named
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.wants import want_counts
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.watched import GpuAnswer

H200 = "h200-141"


def work(name, mig, model=H200, **order):
    board = model_named(model)
    want = want_counts(board, {"7g.80gb" if model == "a100-80" else "7g.141gb": 1})
    made = plan(board, Layout(mig), want, resetless=model == H200)
    return Work(GpuState(GpuAnswer(0, uuid=name)), order=Order(name, want, **order), plan=made)


@pytest.fixture
def change(monkeypatch):
    """How long each GPU could have had, in the order in which they were worked on. Of those that hang all of it passes, else a second."""

    def run(works, seconds, hang=()):
        clock, given = [0.0], {}
        monkeypatch.setattr(children.time, "monotonic", lambda: clock[0])

        def at_once(_self, group, had, _act):
            given.update({one.uuid: had for one in group})
            clock[0] += had if any(one.uuid in hang for one in group) else 1.0
            return iter(())

        monkeypatch.setattr(children.Children, "_at_once", at_once)
        children.Children(None, None, None, "nvidia-smi").change(works, seconds)
        return given

    return run


EIGHT = [f"mode-{number}" for number in range(8)]


def test_one_that_is_quick_leaves_its_time_to_the_next(change):
    given = change([*(work(name, False) for name in EIGHT), work("stays", True)], 600)
    assert list(given) == ["stays", *EIGHT], "those whose mode stays go first, and side by side"
    assert given["mode-7"] == 600 - 8


@pytest.mark.parametrize("seconds, least", [(600, 15), (72, 8)])
@pytest.mark.parametrize("hangs", ["stays", "mode-0", "mode-6"])
def test_one_that_hangs_leaves_each_of_the_others_something(change, seconds, least, hangs):
    given = change([*(work(name, False) for name in EIGHT), work("stays", True)], seconds, hang=[hangs])
    assert min(given.values()) >= least


def test_a_reset_has_the_time_that_it_takes(change):
    """A share would be too short, and one that is killed midway may leave the GPU unusable."""
    given = change([work(name, False, "a100-80", allow_reset=True) for name in EIGHT], 150, hang=["mode-0"])
    assert given["mode-0"] == given["mode-1"] == RESET_SECONDS + 15
