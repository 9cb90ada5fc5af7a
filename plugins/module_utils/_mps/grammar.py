# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""The control daemon's language: its commands, and its answers as values. Nothing is sent here.

Its answers are texts without a status: it takes a value that it does not understand without a word, so whatever was set is read back.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._mps.errors import BadValue, NoServer, NotUnderstood

ACTIVE, FAULT = "ACTIVE", "FAULT"
TERMINATED = "0"  # what terminate_client answers when it did
_MEMORY = re.compile(r"(\d+)([MG])")
_DEVICE = re.compile(r"(\d+)\s+\S+\s+((?:GPU|MIG)-\S+)\s")


@dataclass(frozen=True)
class Row:
    """A client in the table of `ps`. Of one whose process has gone without the server letting it go the daemon knows no command."""

    pid: int
    server: int
    device: str
    lingers: bool


def memory_text(mib: Optional[int]) -> str:
    """`0G` is what takes a limit away. Only whole numbers with a unit mean what they say: 1.5G becomes 1M, and so does 1T."""
    return "0G" if mib is None else f"{mib}M"


def memory_of(answer: str) -> Optional[int]:
    """In MiB; an empty answer is no limit."""
    text = answer.strip()
    if not text:
        return None
    found = _MEMORY.fullmatch(text)
    if not found:
        raise NotUnderstood(f"the control daemon says {text!r} for a memory limit")
    return int(found.group(1)) * (1024 if found.group(2) == "G" else 1)


def number_of(answer: str) -> float:
    refuse_missing(answer)
    try:
        return float(answer)
    except ValueError as error:
        raise NotUnderstood(f"the control daemon says {answer.strip()!r} where a number was expected") from error


def pids_of(answer: str) -> tuple[int, ...]:
    refuse_missing(answer)
    words = answer.split()
    if not all(word.isdigit() for word in words):
        raise NotUnderstood(f"the control daemon says {answer.strip()!r} where process ids were expected")
    return tuple(int(word) for word in words)


def status_of(answer: str) -> str:
    refuse_missing(answer)
    text = answer.strip()
    if not re.fullmatch(r"[A-Z_]+", text):
        raise NotUnderstood(f"the control daemon says {text!r} for a server's state")
    return text


def rows_of(answer: str) -> list[Row]:
    """Without a server it says so, and without a client there is no heading either."""
    lines = [line.split() for line in answer.splitlines() if line and not line.startswith(("PID ", "Server "))]
    if any(len(words) < 6 or not words[0].isdigit() or not words[2].isdigit() for words in lines):
        raise NotUnderstood(f"the control daemon has another table of clients: {answer!r}")
    return [Row(int(words[0]), int(words[2]), words[3], words[4] == "?") for words in lines]


def refuse_missing(answer: str) -> None:
    if re.match(r"Server \d+ not found", answer):
        raise NoServer(answer.splitlines()[0])
    if answer.startswith("Unknown command"):
        raise NotUnderstood(f"this MPS control daemon is another version: {answer.strip()}")


def devices_of(answer: str, uuid: str) -> tuple[str, str]:
    """The names of a device in commands, its ordinal and its UUID, from the table of `device_query`."""
    rows = [found.groups() for line in answer.partition("\nServer ")[0].splitlines() for found in [_DEVICE.match(line)] if found]
    ordinals = [ordinal for ordinal, name in rows if name == uuid] or [ordinal for ordinal, _name in rows if len(rows) == 1]
    if not ordinals:
        raise BadValue(f"this MPS control daemon does not serve {uuid}, but {', '.join(name for _ordinal, name in rows) or 'nothing'}")
    return ordinals[0], uuid
