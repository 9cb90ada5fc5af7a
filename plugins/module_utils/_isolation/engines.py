# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Versions of container engines, and which of the known faults one has."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional

_VERSION = re.compile(r"v?(\d+)\.(\d+)\.(\d+)(?:-rc\.?(\d+))?(.*)$")
_RELEASED = 1 << 30  # no candidate has this number


class Version(NamedTuple):
    numbers: tuple[int, int, int]
    candidate: int
    packaged: bool = False  # by a distribution, which may have taken over the fix alone

    @property
    def order(self) -> tuple[tuple[int, int, int], int]:
        return self.numbers, self.candidate


def parse(text: str) -> Optional[Version]:
    found = _VERSION.match(text)
    if not found:
        return None
    major, minor, patch, candidate, rest = found.groups()
    return Version((int(major), int(minor), int(patch)), int(candidate) if candidate else _RELEASED, bool(rest))


def has_fault(version: Version, fixed: Sequence[str]) -> bool:
    """Each fix is of its own branch (1.2.8, 1.3.3); a branch without one has the fault until a later branch was fixed."""
    fixes = [one for one in map(parse, fixed) if one]
    if any(version.order >= fix.order for fix in fixes if fix.numbers[:2] == version.numbers[:2]):
        return False
    return any(version.order < fix.order for fix in fixes)


def faults_of(engine: str, text: str, known: Sequence[Mapping[str, Any]]) -> Optional[list[Mapping[str, Any]]]:
    """None where the version is not understood."""
    version = parse(text)
    if version is None:
        return None
    return [fault for fault in known if fault["engine"] == engine and has_fault(version, fault["fixed"])]
