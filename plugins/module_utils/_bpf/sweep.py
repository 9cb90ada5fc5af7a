# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Takes away what ended processes left in the maps. A process that ends subtracts its accounts, not each address: that would delay its exit."""

from __future__ import annotations

import struct
from pathlib import Path

from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.maps import PinnedMap

_INCARNATION_AT = {"records": 8, "primaries": 0}  # in the key


def sweep(maps: Path) -> int:
    """Returns how many entries went. Incarnations never come back, so one that has no process after its entry was read has ended."""
    swept = 0
    with PinnedMap(str(maps / "processes")) as processes:
        for name, at in _INCARNATION_AT.items():
            with PinnedMap(str(maps / name), read_only=False) as entries:
                keys = list(entries.keys())
                living = {_number(value, 0) for _tgid, value in processes.items()}
                swept += sum(entries.delete(key) for key in keys if _number(key, at) not in living)
    return swept


def _number(data: bytes, at: int) -> int:
    return int(struct.unpack_from("=Q", data, at)[0])
