# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""What each mode lets us write (S4)."""

from __future__ import annotations

TAINT = "taint"  # taints and annotations: nothing that runs is touched
NODE = "node"  # processes, pods, device files
RELEASE = "release"  # taking our own taints and annotations back
FORGET = "forget"  # taking the name of an incident that a human ended off its node

OBSERVE = "observe"
MODES = (OBSERVE, "fence", "act")

_PERMITTED: dict[str, tuple[str, ...]] = {OBSERVE: (), "fence": (TAINT,), "act": (TAINT, NODE)}


def allows(mode: str, write: str) -> bool:
    return (TAINT if write in (RELEASE, FORGET) else write) in _PERMITTED[mode]


def permitted(mode: str) -> list[str]:
    return list(_PERMITTED[mode])


def needed_mode(write: str) -> str:
    """The least mode that allows a write, for the words of a refusal."""
    return next(mode for mode in MODES if allows(mode, write))
