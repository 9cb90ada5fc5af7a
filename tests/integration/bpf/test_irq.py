# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What gpu_irq counts: interrupts of a made-up handler of the driver's, and real ones of this machine's devices in a build that is told their name."""

from __future__ import annotations

import base64
import os
import shutil
import struct
import subprocess
import zlib
from pathlib import Path

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf import irqs, probes
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.libbpf import LoadedObject
from kernel_memory import PAGE, KernelMemory, run

BPF = Path(__file__).parents[3] / "bpf"
NOT_OURS, HANDLED, WAKE_THREAD = 0, 1, 2


@pytest.fixture
def maps(namespace):
    namespace.probe(probes=["gpu_irq"])
    return Path(namespace.bpffs) / "gpu_irq/maps"


@pytest.fixture
def one_cpu():
    """The programs' place for a handler that runs is its CPU's."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    yield
    os.sched_setaffinity(0, allowed)


@pytest.fixture
def handler():
    """Handlers of this name, all of whose fields point to it: their addresses."""
    made = []

    def make(name):
        made.append(KernelMemory())
        address, fields = made[-1].address, (PAGE - 64) // 8
        made[-1].write(struct.pack("=Q", address + 8 * fields) * fields + name.encode())
        return address

    yield make
    for memory in made:
        memory.close()


def told(maps):
    return [(line.irq, line.handler, line.durations.count, line.unhandled, line.woken) for line in irqs.lines(maps)]


def test_the_drivers_interrupts_are_counted_by_line_and_how_they_ended(maps, handler, one_cpu):
    gpu, switch, disk = handler("nvidia"), handler("nvidia-nvswitch0"), handler("nvme0q1")
    with LoadedObject(probes.PROBES["gpu_irq"].image, str(maps), {}, {}) as loaded:
        entry, leave = loaded.program_fd("on_entry"), loaded.program_fd("on_exit")
        for irq, action, result in (
            (70, gpu, HANDLED),
            (70, gpu, NOT_OURS),
            (71, gpu, WAKE_THREAD),
            (9, switch, HANDLED),
            (5, disk, HANDLED),
        ):
            run(entry, irq, action)
            run(leave, irq, action, result)
        run(leave, 70, gpu, HANDLED)  # a program that is attached twice, or whose entry was before it
    assert told(maps) == [(9, "nvidia-nvswitch0", 1, 0, 0), (70, "nvidia", 2, 1, 0), (71, "nvidia", 1, 0, 1)]
    line = next(line for line in irqs.lines(maps) if line.irq == 70)
    assert sum(line.durations.slots) == 2 and 0 < line.durations.total_ns < 1e9
    assert irqs.counters(maps) == {"irqs_full": 0}


def test_lines_that_have_no_room_are_told(maps, handler, one_cpu):
    gpu = handler("nvidia")
    with LoadedObject(probes.PROBES["gpu_irq"].image, str(maps), {}, {}) as loaded:
        entry, leave = loaded.program_fd("on_entry"), loaded.program_fd("on_exit")
        for irq in range(4100):
            run(entry, irq, gpu)
            run(leave, irq, gpu, HANDLED)
    assert len(told(maps)) == 4096 and irqs.counters(maps) == {"irqs_full": 4}


def real_counts(name):
    """By line, of /proc/interrupts."""
    rows = [row.split() for row in Path("/proc/interrupts").read_text().splitlines() if name in row]
    return {int(row[0][:-1]): sum(int(each) for each in row[1 : 1 + os.cpu_count()]) for row in rows}


def test_real_interrupts_are_the_kernels_own_number(namespace, monkeypatch, tmp_path):
    """While new links replace old ones, too: two sets at once count each of them once."""
    name = next(
        (row.split()[-1][:6] for row in Path("/proc/interrupts").read_text().splitlines() if "virtio" in row or "nvme" in row), None
    )
    if not name or not shutil.which("clang"):
        pytest.skip("no device whose interrupts a test can cause, or no compiler")
    shutil.copytree(BPF, tmp_path / "bpf")
    compiler = f"CLANG=clang -DHANDLERS='\"{name}\"'"
    subprocess.run(["make", "-s", "-C", tmp_path / "bpf", compiler, "gpu_irq.o"], check=True)
    image = (tmp_path / "bpf/gpu_irq.o").read_bytes()

    def ship(version):
        monkeypatch.setitem(probes.OBJECTS, "gpu_irq", base64.b64encode(zlib.compress(image + bytes(version))).decode())

    ship(0)
    namespace.probe(probes=["gpu_irq"])
    maps = Path(namespace.bpffs) / "gpu_irq/maps"

    def both():
        """The kernel's before, ours, the kernel's after."""
        before = real_counts(name)
        ours = {line.irq: line.durations.count for line in irqs.lines(maps)}
        return before, ours, real_counts(name)

    first = both()
    for version in range(2):
        with open(tmp_path / f"file{version}", "wb") as file:
            for _write in range(20):
                file.write(os.urandom(4096))
                file.flush()
                os.fsync(file.fileno())
        ship(version + 1)
        assert [step["action"] for step in namespace.probe(probes=["gpu_irq"])["actions"]] == ["attach"] * 2 + ["detach"] * 2
    last = both()
    busy = {irq for irq, count in last[0].items() if count >= first[2][irq] + 20}
    assert busy, "the writes have caused interrupts"
    for irq in busy:
        counted = last[1][irq] - first[1].get(irq, 0)
        assert last[0][irq] - first[2][irq] <= counted <= last[2][irq] - first[0][irq]


def test_info_tells_the_lines_and_a_second_run_changes_nothing(maps, namespace, handler, one_cpu):
    gpu = handler("nvidia")
    with LoadedObject(probes.PROBES["gpu_irq"].image, str(maps), {}, {}) as loaded:
        run(loaded.program_fd("on_entry"), 4000, gpu)
        run(loaded.program_fd("on_exit"), 4000, gpu, HANDLED)
    assert not namespace.probe(probes=["gpu_irq"])["changed"]
    said = namespace.info(probe="gpu_irq")
    assert {link["name"].rsplit("_", 1)[1] for link in said["links"]} == {"entry", "exit"} and said["attached"]
    (line,) = said["irqs"]
    assert (line["irq"], line["handler"], line["pci_bus_id"], line["count"]) == (4000, "nvidia", None, 1)
    namespace.probe("absent", probes=["gpu_irq"])
    assert namespace.info(probe="gpu_irq") == {"attached": False, "links": []} and not Path(namespace.bpffs).exists()
