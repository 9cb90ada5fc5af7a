# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Processes as the keys of maps have them: by start and pid. What they leave in a map when they end is taken away later, since it would delay the end."""

from __future__ import annotations

import os
import struct
from pathlib import Path

from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.maps import PinnedMap
from ansible_collections.gpuops.remediation.plugins.module_utils._node.procfs import ProcFs

_CALLER = struct.Struct("=QI")  # how such a key begins


def is_alive(tgid: int, start_boottime_ns: int, proc: ProcFs) -> bool:
    return proc.alive(tgid, start_boottime_ns * os.sysconf("SC_CLK_TCK") // 1_000_000_000)


def sweep(pinned: Path, proc: ProcFs) -> int:
    """Returns how many entries of ended processes went."""
    with PinnedMap(str(pinned), read_only=False) as entries:
        keys = [(key, *_CALLER.unpack_from(key)) for key in list(entries.keys())]
        return sum(entries.delete(key) for key, start, tgid in keys if not is_alive(tgid, start, proc))
