# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The whole crash matrix: who is killed, how, and where a run stands. Two CPUs need hours; --jobs is for a machine that has more.

Each job plays some cases at one place, which it has for itself, and adds what came of them to a file of JSON lines. Where the program is
interrupted, the table has what was done by then, and --resume does the rest; `cat` makes one file of several.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import signal
import sys
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path[:0] = [
    str(REPOSITORY / "tests" / "support"),
    str(REPOSITORY / "roles" / "simulated_gpu_node" / "files"),
    str(REPOSITORY / ".ansible" / "collections"),
]

from crash import TARGETS  # noqa: E402
from jobs import jobs_of, play_all  # noqa: E402
from places import PLACES, all_cases  # noqa: E402
from record import Record, Turn  # noqa: E402


def options() -> argparse.Namespace:
    boundaries = list(dict.fromkeys(case.boundary for place in PLACES for case in all_cases(place)))
    parser = argparse.ArgumentParser(prog="tests/crash", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("places", nargs="*", default=list(PLACES), help=f"of {', '.join(PLACES)}")
    parser.add_argument("--who", action="append", choices=TARGETS, help="may be given several times, as --how and --after")
    parser.add_argument("--how", action="append", choices=["SIGKILL", "SIGTERM", "SIGQUIT"])
    parser.add_argument("--after", action="append", choices=boundaries)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="so many at once")
    parser.add_argument("--size", type=int, default=6, help="cases in a job")
    parser.add_argument("--slice", default="1/1", metavar="I/N", help="of N parts of the matrix, the Ith")
    parser.add_argument("--into", type=Path, default=REPOSITORY / "tests" / "output" / "crash-matrix.jsonl", metavar="FILE")
    parser.add_argument("--resume", action="store_true", help="leave out what is in the file")
    parser.add_argument("--table", action="store_true", help="only show what is in the file")
    return parser.parse_args()


def turns(chosen: argparse.Namespace) -> list[Turn]:
    part, parts = map(int, chosen.slice.split("/"))
    found = [
        Turn(place, repeat, case)
        for repeat in range(chosen.repeats)
        for place in chosen.places
        for case in all_cases(place)
        if case.who in (chosen.who or [case.who])
        and case.how.name in (chosen.how or [case.how.name])
        and case.boundary in (chosen.after or [case.boundary])
    ]
    return found[part - 1 :: parts]


def main() -> int:
    chosen = options()
    record, wanted = Record(chosen.into), turns(chosen)
    if not chosen.table:
        run(chosen, record, wanted)
    print("\n".join(record.table(wanted)))
    outcomes = record.outcomes()
    missing = len(set(wanted) - set(outcomes))
    faulty = sum(1 for one in outcomes.values() if one.fault)
    print(f"\n{len(outcomes)} cases played, {faulty} of them with a fault; {missing} were to be played and were not")
    return 1 if faulty or missing else 0


def run(chosen: argparse.Namespace, record: Record, wanted: list[Turn]) -> None:
    record.path.parent.mkdir(parents=True, exist_ok=True)
    with record.path.open("a" if chosen.resume else "w"):  # emptied, not removed: it may be /dev/null
        pass
    done = record.outcomes()
    began = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_arguments: signal.raise_signal(signal.SIGINT))
    try:
        play_all(list(jobs_of((turn for turn in wanted if turn not in done), chosen.size)), chosen.jobs, record.path)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    record.add_run(
        f"{dt.datetime.now():%Y-%m-%d %H:%M}, {os.cpu_count()} CPUs, {chosen.jobs} jobs at once, {time.monotonic() - began:.0f} s, "
        f"load average {os.getloadavg()[0]:.0f}"
    )


if __name__ == "__main__":
    sys.exit(main())
