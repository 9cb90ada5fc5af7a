# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf import kernel
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf import task as task_module
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.libraries import Copy
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.probes import PROBES, wanted
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.task import ProbeTask, State
from ansible_collections.gpuops.remediation.plugins.module_utils._converge import converge

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


class FakeObject:
    """Pins what it is told to, as files."""

    def __init__(self, _image, maps_dir, attach_types, entries):
        for name in PROBE.maps:
            Path(maps_dir, name).touch()

    def program_fd(self, _name):
        return os.open(os.devnull, os.O_RDONLY)

    def attach_function(self, _program, _path, _offset, _cookie, *, returns, pin):
        Path(pin).touch()

    def close(self):
        pass


@pytest.mark.parametrize("multi", [True, False])
def test_it_converges_and_leaves_nothing(tmp_path, monkeypatch, multi):
    monkeypatch.setattr(task_module, "LoadedObject", FakeObject)
    ended = []
    for name, fake in {
        "attach_raw_tracepoint": lambda program, _name: program,
        "attach_multi": lambda program, *_given, returns: program,
        "pin": lambda _fd, path: Path(path).touch(),
        "link_ids": lambda path: (len(path), 0),
        "wait_until_gone": ended.append,
    }.items():
        monkeypatch.setattr(kernel, name, fake)
    top, links = tmp_path / "gpuops", wanted(PROBE, [COPY], multi=multi, driver_tracepoint=False)

    def bring(want, *, keep_maps):
        one = ProbeTask(PROBE, str(top), want, keep_maps=keep_maps, multi=multi, entries={})
        outcome = converge(one.read, one.plan, one.predict, one.apply, check_mode=False)
        one.close()
        return outcome

    assert bring(links, keep_maps=True).after == State(tuple(sorted(links)), PROBE.maps, folder=True)
    assert [stat.S_IMODE((top / "cuda_mem/maps" / name).stat().st_mode) for name in PROBE.maps] == [0o644] * len(PROBE.maps)
    assert bring({}, keep_maps=False).after == NOTHING
    assert not top.exists()
    assert len(ended[-1]) == len(links), "it waits for the end of each link"


def test_absent_takes_maps_and_what_a_killed_loader_left():
    one = task({}, keep_maps=False)
    for state in (State(OLD, PROBE.maps, folder=True), State((), ("records",), folder=True), State((), (), folder=True)):
        steps = one.plan(state)
        assert steps[-1].action == "forget"
        assert one.predict(state, steps) == NOTHING
