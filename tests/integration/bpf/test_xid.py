# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What gpu_xid counts of lines in this machine's kernel log. Each test has a GPU of its own, so that other lines do not matter."""

from __future__ import annotations

import ctypes
import random
import struct
import time
from pathlib import Path

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf import xids
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.libbpf import LoadedObject
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.maps import PinnedMap, bpf
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.probes import PROBES
from cluster.objects import wait_until
from kernel_memory import PAGE, KernelMemory, run

MAP_UPDATE = 2


@pytest.fixture
def maps(namespace):
    namespace.probe(probes=["gpu_xid"])
    return Path(namespace.bpffs) / "gpu_xid/maps"


@pytest.fixture
def pci():
    return f"fade:{random.randrange(256):02x}:{random.randrange(256):02x}"


def say(text):
    """Opened for each line: the kernel limits the rate of one writer."""
    with open("/dev/kmsg", "w") as log:
        log.write(f"<6>{text}")


def told(maps, pci):
    return {each.xid: (each.count, each.lines, each.traces) for each in xids.counts(maps) if each.pci_bus_id == pci}


def test_lines_within_a_second_are_one_error(maps, pci):
    for text in (
        "Graphics SM Warp Exception on (GPC 1, TPC 4, SM 0): Misaligned Address",
        "Graphics Exception: ESR 0x519730=0x500000f",
        "pid=525",
    ):
        say(f"NVRM: Xid (PCI:{pci}): 13, {text}")
    say(f"NVRM: Xid (PCI:{pci}): 31, pid=525, name=crash, Ch 00000008, intr 00000000. MMU Fault")
    wait_until(lambda: told(maps, pci) == {13: (1, 3, 0), 31: (1, 1, 0)}, "both errors counted")
    time.sleep(1.1)
    say(f"NVRM: Xid (PCI:{pci}): 13, again")
    wait_until(lambda: told(maps, pci) == {13: (2, 4, 0), 31: (1, 1, 0)}, "the later one counted")


def test_a_second_run_changes_nothing(maps, namespace):
    assert not namespace.probe(probes=["gpu_xid"])["changed"]


def test_every_form_of_the_line(maps, pci):
    say(f"NVRM: Xid (PCI:{pci} GPU-I:02 GPU-CI:00): 43, pid=1, name=a, Ch 1")
    say(f"NVRM: Xid (PCI:{pci} GPU-I:02): 154, GPU recovery action changed")
    say(f"[   12.345678] NVRM: Xid (PCI:{pci}): 79, with the time before it")
    say(f"NVRM: Xid (PCI:{pci}.0): 48, with its function")
    wait_until(lambda: set(told(maps, pci)) == {43, 154, 79, 48}, "all forms")


def test_only_the_drivers_own_lines_count(maps, pci):
    say(f"somebody: NVRM: Xid (PCI:{pci}): 79, within another message")
    say(f"NVRM: GPU at PCI:{pci}: GPU-0")
    say(f"NVRM: Xid (PCI:{pci}): , without a number")
    say(f"NVRM: Xid (PCI:{pci}): 63, the last")
    wait_until(lambda: 63 in told(maps, pci), "the last line")
    assert set(told(maps, pci)) == {63}
    assert xids.counters(maps)["unreadable"] >= 1


def test_events_can_be_followed_and_the_last_ones_stay(maps, namespace, pci):
    say(f"NVRM: Xid (PCI:{pci}): 94, first")
    wait_until(lambda: told(maps, pci), "the first event")
    (first,) = [event for event in xids.events(maps) if event.pci_bus_id == pci]
    assert (first.xid, first.source, first.text) == (94, "kernel_log", f"NVRM: Xid (PCI:{pci}): 94, first")
    for number in range(256):
        say(f"NVRM: Xid (PCI:{pci}): 95, {number}")
    wait_until(lambda: any(event.text.endswith(" 255") for event in xids.events(maps)), "the last event")
    later = [event for event in xids.events(maps, after=first.number) if event.pci_bus_id == pci]
    assert len(later) >= 250 and all(event.xid == 95 for event in later)
    assert [event.number for event in later] == sorted(event.number for event in later)


def test_a_line_ends_where_the_kernel_says(maps, pci):
    """What lies behind it in memory is another line's."""
    memory = KernelMemory()
    line = f"NVRM: Xid (PCI:{pci}): 13"
    with LoadedObject(PROBES["gpu_xid"].image, str(maps), {}, {}) as loaded:
        for length in (len(line), len(line) - 4):
            memory.write(f"{line}5, of an older line".encode())
            run(loaded.program_fd("on_console"), memory.address, length)
    memory.close()
    assert told(maps, pci) == {13: (1, 1, 0)}
    assert [event.text for event in xids.events(maps) if event.pci_bus_id == pci] == [line]


def test_an_error_that_another_cpu_saw_a_moment_later_is_the_same(maps, pci):
    later = time.clock_gettime_ns(time.CLOCK_BOOTTIME) + 10**9
    with PinnedMap(str(maps / "xids"), read_only=False) as counts:
        key, value = (
            ctypes.create_string_buffer(data)
            for data in (struct.pack("=20sI", pci.encode(), 13), struct.pack("=5Q", 1, 1, 0, later, later))
        )
        bpf(MAP_UPDATE, struct.pack("=IIQQQ", counts.fd, 0, ctypes.addressof(key), ctypes.addressof(value), 0))
    say(f"NVRM: Xid (PCI:{pci}): 13, now")
    wait_until(lambda: told(maps, pci) == {13: (1, 2, 0)}, "the line counted, and no other error")


def test_the_tracepoint_and_the_log_tell_of_one_error(maps, pci):
    """The driver's tracepoint, with a device all of whose fields point to its name."""
    memory = KernelMemory()
    name, text = f"{pci}.0".encode(), b"pid=525, name=crash"
    fields = (PAGE - 128) // 8
    memory.write(struct.pack("=Q", memory.address + 8 * fields) * fields + name.ljust(64, b"\0") + text)
    with LoadedObject(PROBES["gpu_xid"].image, str(maps), {}, {}) as loaded:
        run(loaded.program_fd("on_xid"), memory.address, 62, memory.address + 8 * fields + 64)
    memory.close()
    say(f"NVRM: Xid (PCI:{pci}): 62, pid=525, name=crash")
    wait_until(lambda: told(maps, pci) == {62: (1, 1, 1)}, "one error of two sources")
    events = [event for event in xids.events(maps) if event.pci_bus_id == pci]
    assert [(event.source, event.text) for event in events] == [
        ("tracepoint", text.decode()),
        ("kernel_log", f"NVRM: Xid (PCI:{pci}): 62, {text.decode()}"),
    ]
