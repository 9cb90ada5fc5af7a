# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What is told of launches, of system calls and of interrupts, with the process where it still lives."""

from __future__ import annotations

import os
import struct

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf import info, kernel, maps
from ansible_collections.gpuops.remediation.plugins.module_utils._node.procfs import ProcFs
from fake_bpf import FakeBpf

ME = ProcFs("/proc").process(os.getpid())
START_NS = ME.start_ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK") + 7
DURATIONS = struct.pack("=34Q", 3, 6000, *[0] * 11, 3, *[0] * 20)
HISTOGRAM = [{"from_ns": 2048, "count": 3}]
FIRST = struct.pack("=QQII16s", 11, 12, 1, 0, b"python")


@pytest.fixture
def told(tmp_path, monkeypatch):
    """Of a probe with one link and these maps."""

    def of(probe, **contents):
        (tmp_path / probe / "links").mkdir(parents=True)
        link = tmp_path / probe / "links/abc_kernel_enter"
        link.touch()
        fake = FakeBpf({str(tmp_path / probe / "maps" / name): each for name, each in contents.items()}, {str(link): (3, 4)})
        for module in (maps, kernel):
            monkeypatch.setattr(module, "bpf", fake)
        return info.describe(str(tmp_path), probe, ProcFs("/proc"))

    return of


def counters(*values):
    return (4, 8, {struct.pack("=I", at): struct.pack("=Q", value) for at, value in enumerate(values)})


def test_launches_of_the_living_and_of_those_who_have_ended(told):
    value = FIRST + struct.pack("=Q", 2) + DURATIONS
    contents = {struct.pack("=QII", start, ME.pid, 3): value for start in (START_NS, 1)}
    said = told("cuda_launch", launches=(16, 320, contents), launch_counters=counters(6, 900, 1, 4))
    ended, living = said["launches"]
    assert (living["living"], living["cgroup"], ended["living"], ended["cgroup"]) == (
        True,
        ProcFs("/proc").describe(ME.pid)["cgroup"],
        False,
        None,
    )
    assert (living["pid"], living["ns_pid"], living["comm"], living["kind"], living["failed"]) == (ME.pid, 1, "python", "launch_graph", 2)
    assert (living["count"], living["total_ns"], living["histogram"]) == (3, 6000, HISTOGRAM)
    assert said["counters"] == {"launch_hits": 6, "launch_programs_ns": 900, "launches_full": 1, "abandoned_launches": 4}


def test_system_calls_by_file(told):
    key = struct.pack("=QII24s", START_NS, ME.pid, 2, b"nvidia-uvm")
    value = FIRST + struct.pack("=QQ", 1, 8192) + DURATIONS
    said = told("gpu_vm", vm_calls=(40, 328, {key: value}), vm_counters=counters(5))
    (call,) = said["calls"]
    assert (call["call"], call["device"], call["failed"], call["mapped_bytes"], call["count"]) == ("mmap", "nvidia-uvm", 1, 8192, 3)
    assert (call["pid"], call["living"], call["cgroup_ids"]) == (ME.pid, True, {"v2": 11, "v1": 12}) and said["counters"] == {"vm_full": 5}


def test_interrupts_with_the_gpu_that_has_the_line(told, tmp_path, monkeypatch):
    (tmp_path / "pci/0000:06:00.0/msi_irqs/141").mkdir(parents=True)
    monkeypatch.setattr(info, "_PCI", tmp_path / "pci")
    lines = {struct.pack("=20sI", b"nvidia", irq): DURATIONS + struct.pack("=2Q", 1, 2) for irq in (141, 9)}
    said = told("gpu_irq", irqs=(24, 288, lines), irq_counters=counters(0))
    assert [(each["irq"], each["handler"], each["pci_bus_id"], each["unhandled"], each["woken"]) for each in said["irqs"]] == [
        (9, "nvidia", None, 1, 2),
        (141, "nvidia", "0000:06:00", 1, 2),
    ]
    assert said["irqs"][0]["histogram"] == HISTOGRAM and said["counters"] == {"irqs_full": 0}
