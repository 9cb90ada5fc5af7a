# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The probes cuda_launch, gpu_irq and gpu_vm on a real GPU, by hand: what they count of known numbers, and what they cost.

    mount -t bpf bpf /sys/fs/bpf; python3 tests/h200/other_probes.py > evidence.md

Wants what probes.py wants, but for PyTorch. They are removed at the end; nothing of the GPU's settings is changed.
"""

from __future__ import annotations

import collections
import datetime
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from checkout import make_importable
from probes import HERE, Gpu, Probes, say, spread, table

NAMES = ("cuda_launch", "gpu_irq", "gpu_vm")
TIMES = {"kernel": 20000, "cooperative": 5000, "refused": 1000, "wait": 2000, "ioctl": 3000}
ROUNDS = 9


def described(probes: Probes, name: str) -> dict[str, Any]:
    from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.info import describe
    from ansible_collections.gpuops.remediation.plugins.module_utils._node.procfs import ProcFs

    return describe(str(probes.top), name, ProcFs("/proc"))


def launched(probes: Probes, pid: int) -> dict[str, tuple[int, int]]:
    return {one["kind"]: (one["count"], one["failed"]) for one in described(probes, "cuda_launch")["launches"] if one["pid"] == pid}


def called(probes: Probes, pid: int) -> dict[tuple[str, str], tuple[int, int]]:
    calls = described(probes, "gpu_vm")["calls"]
    return {(one["device"], one["call"]): (one["count"], one["failed"]) for one in calls if one["pid"] == pid}


def since(before: dict[Any, tuple[int, int]], after: dict[Any, tuple[int, int]]) -> dict[Any, tuple[int, int]]:
    """What has come to each count and to its failures; without what nothing has come to."""
    gone = {key: (count - before.get(key, (0, 0))[0], failed - before.get(key, (0, 0))[1]) for key, (count, failed) in after.items()}
    return {key: (count, failed) for key, (count, failed) in gone.items() if count}


def interrupts() -> int:
    """Of the driver's lines, as the kernel has them."""
    lines = [line.split() for line in Path("/proc/interrupts").read_text().splitlines()]
    return sum(int(word) for line in lines if line[-1].startswith("nvidia") for word in line[1:] if word.isdigit())


def counts(probes: Probes, process: subprocess.Popen[str], do: Any) -> None:
    rows: list[Sequence[Any]] = [("asked for", "counted", "in the kernel's own count")]
    for name, times in TIMES.items():
        launches, calls = launched(probes, process.pid), called(probes, process.pid)
        before, irqs = interrupts(), sum(line["count"] for line in described(probes, "gpu_irq")["irqs"])
        do(name, times)
        time.sleep(0.2)
        new, asked = since(launches, launched(probes, process.pid)), since(calls, called(probes, process.pid))
        told = [f"{kind}: {count}, {failed} failed" for kind, (count, failed) in new.items()]
        told += [f"{call} of {device}: {count}, {failed} failed" for (device, call), (count, failed) in asked.items()]
        ours = sum(line["count"] for line in described(probes, "gpu_irq")["irqs"]) - irqs
        rows.append(
            (f"{times} times {name}", "; ".join(told) or "none", f"interrupts: {ours} counted, {interrupts() - before} in /proc/interrupts")
        )
    table("Known numbers", *rows)
    for name in NAMES:
        print(f"\n{name}, uncounted: {described(probes, name)['counters']}", flush=True)
    lines = described(probes, "gpu_irq")["irqs"]
    table("The driver's interrupts", ("line", "handler", "GPU", "count", "unhandled", "handlers' time, mean"),
          *((one["irq"], one["handler"], one["pci_bus_id"], one["count"], one["unhandled"],
             f"{one['total_ns'] / max(one['count'], 1):.0f} ns") for one in lines))  # fmt: skip


def cost(probes: Probes, do: Any) -> None:
    took: dict[tuple[str, bool], list[float]] = collections.defaultdict(list)
    for _round in range(ROUNDS):
        for attached in (False, True):
            probes.bring("present" if attached else "absent", *NAMES)
            for name in ("kernel", "wait", "ioctl"):
                took[name, attached].append(do(name, TIMES[name]))
    rows: list[Sequence[Any]] = [("one", "without, ns", "with all three, ns", "longer by, of medians")]
    for name in ("kernel", "wait", "ioctl"):
        longer = statistics.median(took[name, True]) - statistics.median(took[name, False])
        rows.append((name, spread(took[name, False]), spread(took[name, True]), f"{longer:.0f} ns"))
    table(f"What they cost, {ROUNDS} times with and without", *rows)


def measure(folder: Path) -> None:
    gpu, probes = Gpu(), Probes(folder)
    print(f"# Launches, interrupts and calls on a real GPU, {datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M} UTC\n")
    print(f"{gpu.about}, kernel {os.uname().release}, {os.cpu_count()} CPUs.", flush=True)
    subprocess.run(["gcc", "-O2", "-o", folder / "launches", HERE / "launches.c", "-ldl"], check=True)
    try:
        brought = probes.bring("present", *NAMES)
        links = {name: len(brought["after"][name]["links"]) for name in NAMES}
        print(f"\nLinks: {links}. Not probed: {brought['not_probed'] or 'nothing'}.")
        with subprocess.Popen([folder / "launches"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout
            assert process.stdout.readline() == "ready\n"

            def do(name: str, times: int) -> float:
                say(process, f"{name} {times}")
                assert process.stdout
                return float(process.stdout.readline())

            counts(probes, process, do)
            cost(probes, do)
            process.kill()
    finally:
        probes.bring("absent", *NAMES)
    left = sorted(str(path) for path in probes.top.rglob("*")) if probes.top.exists() else []
    print(f"\nLeft in {probes.top.parent} at the end: {left or 'nothing'}.")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        make_importable(Path(folder))
        measure(Path(folder))


if __name__ == "__main__":
    main()
