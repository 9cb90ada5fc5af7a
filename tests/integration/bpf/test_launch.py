# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What cuda_launch counts of calls of a made-up libcuda, and what it says that this costs."""

from __future__ import annotations

import ctypes
import os
import struct
import threading
import timeit
from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf import bring, callers, launches, trap
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.info import _program
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.maps import bpf, info
from ansible_collections.gpuops.remediation.plugins.module_utils._node.procfs import ProcFs

FUNCTION, INVALID_HANDLE = 0xF00, 400
MAP_UPDATE, ENABLE_STATISTICS = 2, 32


@pytest.fixture
def maps(namespace):
    return Path(namespace.bpffs) / "cuda_launch/maps"


def counts(maps):
    return {
        (each.tgid, each.kind.name.removeprefix("LAUNCH_").lower()): (each.durations.count, each.failed) for each in launches.launches(maps)
    }


@pytest.mark.parametrize("attach", ["multi", "perf"])
@pytest.mark.parametrize("shape", ["thunk", "push"])
def test_launches_are_counted_by_process_and_kind(namespace, built, caller, maps, shape, attach):
    """Of a call within a call the outer one, also where it ends by a jump to the inner one, as the thunk's does."""
    made = namespace.probe(probes=["cuda_launch"], libraries=[built[shape]], attach=attach)
    assert made["copies"][0]["functions"] == 4
    with caller(built[shape]) as first, caller(built[shape]) as second:
        for _each in range(3):
            first.ok("cuLaunchKernel", FUNCTION, 0)
        assert first.call("cuLaunchKernel", 0, 0) == [INVALID_HANDLE]
        first.ok("cuLaunchKernelEx_ptsz", 0xC0, FUNCTION)
        first.ok("cuLaunchCooperativeKernel", FUNCTION, 0)
        first.ok("cuLaunchCooperativeKernel", FUNCTION, 0)
        second.ok("cuGraphLaunch", FUNCTION, 0)
        assert counts(maps) == {(first.pid, "kernel"): (5, 1), (first.pid, "cooperative"): (2, 0), (second.pid, "graph"): (1, 0)}
    told = launches.counters(maps)
    assert told["launch_hits"] == 2 * (4 + 1 + 2 * 2 + 1) and 0 < told["launch_programs_ns"] < 1e9
    assert told["abandoned_launches"] == told["launches_full"] == 0


def test_a_call_is_timed_on_the_host(namespace, built, caller, maps):
    namespace.probe(probes=["cuda_launch"], libraries=[built["push"]])
    with caller(built["push"]) as process:
        process.ok("cuLaunchKernel", FUNCTION, 40)
        process.ok("cuLaunchKernel", FUNCTION, 0)
        process.ok("cuLaunchKernel", FUNCTION, 0)
    (told,) = launches.launches(maps)
    assert told.durations.total_ns > 40e6 and sum(told.durations.slots) == 3
    assert sum(told.durations.slots[25:]) >= 1, "of 33 ms and more"
    assert sum(told.durations.slots[:20]) >= 1, "of less than 1 ms"


def test_an_upgrade_misses_nothing_and_counts_nothing_twice(namespace, built, caller, maps, monkeypatch):
    namespace.probe(probes=["cuda_launch"], libraries=[built["push"]])
    first = bring.PROBES["cuda_launch"]
    done, rounds = threading.Event(), []
    with caller(built["push"]) as process:

        def call():
            while not done.is_set():
                process.ok("launch_many", FUNCTION, 2000)
                rounds.append(2000)

        calling = threading.Thread(target=call)
        calling.start()
        for version in range(2):
            monkeypatch.setitem(bring.PROBES, "cuda_launch", replace(first, cookies={**first.cookies, f"cuVersion{version}": 1}))
            actions = namespace.probe(probes=["cuda_launch"], libraries=[built["push"]])["actions"]
            assert [step["action"] for step in actions] == ["attach"] * 2 + ["detach"] * 2
        done.set()
        calling.join()
        assert counts(maps) == {(process.pid, "kernel"): (sum(rounds), 0)}


def test_a_thread_that_left_a_call_without_returning_goes_on(namespace, built, caller, maps):
    """Seen at once where the next call is less deep in the stack, and after some calls that looked as if they were within it."""
    namespace.probe(probes=["cuda_launch"], libraries=[built["push"]])
    with caller(built["push"]) as process:
        process.ok("leave_a_launch", FUNCTION, 1)
        process.ok("cuLaunchKernel", FUNCTION, 0)
        assert counts(maps) == {(process.pid, "kernel"): (1, 0)} and launches.counters(maps)["abandoned_launches"] == 1
        process.ok("leave_a_launch", FUNCTION, 0)
        process.ok("launch_many", FUNCTION, 20)
        assert counts(maps) == {(process.pid, "kernel"): (1 + 20 - 16, 0)} and launches.counters(maps)["abandoned_launches"] == 2


def test_info_tells_who_launches_and_the_next_run_takes_who_has_ended(namespace, built, caller, maps, container_cgroup):
    identifier, folders = container_cgroup
    options = {"probes": ["cuda_launch"], "libraries": [built["push"]]}
    namespace.probe(**options)
    with caller(built["push"]) as process:
        for folder in folders.values():
            (folder / "cgroup.procs").write_text(str(process.pid))
        process.ok("cuLaunchKernel", FUNCTION, 0)
        (told,) = namespace.info(probe="cuda_launch")["launches"]
        assert (told["pid"], told["living"], told["kind"], told["count"], told["failed"]) == (process.pid, True, "launch_kernel", 1, 0)
        assert told["container"]["id"] == identifier and told["cgroup_ids"]["v2"] == folders["cgroup2"].stat().st_ino
        assert told["comm"].startswith("python")
        assert not namespace.probe(**options)["changed"]
        assert counts(maps), "who lives stays"
    (told,) = namespace.info(probe="cuda_launch")["launches"]
    assert (told["living"], told["container"], told["count"]) == (False, None, 1)
    namespace.probe(**options)
    assert counts(maps) == {}


def test_a_process_that_the_map_has_no_room_for_is_told(namespace, built, caller, maps):
    namespace.probe(probes=["cuda_launch"], libraries=[built["push"]])
    with launches.PinnedMap(str(maps / "launches"), read_only=False) as entries:
        value = ctypes.create_string_buffer(entries.info.value_size)
        for number in range(entries.info.max_entries):
            key = ctypes.create_string_buffer(struct.pack("=QII", number, 1, 1), 16)
            bpf(MAP_UPDATE, struct.pack("=IIQQQ", entries.fd, 0, ctypes.addressof(key), ctypes.addressof(value), 0))
    with caller(built["push"]) as process:
        process.ok("cuLaunchKernel", FUNCTION, 0)
        assert not [pid for pid, _kind in counts(maps) if pid == process.pid]
        assert launches.counters(maps)["launches_full"] == 1
        assert callers.sweep(maps / "launches", ProcFs("/proc")) == 8192
        process.ok("cuLaunchKernel", FUNCTION, 0)
        assert counts(maps) == {(process.pid, "kernel"): (1, 0)}


def test_memory_and_launches_are_counted_side_by_side(namespace, built, caller, maps):
    namespace.probe(probes=["cuda_mem", "cuda_launch"], libraries=[built["push"]])
    with caller(built["push"]) as process:
        process.ok("cuMemAlloc_v2", None, 4096)
        process.ok("cuLaunchKernel", FUNCTION, 0)
        (told,) = namespace.info()["processes"]
        assert told["held_bytes"]["device"] == 4096 and counts(maps) == {(process.pid, "kernel"): (1, 0)}
    assert namespace.info()["counters"]["calls"] == 1


def test_what_a_hit_costs_is_measured_with_probes_that_are_hit(monkeypatch):
    """Each call of the function runs both programs, and none is left afterwards."""
    links, runs, attach, cheapest = [], [], trap.kernel.attach_idle, trap._cheapest_ns

    def attached(path, *, returns):
        links.append(attach(path, returns=returns))
        return links[-1]

    def timed(function):
        took = cheapest(function)
        runs.extend(_program(struct.unpack_from("=III", info(link, 64))[2]).runs for link in links)
        return took

    monkeypatch.setattr(trap.kernel, "attach_idle", attached)
    monkeypatch.setattr(trap, "_cheapest_ns", timed)
    statistics = bpf(ENABLE_STATISTICS, struct.pack("=I", 0))
    cost = trap.hit_ns()
    os.close(statistics)
    assert runs == [trap._CALLS * trap._ROUNDS] * 2 and 20 < cost < 1e6
    for link in links:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(link)


def test_what_a_launch_is_said_to_cost_is_what_it_costs(namespace, built, maps):
    """The cheapest of short rounds, in which nothing else ran."""
    library = ctypes.CDLL(str(built["push"]))

    def cheapest():
        return min(timeit.repeat(lambda: library.launch_many(FUNCTION, 200), number=1, repeat=100)) * 1e9 / 200

    bare = cheapest()
    namespace.probe(probes=["cuda_launch"], libraries=[built["push"]])
    extra = cheapest() - bare
    told = launches.counters(maps)
    assert told["launch_hits"] == 2 * 100 * 200
    computed = 2 * (trap.hit_ns() + told["launch_programs_ns"] / told["launch_hits"])
    assert computed / 3 < extra < computed * 3
