# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""A model of GPU as PCI names it, in the notation of nvidia-mig-parted's files."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Optional

_NUMBER = r"(0[xX][0-9a-fA-F]{1,8}|[1-9][0-9]{0,9}|0)"
_DEVICE_ID = re.compile(f"{_NUMBER}(?::{_NUMBER})?")


@dataclass(frozen=True)
class DeviceId:
    """Device in the high and vendor in the low half, and the same of its subsystem where it is told."""

    primary: int
    subsystem: Optional[int] = None

    def __str__(self) -> str:
        return f"0x{self.primary:08X}" + ("" if self.subsystem is None else f":0x{self.subsystem:08X}")

    def covers(self, gpu: DeviceId) -> bool:
        return self.primary == gpu.primary and self.subsystem in (None, gpu.subsystem)


def parse_device_id(text: str) -> Optional[DeviceId]:
    found = _DEVICE_ID.fullmatch(text)
    numbers = [int(number, 0) for number in found.groups() if number] if found else []
    return DeviceId(*numbers) if numbers and max(numbers) < 1 << 32 else None
