# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Takes away what ended processes left in the map of allocations. Ending a process subtracts its accounts, not each address: that would delay its exit."""

from __future__ import annotations

import struct
from pathlib import Path

from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.maps import PinnedMap

_RECORD_KEY = struct.Struct("=QQQ")
_PRIMARY_KEY = struct.Struct("=QQ")


def sweep(maps: Path) -> int:
    """Returns how many entries went. Incarnations never come back, so one that has no process after its entry was read has ended."""
    swept = 0
    for name, incarnation_of in (
        ("records", lambda key: _RECORD_KEY.unpack(key)[1]),
        ("primaries", lambda key: _PRIMARY_KEY.unpack(key)[0]),
    ):
        with PinnedMap(str(maps / name), read_only=False) as entries, PinnedMap(str(maps / "processes")) as processes:
            keys = list(entries.keys())
            living = {struct.unpack_from("=Q", value)[0] for _tgid, value in processes.items()}
            swept += sum(entries.delete(key) for key in keys if incarnation_of(key) not in living)
    return swept
