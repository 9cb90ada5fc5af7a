# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""How full a GPU's or an instance's memory is, as a level and as a score."""

from __future__ import annotations

LEVELS = ("low", "medium", "high", "critical")  # the place in the tuple is the metric's value
_FROM_PERCENT = (60, 80, 95)
_MANY_ALLOCATIONS = 1000  # in a minute


def level(used_bytes: int, total_bytes: int) -> int:
    return sum(100 * used_bytes >= percent * total_bytes for percent in _FROM_PERCENT)


def oom_score(used_bytes: int, total_bytes: int, allocations_last_minute: int) -> float:
    return 100 * used_bytes / total_bytes + (10 if allocations_last_minute > _MANY_ALLOCATIONS else 0)
