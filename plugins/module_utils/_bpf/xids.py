# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""What the pinned maps of gpu_xid say. The layouts are those of bpf/xid.h. Needs no privilege beyond what the pins' modes ask for."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.gpuops.remediation.plugins.module_utils._bpf import arrays
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.layout import text as text_of
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.maps import PinnedMap

COUNTERS = ("next_event", "xids_full", "unreadable")
SOURCES = {1: "kernel_log", 2: "tracepoint"}
_KEY = struct.Struct("=20sI")
_COUNTS = struct.Struct("=5Q")
_EVENT = struct.Struct("=QQ20sIII240s")


@dataclass(frozen=True)
class XidCount:
    """`count`: what one GPU said of one code within a second is one. `lines` and `traces` are what the two sources said."""

    pci_bus_id: str
    xid: int
    count: int
    lines: int
    traces: int
    first_boottime_ns: int
    last_boottime_ns: int


@dataclass(frozen=True)
class XidEvent:
    number: int
    boottime_ns: int
    pci_bus_id: str
    xid: int
    source: str
    text: str

    @classmethod
    def parse(cls, data: bytes) -> XidEvent | None:
        """None of a slot that is empty or being written."""
        number, boottime, pci, xid, source, _unused, text = _EVENT.unpack(data)
        return cls(number, boottime, _text(pci), xid, SOURCES[source], _text(text)) if number else None


def counts(maps: Path) -> list[XidCount]:
    with PinnedMap(str(maps / "xids")) as entries:
        found = [(_KEY.unpack(key), _COUNTS.unpack(value)) for key, value in entries.items()]
    return sorted((XidCount(_text(pci), xid, *numbers) for (pci, xid), numbers in found), key=lambda each: (each.pci_bus_id, each.xid))


def events(maps: Path, after: int = 0) -> list[XidEvent]:
    """The last ones, oldest first, after the number that a reader has seen."""
    with PinnedMap(str(maps / "events")) as entries:
        found = [XidEvent.parse(_whole(entries, slot, value)) for slot, value in entries.items()]
    return sorted((event for event in found if event and event.number > after), key=lambda event: event.number)


def _whole(entries: PinnedMap, slot: bytes, value: bytes) -> bytes:
    """Reads an event until it is the same twice: its number is 0 while it is written, but the kernel copies no event at once."""
    while True:
        again = entries.get(slot) or value
        if again == value:
            return value
        value = again


def counters(maps: Path) -> dict[str, int]:
    return arrays.counters(maps / "xid_counters", COUNTERS, but="next_event")


def _text(data: bytes) -> str:
    return text_of(data).rstrip()
