# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the loop costs, on the machine that runs this. Figures to read, never a test that can flake."""

from __future__ import annotations

import argparse
import os
import platform
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path[:0] = [
    str(REPOSITORY / "tests" / "support"),
    str(REPOSITORY / "roles" / "simulated_gpu_node" / "files"),
    str(REPOSITORY / ".ansible" / "collections"),
]

import deliveries  # noqa: E402
import exporter  # noqa: E402
import mig_plans  # noqa: E402
import storm  # noqa: E402
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.store import Ledger  # noqa: E402
from ansible_collections.gpuops.remediation.plugins.module_utils._xid.lines import parse_line  # noqa: E402
from latency import latency  # noqa: E402
from ledgers import fresh_schema  # noqa: E402
from loop import Controller  # noqa: E402
from postgresql import running_postgresql  # noqa: E402

GIB = 1 << 30
MESSAGES = "\n| messages at the event source | all of them | one of them |\n| --- | --- | --- |"
LINE = "NVRM: Xid (PCI:0000:00:06): 31, pid=525, name=crash, channel 0x0000000a, intr 00000000. MMU Fault: ENGINE GRAPHICS"


@contextmanager
def measured() -> Iterator[Callable[[], tuple[float, float]]]:
    """Wall seconds, and CPU seconds of this process and the children that it waited for."""

    def spent() -> float:
        return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))

    wall, cpu = time.monotonic(), spent()
    yield lambda: (time.monotonic() - wall, spent() - cpu)


def show(what: str, figures: list[float], unit: str) -> None:
    print(f"| {what} | {min(figures):.3g} | {statistics.median(figures):.3g} | {max(figures):.3g} | {unit} |", flush=True)


def loop(runs: int) -> None:
    """From the alert to a contained GPU; each run has a fresh node and a fresh ledger."""
    walls, cpus, spent = [], [], []
    for _attempt in range(runs):
        with tempfile.TemporaryDirectory(prefix="gpuops-bench-") as folder, Controller(Path(folder)) as controller:
            node = controller.node("bench")
            node.start([3], "train", 40 * GIB)
            node.xid(3, 48)
            node.row_remap(3, failure=True)
            controller.mode("act")
            alert = str(controller.alert("bench", 3, 48))
            with measured() as so_far:
                run = controller.remediate(alert_file=alert)
                wall, cpu = so_far()
            assert run.ok, run.output
            [incident] = controller.incidents()
            assert incident["state"] == "contained", incident
            walls.append(wall)
            cpus.append(cpu)
            spent.append(incident["budget"]["spent_seconds"])
    show("one bare host, alert to contained", spent, "s of 720")
    show("the whole ansible-playbook run", walls, "s")
    show("its CPU time", cpus, "s")


def ledger(writes: int) -> None:
    with tempfile.TemporaryDirectory(prefix="gpuops-bench-") as folder:
        store = Ledger.open(f"sqlite:///{folder}/ledger.db")
        times = []
        for number in range(writes):
            began = time.perf_counter()
            store.notify(f"bench-{number}", "bench", {})
            times.append((time.perf_counter() - began) * 1e3)
        show("one committed write to a SQLite ledger", times, "ms")


def parser(lines: int) -> None:
    began = time.perf_counter()
    for _attempt in range(lines):
        parse_line(LINE)
    show("one Xid line parsed", [(time.perf_counter() - began) / lines * 1e6], "us")


def messages() -> None:
    print(MESSAGES)
    with tempfile.TemporaryDirectory(prefix="gpuops-bench-") as folder:
        deliveries.show("SQLite", Path(folder), f"sqlite:///{folder}/ledger.db")
        with running_postgresql() as server:  # without fsync
            deliveries.show("PostgreSQL", Path(folder), fresh_schema(server))
        deliveries.show_rulebook(Path(folder))


def rulebook() -> None:
    print(MESSAGES)
    with tempfile.TemporaryDirectory(prefix="gpuops-bench-") as folder:
        deliveries.show_rulebook(Path(folder))


def main() -> None:
    alone = {"exporter": exporter.show, "messages": messages, "rulebook": rulebook, "storm": storm.show, "worked_off": storm.work_off}
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("part", nargs="?", choices=sorted(alone), help="this part alone")
    part = arguments.parse_args().part
    print(
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}, load {os.getloadavg()[0]:.1f}\n"
    )
    if part:
        return alone[part]()
    print("| what | min | median | max | unit |\n| --- | --- | --- | --- | --- |")
    parser(20_000)
    ledger(200)
    loop(runs=3)
    for stage, seconds in latency(rounds=5).items():
        show(f"a fault on a node, until {stage}", seconds, "s")
    messages()
    storm.show()
    mig_plans.show()
    exporter.show()


if __name__ == "__main__":
    main()
