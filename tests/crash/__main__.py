# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The whole crash matrix, as a table: who is killed, how, and where a run stands. It takes hours; parts of it are chosen by name.

python tests/crash [bare] [kubernetes] [--who NAME]... [--how NAME]... [--after BOUNDARY]... [--repeats N]
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from signal import SIGQUIT, Signals

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path[:0] = [
    str(REPOSITORY / "tests" / "support"),
    str(REPOSITORY / "roles" / "simulated_gpu_node" / "files"),
    str(REPOSITORY / ".ansible" / "collections"),
]

from cluster import Cluster  # noqa: E402
from crash import BOUNDARIES, IN_PROCESSES, TARGETS, Case, Crashes  # noqa: E402
from fleet import Fleet  # noqa: E402
from ledgers import fresh_schema  # noqa: E402
from loop import Controller  # noqa: E402
from postgresql import postgresql_server  # noqa: E402


@contextlib.contextmanager
def bare(folder: Path) -> Iterator[Crashes]:
    with Controller(folder / "controller") as controller:
        controller.ledger(write=True).set_mode("act", "crash matrix", "it has to act")
        with Crashes(controller).running() as crashes:
            yield crashes


@contextlib.contextmanager
def kubernetes(folder: Path) -> Iterator[Crashes]:
    """With its ledger in PostgreSQL."""
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(Cluster(folder / "cluster"))
        server = stack.enter_context(postgresql_server())
        fleet = stack.enter_context(Fleet(folder / "controller", cluster, ledger_url=fresh_schema(server.url)))
        fleet.set("act", nodes=1000)
        yield stack.enter_context(Crashes(fleet, server).running())


PLACES = {"bare": bare, "kubernetes": kubernetes}


def cases(place: str, who: list[str], how: list[Signals], after: list[str]) -> Iterator[Case]:
    for boundary in after:
        if place == "kubernetes" and boundary in IN_PROCESSES:
            continue
        for target in who:
            if target == "postgresql":
                if place == "kubernetes":
                    yield Case(target, SIGQUIT, boundary)
                continue
            for number in how:
                yield Case(target, number, boundary)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("places", nargs="*", default=list(PLACES), metavar="bare|kubernetes")
    parser.add_argument("--who", action="append", choices=TARGETS)
    parser.add_argument("--how", action="append", choices=["SIGKILL", "SIGTERM"])
    parser.add_argument("--after", action="append", choices=BOUNDARIES)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    how = [Signals[name] for name in options.how or ["SIGKILL", "SIGTERM"]]
    print(
        f"{dt.date.today()}, {os.cpu_count()} CPUs\n\n| where | who, how, after which stage | runs | lost, double or left |\n| --- | --- | --- | --- |"
    )
    faulty = 0
    for place in options.places:
        found: Counter[tuple[Case, str]] = Counter()
        began = time.monotonic()
        for _repeat in range(options.repeats):
            with tempfile.TemporaryDirectory(prefix="gpuops-crash-") as folder, PLACES[place](Path(folder)) as crashes:
                for case in cases(place, options.who or list(TARGETS), how, options.after or list(BOUNDARIES)):
                    crashes.crash(case)
                crashes.reconcile()
                faults = crashes.faults()
                found.update((case, faults.get(node, "none")) for node, case in crashes.cases.items())
        for (case, fault), count in found.items():
            print(f"| {place} | {case} | {count} | {fault} |")
            faulty += count if fault != "none" else 0
        print(f"\n{place}: {sum(found.values())} cases in {time.monotonic() - began:.0f} s, load {os.getloadavg()[0]:.1f}\n", flush=True)
    return 1 if faulty else 0


if __name__ == "__main__":
    sys.exit(main())
