# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Takes away what ended processes and cgroups left in the maps.

A process that ends subtracts its accounts, not each address: that would delay its exit. A cgroup has no end that the programs see.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path

from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.layout import Account, CgroupIds, FailureKey, Usage
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.maps import PinnedMap
from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.numbers import roots

_INCARNATION_AT = {"records": 8, "primaries": 0}  # in the key


def sweep(maps: Path, mounts: Path = Path("/proc/self/mounts")) -> int:
    """Returns how many entries went. Incarnations never come back, so one that has no process after its entry was read has ended."""
    swept = _sweep_cgroups(maps, mounts)
    with PinnedMap(str(maps / "processes")) as processes:
        for name, at in _INCARNATION_AT.items():
            with PinnedMap(str(maps / name), read_only=False) as entries:
                keys = list(entries.keys())
                living = {_number(value, 0) for _tgid, value in processes.items()}
                swept += sum(entries.delete(key) for key in keys if _number(key, at) not in living)
    return swept


def _sweep_cgroups(maps: Path, mounts: Path) -> int:
    """Those whose folders are gone, who hold nothing, and in whom no process has an account: nothing can be charged to them any more."""
    with PinnedMap(str(maps / "cgroups"), read_only=False) as totals, PinnedMap(str(maps / "failures"), read_only=False) as failures:
        found = [(totals, key, CgroupIds.parse(key)) for key, value in totals.items() if Usage.parse(value).is_empty]
        found += [(failures, key, FailureKey.parse(key).cgroup) for key, _count in failures.items()]
        if not found:
            return 0
        with PinnedMap(str(maps / "accounts")) as accounts:
            used = {Account.parse(value).cgroup for _serial, value in accounts.items()}
        there = set(_folders(mounts))
        return sum(entries.delete(key) for entries, key, ids in found if ids not in used and not {ids.v2, ids.v1} & there)


def _folders(mounts: Path) -> Iterator[int]:
    """Inodes of the cgroups of the unified hierarchy and of the memory controller's."""
    for _name, root in roots(mounts.read_text()):
        for folder, _below, _files in os.walk(root):
            try:
                yield os.stat(folder).st_ino
            except OSError:  # it has ended meanwhile
                continue


def _number(data: bytes, at: int) -> int:
    return int(struct.unpack_from("=Q", data, at)[0])
