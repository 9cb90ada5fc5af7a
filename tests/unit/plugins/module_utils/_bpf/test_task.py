# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf import kernel
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf import task as task_module
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.errors import CopyChanged, ProbeError
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.hang import HungProcess
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.libraries import Copy, Found
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.probes import PROBES, wanted
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.task import ProbeTask, State
from ansible_collections.gpuops.remediation.plugins.module_utils._converge import converge

PROBE = PROBES["cuda_mem"]
COPY = Copy("/usr/lib/libcuda.so.1", 0xFE00, 42, "ab" * 20, {"cuMemAlloc_v2": 4096, "cuMemFree_v2": 8192})
LINKS = wanted(PROBE, [COPY], multi=True, driver_tracepoint=True)
OLD = ("old_copy_enter", "old_copy_leave", "old_kernel_on_exit")
NOTHING = State((), (), folder=False)


def task(want, *, keep_maps=True):
    return ProbeTask(
        PROBE, "/nonexistent/gpuops", want, keep_maps=keep_maps, multi=True, entries={}, check=lambda: None, keeps=Found().keeps
    )


def test_new_links_come_before_old_ones_go():
    """And of the old ones, what begins a call goes before what ends one."""
    one = task(LINKS)
    steps = one.plan(State(OLD, PROBE.maps, folder=True))
    assert [(step.action, step.target) for step in steps] == [*(("attach", name) for name in LINKS), *(("detach", name) for name in OLD)]
    assert one.predict(State(OLD, PROBE.maps, folder=True), steps) == State(tuple(sorted(LINKS)), PROBE.maps, folder=True)


def test_links_that_count_into_other_maps_begin_anew():
    """They cannot be kept, not even under the names that are wanted."""
    one, state = task(LINKS), State(tuple(sorted(LINKS)), PROBE.maps, folder=True, astray=True)
    steps = one.plan(state)
    assert [step.action for step in steps] == ["detach"] * len(LINKS) + ["forget"] + ["attach"] * len(LINKS)
    assert one.predict(state, steps) == replace(state, astray=False)


def test_a_copy_that_was_not_found_keeps_its_links_while_it_is_used():
    """A deleted one that a process goes on with, or one that cannot be read just now. One that was overwritten in place has others."""
    old = next(name for name in LINKS if name.endswith("enter")).replace("abababab", "cdcdcdcd")
    for found, kept in ((Found(in_use={42}), True), (Found(in_use={43}), False), (Found(copies=[COPY], in_use={42}), False)):
        one = ProbeTask(PROBE, "/nonexistent", {}, keep_maps=True, multi=True, entries={}, check=lambda: None, keeps=found.keeps)
        assert (one.plan(State((old,), PROBE.maps, folder=True)) == []) == kept


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


@pytest.fixture
def files_as_pins(monkeypatch):
    """A kernel whose links are files. What is told to it of ended links is in the list."""
    monkeypatch.setattr(task_module, "LoadedObject", FakeObject)
    monkeypatch.setattr(Copy, "open_again", lambda _copy, _functions: os.open(os.devnull, os.O_RDONLY))
    ended = []
    for name, fake in {
        "attach_raw_tracepoint": lambda program, _name: program,
        "attach_multi": lambda program, *_given, returns: program,
        "pin": lambda _fd, path: Path(path).touch(),
        "link_ids": lambda path: (len(path), 0),
        "map_id": lambda _path: 1,
        "program_maps": lambda _program: {1},
        "wait_until_gone": ended.append,
    }.items():
        monkeypatch.setattr(kernel, name, fake)
    return ended


def run(one):
    try:
        return converge(one.read, one.plan, one.predict, one.apply, check_mode=False)
    finally:
        one.close()


@pytest.mark.parametrize("multi", [True, False])
def test_it_converges_and_leaves_nothing(tmp_path, files_as_pins, multi):
    top, links = tmp_path / "gpuops", wanted(PROBE, [COPY], multi=multi, driver_tracepoint=False)

    def bring(want, *, keep_maps):
        return run(ProbeTask(PROBE, str(top), want, keep_maps=keep_maps, multi=multi, entries={}, check=lambda: None, keeps=Found().keeps))

    assert bring(links, keep_maps=True).after == State(tuple(sorted(links)), PROBE.maps, folder=True)
    assert [stat.S_IMODE((top / "cuda_mem/maps" / name).stat().st_mode) for name in PROBE.maps] == [0o644] * len(PROBE.maps)
    assert bring({}, keep_maps=False).after == NOTHING
    assert not top.exists()
    assert len(files_as_pins[-1]) == len(links), "it waits for the end of each link"


def test_where_a_process_hangs_nothing_is_begun(tmp_path, files_as_pins):
    def check():
        raise HungProcess("pid 7 hangs")

    for name, done in (("cuda_mem", False), ("gpu_xid", True)):  # a tracepoint waits for no process
        links = wanted(PROBES[name], [COPY], multi=True, driver_tracepoint=False)
        one = ProbeTask(
            PROBES[name], str(tmp_path / "gpuops"), links, keep_maps=True, multi=True, entries={}, check=check, keeps=Found().keeps
        )
        with contextlib.suppress(HungProcess):
            run(one)
        assert (tmp_path / "gpuops" / name).exists() == done


def test_what_an_interrupted_forgetting_left_goes_with_the_next_run(tmp_path, files_as_pins):
    """Its maps are out of sight, so that none of them is taken over."""
    left = tmp_path / "gpuops/cuda_mem/forgotten"
    for want, keep_maps in ((LINKS, True), ({}, False)):
        left.mkdir(parents=True)
        (left / "counters").touch()
        run(
            ProbeTask(
                PROBE, str(tmp_path / "gpuops"), want, keep_maps=keep_maps, multi=True, entries={}, check=lambda: None, keeps=Found().keeps
            )
        )
        assert not left.exists()


@pytest.mark.parametrize("refusal", [ProbeError, CopyChanged])
@pytest.mark.parametrize("root", ["/proc/5/root", "/", ""])
def test_a_copy_in_a_container_that_cannot_be_attached_to_is_told_and_the_rest_is_done(tmp_path, files_as_pins, monkeypatch, refusal, root):
    """One of the host's, or one that was named, is an error. Half of the bad one's links were there already."""
    bad = replace(COPY, path=f"{root}/libcuda.so.1", root=root, inode=66)

    def attach(program, _path, sites, _cookies, *, returns):
        if not returns and sites["cuMemAlloc_v2"] == 1:
            raise refusal("no")
        return program

    bad = replace(bad, sites={**bad.sites, "cuMemAlloc_v2": 1})
    monkeypatch.setattr(kernel, "attach_multi", attach)
    links = wanted(PROBE, [bad, COPY], multi=True, driver_tracepoint=False)
    one = ProbeTask(PROBE, str(tmp_path / "gpuops"), links, keep_maps=True, multi=True, entries={}, check=lambda: None, keeps=Found().keeps)
    if root != "/proc/5/root":
        with pytest.raises(refusal) as raised:
            run(one)
        assert raised.value.details == {"path": bad.path}
        return
    assert run(one).after.links == tuple(sorted(name for name, link in links.items() if link.copy is not bad))
    assert one.refused == {bad.key: "no"}


def test_absent_takes_maps_and_what_a_killed_loader_left():
    one = task({}, keep_maps=False)
    for state in (State(OLD, PROBE.maps, folder=True), State((), ("records",), folder=True), State((), (), folder=True)):
        steps = one.plan(state)
        assert steps[-1].action == "forget"
        assert one.predict(state, steps) == NOTHING
