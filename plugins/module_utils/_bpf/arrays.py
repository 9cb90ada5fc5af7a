# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Pinned arrays of numbers, as all programs have their counters."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.maps import PinnedMap

_INDEX, _NUMBER = struct.Struct("=I"), struct.Struct("=Q")


def number(value: bytes) -> int:
    return int(_NUMBER.unpack(value)[0])


def counters(pinned: Path, names: Sequence[str], *, but: str = "") -> dict[str, int]:
    """By the names of their places; `but` is one that the programs keep for themselves."""
    with PinnedMap(str(pinned)) as entries:
        values = dict(entries.items())
    return {name: number(values[_INDEX.pack(at)]) for at, name in enumerate(names) if name != but}
