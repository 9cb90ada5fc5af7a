# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""What the pinned maps of gpu_irq say. The layouts are those of bpf/irq.h. Needs no privilege beyond what the pins' modes ask for."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.gpuops.remediation.plugins.module_utils._bpf import arrays, durations
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.durations import Durations
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.layout import text
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.maps import PinnedMap

COUNTERS = ("irqs_full",)
_KEY = struct.Struct("=20sI")
_ENDS = struct.Struct("=2Q")


@dataclass(frozen=True)
class IrqLine:
    """`unhandled`: of other devices on a shared line. `woken`: the handler's thread went on, and its time is not in the durations."""

    irq: int
    handler: str
    durations: Durations
    unhandled: int
    woken: int

    @classmethod
    def parse(cls, key: bytes, value: bytes) -> IrqLine:
        handler, irq = _KEY.unpack(key)
        return cls(irq, text(handler), Durations.parse(value), *_ENDS.unpack_from(value, durations.SIZE))


def lines(maps: Path) -> list[IrqLine]:
    with PinnedMap(str(maps / "irqs")) as entries:
        return sorted((IrqLine.parse(*item) for item in entries.items()), key=lambda line: (line.irq, line.handler))


def counters(maps: Path) -> dict[str, int]:
    return arrays.counters(maps / "irq_counters", COUNTERS)


def devices(pci: Path) -> Mapping[int, str]:
    """The PCI address, without the function as an Xid has it, by line. A line that devices share is none's."""
    found: dict[int, set[str]] = {}
    for device in pci.glob("*"):
        with contextlib.suppress(OSError):  # unplugged meanwhile, or without a line
            for irq in _lines_of(device):
                found.setdefault(irq, set()).add(device.name.rpartition(".")[0])
    return {irq: names.pop() for irq, names in found.items() if len(names) == 1}


def _lines_of(device: Path) -> list[int]:
    if (device / "msi_irqs").is_dir():
        return [int(name) for name in os.listdir(device / "msi_irqs")]
    return [irq for irq in [int((device / "irq").read_text())] if irq]
