# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import struct

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf import kernel, maps
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.errors import ProbeError
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.info import describe
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.layout import COUNTERS
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.sweep import sweep
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.xids import events
from ansible_collections.gpuops.remediation.plugins.module_utils._node.procfs import ProcFs
from fake_bpf import FakeBpf

MINE = os.getpid()


def usage(device, live):
    return struct.pack("=14Q", device, 0, 0, 0, 0, 0, live, 0, 0, 0, 0, 0, live, 0)


def account(pid, context, device):
    return struct.pack("=QQQQII16s", 5, context, 11, 12, pid, 1, b"python\0junk") + usage(device, 1)


@pytest.fixture
def pinned(tmp_path, monkeypatch):
    """The folder, and the kernel that it stands for."""
    fake = FakeBpf()
    for module in (maps, kernel):
        monkeypatch.setattr(module, "bpf", fake)

    def pin(probe, contents):
        links = tmp_path / probe / "links"
        links.mkdir(parents=True)
        (links / "abc_kernel_on_exit").touch()
        fake.links[str(links / "abc_kernel_on_exit")] = (3, 4)
        fake.maps.update({str(tmp_path / probe / "maps" / name): each for name, each in contents.items()})

    return tmp_path, fake, pin


def counters(count, **values):
    return (4, 8, {struct.pack("=I", at): struct.pack("=Q", values.get(str(at), 0)) for at in range(count)})


def test_a_process_is_the_sum_of_its_accounts(pinned):
    folder, fake, pin = pinned
    fake.statistics = (900, 3, 0)
    pin(
        "cuda_mem",
        {
            "accounts": (8, 168, {bytes(7) + bytes([n]): account(MINE, n, size) for n, size in enumerate((100, 20))}),
            "cgroups": (16, 112, {struct.pack("=QQ", 11, 12): usage(120, 2)}),
            "counters": counters(len(COUNTERS), **{"1": 2}),
            "failures": (24, 8, {struct.pack("=QQII", 11, 12, 1, 2): struct.pack("=Q", 7)}),
        },
    )
    told = describe(str(folder), "cuda_mem", ProcFs("/proc"))
    (process,) = told["processes"]
    assert (process["pid"], process["ns_pid"], process["comm"], process["held_bytes"]["device"]) == (MINE, 1, "python", 120)
    assert told["cgroups"][0]["ids"] == {"v2": 11, "v1": 12} and told["cgroups"][0]["live"]["device"] == 2
    assert told["counters"]["calls"] == 2 and "next_serial" not in told["counters"]
    assert [(each["operation"], each["result"], each["count"]) for each in told["failures"]] == [("allocate", 2, 7)]
    assert [(link["id"], link["runs"], link["run_time_ns"]) for link in told["links"]] == [(3, 3, 900)]


def test_links_without_their_maps_are_an_error_in_words(pinned):
    """Another run takes them away meanwhile, or one was interrupted."""
    folder, _fake, pin = pinned
    pin("gpu_xid", {})
    with pytest.raises(ProbeError, match=r"gpu_xid/maps/.* is missing"):
        describe(str(folder), "gpu_xid", ProcFs("/proc"))


def test_an_event_that_is_being_written_is_left_out(pinned):
    folder, _fake, pin = pinned
    written = struct.pack("=QQ20sIII240s", 300, 9, b"0000:06:00", 79, 1, 0, b"NVRM: Xid (PCI:0000:06:00): 79, gone\n")
    pin(
        "gpu_xid",
        {
            "events": (4, 288, {struct.pack("=I", 0): bytes(288), struct.pack("=I", 44): written}),
            "xids": (24, 40, {struct.pack("=20sI", b"0000:06:00", 79): struct.pack("=5Q", 2, 5, 1, 8, 9)}),
            "xid_counters": counters(3),
        },
    )
    told = describe(str(folder), "gpu_xid", ProcFs("/proc"))
    assert [(each["number"], each["xid"], each["text"]) for each in told["events"]] == [(300, 79, "NVRM: Xid (PCI:0000:06:00): 79, gone")]
    assert [(each["pci_bus_id"], each["count"], each["lines"], each["traces"]) for each in told["xids"]] == [("0000:06:00", 2, 5, 1)]
    assert told["links"][0]["runs"] is None, "the kernel keeps no statistics"
    assert events(folder / "gpu_xid/maps", after=300) == []


def test_an_event_that_is_replaced_while_it_is_read_is_read_again(pinned):
    folder, _fake, pin = pinned

    def event(number, xid, text):
        return struct.pack("=QQ20sIII240s", number, 9, b"0000:06:00", xid, 1, 0, text)

    class Written(dict):
        """As the kernel's copy may find it: the number of the old event and the rest of the new one, then half of the new one, then all of it."""

        reads = iter([event(44, 31, b"new"), event(0, 31, b"ne"), event(300, 31, b"new"), event(300, 31, b"new")])

        def get(self, key, _default=None):
            return next(self.reads) if key in self else None

    pin("gpu_xid", {"events": (4, 288, Written({struct.pack("=I", 44): b""}))})
    assert [(each.number, each.text) for each in events(folder / "gpu_xid/maps")] == [(300, "new")]


def test_only_what_ended_processes_left_is_swept(pinned):
    folder, _fake, pin = pinned
    records = {struct.pack("=QQQ", address, incarnation, 0): bytes(24) for address, incarnation in ((1, 7), (2, 8), (3, 7))}
    primaries = {struct.pack("=QQ", incarnation, 0): bytes(16) for incarnation in (7, 8)}
    pin(
        "cuda_mem",
        {
            "accounts": (8, 168, {}),
            "cgroups": (16, 112, {}),
            "failures": (24, 8, {}),
            "records": (24, 24, records),
            "primaries": (16, 16, primaries),
            "processes": (4, 152, {struct.pack("=I", 99): struct.pack("=Q", 8).ljust(152, b"\0")}),
        },
    )
    assert sweep(folder / "cuda_mem/maps") == 3
    assert [struct.unpack("=QQQ", key)[:2] for key in records] == [(2, 8)] and len(primaries) == 1


def test_cgroups_that_are_gone_and_empty_are_swept(pinned, tmp_path):
    folder, _fake, pin = pinned
    there = (tmp_path / "cgroup/pod").mkdir(parents=True) or (tmp_path / "cgroup/pod").stat().st_ino
    gone, holds, has_account = 1 << 40, 2 << 40, 11  # `account` is in the last
    cgroups = {struct.pack("=QQ", v2, v1): usage(0, 0) for v2, v1 in ((there, 0), (gone, 0), (gone, there), (has_account, 12))}
    cgroups[struct.pack("=QQ", holds, 0)] = usage(5, 1)
    kept = [key for key in cgroups if key != struct.pack("=QQ", gone, 0)]
    failures = {struct.pack("=QQII", v2, 0, 1, 2): struct.pack("=Q", 7) for v2 in (there, gone)}
    pin(
        "cuda_mem",
        {
            "cgroups": (16, 112, cgroups),
            "failures": (24, 8, failures),
            "accounts": (8, 168, {bytes(8): account(MINE, 0, 0)}),
            **{name: (size, 24, {}) for name, size in (("records", 24), ("primaries", 16), ("processes", 4))},
        },
    )
    mounts = tmp_path / "mounts"
    mounts.write_text(f"cgroup2 {tmp_path}/cgroup cgroup2 rw 0 0\nproc /proc proc rw 0 0\n")
    assert sweep(folder / "cuda_mem/maps", mounts) == 2
    assert list(cgroups) == kept
    assert [struct.unpack_from("=Q", key)[0] for key in failures] == [there], (
        "or the map is full some day, and failures are counted no more"
    )
