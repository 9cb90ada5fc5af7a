# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from ansible_collections.gpuops.remediation.plugins.module_utils._mig.children import Children
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.layout import Layout
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.outcome import Work
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.planner import plan
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.survey import GpuState
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.tables import model_named
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.wants import want_counts
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.watched import GpuAnswer

H200 = model_named("h200-141")


def work(mig):
    return Work(GpuState(GpuAnswer(0)), plan=plan(H200, Layout(mig), want_counts(H200, {"3g.71gb": 2})))


def test_each_gpu_whose_mode_changes_has_all_the_time_that_is_left(monkeypatch):
    """An eighth of it would be too short for a reset; those that are done quickly leave it to the next."""
    given = []
    monkeypatch.setattr(Children, "_at_once", lambda _self, works, seconds, _act: given.append((len(works), seconds)) or iter(()))
    monkeypatch.setattr(Children, "_collect", None)
    Children(None, None, None, "nvidia-smi").change([*(work(False) for _gpu in range(8)), work(True), work(True)], 100)
    assert [number for number, _seconds in given] == [1] * 8 + [2]
    assert all(90 < seconds <= 100 for _number, seconds in given)
