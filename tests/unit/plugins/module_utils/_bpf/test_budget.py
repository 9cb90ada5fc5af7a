# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import struct

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf import budget, maps, trap
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.budget import Look
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.errors import ProbeError
from ansible_collections.gpuops.remediation.plugins.module_utils._node.statedir import StateDir
from fake_bpf import FakeBpf

BEFORE = Look(1000, 1_000_000, 50.0, 500.0).show()


def test_the_share_is_of_one_cpu_since_the_look_before():
    """A million hits of 500 ns, and 0.1 s of the programs themselves, in 20 s."""
    now = Look(1_001_000, 101_000_000, 70.0, 500.0).after(BEFORE)
    assert now.cpu_percent == pytest.approx(3.0)
    assert now.why_not(3.1) is None and now.why_not(2.9) == "cuda_launch took 3 % of one CPU, and may take 2.9 %"


def test_where_a_hit_cannot_be_measured_the_programs_own_time_counts():
    assert Look(1_001_000, 101_000_000, 70.0, None).after({**BEFORE, "hit_ns": None}).cpu_percent == pytest.approx(0.5)


@pytest.mark.parametrize("before", [None, {**BEFORE, "hits": 2000}, {**BEFORE, "programs_ns": 2_000_000}])
def test_the_first_look_and_one_at_counts_that_began_anew_say_nothing(before):
    now = Look(1500, 1_500_000, 70.0, 500.0).after(before)
    assert now.cpu_percent is None and now.why_not(0) is None


def test_after_too_short_a_time_the_look_before_stands():
    """So that the next one has a time to compare with."""
    assert Look(1500, 1_500_000, 50.9, 500.0).after({**BEFORE, "cpu_percent": 1.5}).show() == {**BEFORE, "cpu_percent": 1.5}


@pytest.mark.parametrize("cost", [500.0, None])
def test_what_a_hit_costs_is_measured_once_a_boot(tmp_path, monkeypatch, cost):
    def hit_ns():
        measured.append(cost)
        if cost is None:
            raise ProbeError("no memory may be executable here")
        return cost

    measured = []
    counters = {struct.pack("=I", at): struct.pack("=Q", value) for at, value in enumerate((7, 8, 0, 0))}
    folder = tmp_path / "cuda_launch/maps"
    monkeypatch.setattr(trap, "hit_ns", hit_ns)
    monkeypatch.setattr(maps, "bpf", FakeBpf({str(folder / "launch_counters"): (4, 8, counters)}))
    assert budget.look(str(tmp_path), None) is None and not measured, "it is not attached"
    folder.mkdir(parents=True)
    (folder / "launch_counters").touch()
    first = budget.look(str(tmp_path), None)
    assert (first.hits, first.programs_ns, first.hit_ns) == (7, 8, cost)
    assert budget.look(str(tmp_path), first.show()).hit_ns == cost and measured == [cost]


def test_what_was_stopped_stays_so_until_somebody_asks(tmp_path):
    state = StateDir(str(tmp_path / "state"))
    budget.ask_again(state, ["cuda_launch"])
    assert budget.stopped(state) == {} and not list(state.path.iterdir())
    budget.stop(state, "too dear", 0.0)
    budget.ask_again(state, ["cuda_mem", "gpu_xid"])
    assert budget.stopped(state) == {"cuda_launch": {"why": "too dear", "since": "1970-01-01T00:00:00.000000+00:00"}}
    budget.ask_again(state, ["cuda_launch"])
    assert budget.stopped(state) == {}
