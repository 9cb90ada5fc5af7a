# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What came of the cases, as lines of JSON that jobs add to one file as they go, and the table of them: what was cut off still counts."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from signal import Signals
from typing import Any, NamedTuple

from crash import TARGETS, Case
from places import PLACES, Outcome

FAULT_CHARACTERS = 500  # enough for a row of a table; the log has the rest


class Turn(NamedTuple):
    """One of a case's repeats at one place."""

    place: str
    repeat: int
    case: Case


class Record:
    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, place: str, repeat: int, outcomes: Sequence[Outcome]) -> None:
        self._append(
            {
                "place": place,
                "repeat": repeat,
                "who": case.who,
                "how": case.how.name,
                "boundary": case.boundary,
                "fault": " ".join(fault.split())[:FAULT_CHARACTERS],
                "note": note,
            }
            for case, fault, note in outcomes
        )

    def add_run(self, words: str) -> None:
        self._append([{"run": words}])

    def outcomes(self) -> dict[Turn, Outcome]:
        found = {}
        for line in self._lines():
            if "run" not in line:
                case = Case(line["who"], Signals[line["how"]], line["boundary"])
                found[Turn(line["place"], line["repeat"], case)] = Outcome(case, line["fault"], line["note"])
        return found

    def table(self, wanted: Sequence[Turn]) -> Iterator[str]:
        """By who is killed and how; a fault with the boundaries at which it came. A job that fails takes what its cases came to with it."""
        yield from (line["run"] for line in self._lines() if "run" in line)
        yield "\n| where | who, how | cases | played | lost, double or left | note |\n| --- | --- | --- | --- | --- | --- |"
        outcomes = self.outcomes()
        rows: defaultdict[tuple[str, str, str], list[Turn]] = defaultdict(list)
        for turn in sorted(
            {*wanted, *outcomes}, key=lambda one: (list(PLACES).index(one.place), TARGETS.index(one.case.who), one.case.how)
        ):
            rows[PLACES[turn.place][0], turn.case.who, turn.case.how.name].append(turn)
        for (where, who, how), turns in rows.items():
            played = [outcomes[turn] for turn in turns if turn in outcomes]
            faults: defaultdict[str, list[str]] = defaultdict(list)
            for one in played:
                if one.fault:
                    faults[one.fault].append(one.case.boundary)
            found = "; ".join(f"{fault}: {len(at)}, after {', '.join(dict.fromkeys(at))}" for fault, at in faults.items())
            notes = "; ".join(f"{note}: {count}" for note, count in Counter(one.note for one in played if one.note).items())
            yield f"| {where} | {who}, {how} | {len(turns)} | {len(played)} | {found or 'none'} | {notes} |"

    def _append(self, lines: Iterable[Any]) -> None:
        """In one write, so that nobody else's comes in between."""
        with self.path.open("ab", buffering=0) as file:
            file.write("".join(json.dumps(line) + "\n" for line in lines).encode())

    def _lines(self) -> Iterator[Any]:
        return map(json.loads, self.path.read_text().splitlines())
