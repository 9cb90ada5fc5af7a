# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.libraries import Copy
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.probes import PROBES, wanted
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.task import ProbeTask, State

PROBE = PROBES["cuda_mem"]
COPY = Copy("/usr/lib/libcuda.so.1", 0xFE00, 42, "ab" * 20, {"cuMemAlloc_v2": 4096, "cuMemFree_v2": 8192})
LINKS = wanted(PROBE, [COPY], multi=True, driver_tracepoint=True)
OLD = ("old_copy_enter", "old_copy_leave", "old_kernel_on_exit")
NOTHING = State((), (), folder=False)


def task(want, *, keep_maps=True):
    return ProbeTask(PROBE, "/nonexistent/gpuops", want, keep_maps=keep_maps, multi=True, entries={})


def test_new_links_come_before_old_ones_go():
    """And of the old ones, what begins a call goes before what ends one."""
    one = task(LINKS)
    steps = one.plan(State(OLD, PROBE.maps, folder=True))
    assert [(step.action, step.target) for step in steps] == [*(("attach", name) for name in LINKS), *(("detach", name) for name in OLD)]
    assert one.predict(State(OLD, PROBE.maps, folder=True), steps) == State(tuple(sorted(LINKS)), PROBE.maps, folder=True)


def test_nothing_is_done_where_all_is_as_wanted():
    assert task(LINKS).plan(State(tuple(sorted(LINKS)), PROBE.maps, folder=True)) == []
    assert task({}, keep_maps=False).plan(NOTHING) == []


def test_absent_takes_maps_and_what_a_killed_loader_left():
    one = task({}, keep_maps=False)
    for state in (State(OLD, PROBE.maps, folder=True), State((), ("records",), folder=True), State((), (), folder=True)):
        steps = one.plan(state)
        assert steps[-1].action == "forget"
        assert one.predict(state, steps) == NOTHING
