# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import struct

from ansible_collections.gpuops.remediation.plugins.module_utils._bpf import callers, launches, maps
from ansible_collections.gpuops.remediation.plugins.module_utils._node.procfs import ProcFs
from fake_bpf import FakeBpf

VALUE = struct.pack("=QQII16sQ", 11, 12, 1, 0, b"python\0junk", 3) + struct.pack("=34Q", 7, 900, *[7], *[0] * 31)


def key(pid, start_ticks, kind):
    return struct.pack("=QII", start_ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK") + 5, pid, kind)


def test_every_function_has_its_variant_for_a_stream_of_each_thread():
    assert launches.LAUNCH_COOKIES["cuLaunchKernel"] == launches.LAUNCH_COOKIES["cuLaunchKernelEx_ptsz"] == 1
    assert launches.LAUNCH_COOKIES["cuLaunchCooperativeKernel_ptsz"] == 2 and launches.LAUNCH_COOKIES["cuGraphLaunch"] == 3
    assert len(launches.LAUNCH_COOKIES) == 8


def test_launches_are_read_by_process_and_kind_and_who_has_ended_is_swept(tmp_path, monkeypatch):
    """A pid that has come again is another process."""
    me = ProcFs("/proc").process(os.getpid())
    contents = {key(me.pid, me.start_ticks, kind): VALUE for kind in (3, 1)}
    contents[key(me.pid, me.start_ticks - 1, 1)] = VALUE
    contents[key(2**22 + 1, 5, 1)] = VALUE
    monkeypatch.setattr(maps, "bpf", FakeBpf({str(tmp_path / "launches"): (16, 320, contents)}))
    proc, found = ProcFs("/proc"), launches.launches(tmp_path)
    mine = [each for each in found if each.tgid == me.pid]
    living = [(each.kind.name, callers.is_alive(each.tgid, each.start_boottime_ns, proc)) for each in mine]
    assert living == [("LAUNCH_KERNEL", False), ("LAUNCH_KERNEL", True), ("LAUNCH_GRAPH", True)]
    told = found[0]
    assert (told.comm, told.ns_tgid, told.failed, told.durations.count, told.durations.total_ns) == ("python", 1, 3, 7, 900)
    assert vars(told.cgroup) == {"v2": 11, "v1": 12}
    assert callers.sweep(tmp_path / "launches", proc) == 2 and len(contents) == 2
