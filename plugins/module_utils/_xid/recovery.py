# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""The driver's own verdict on a GPU: NVML's recovery action (field value 230) and the texts of Xid 154 that announce its changes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Optional

# The place in the tuple is NVML's number.
RECOVERY_ACTIONS = (
    "none",
    "gpu_reset",
    "node_reboot",
    "drain_p2p",
    "drain_and_reset",
    "recover_imex_domain",
    "bus_reset",
    "system_reboot",
)
UNKNOWN = "unknown"  # the driver asks for something that this version has no name for

# Drivers changed the words between branches and kept the numbers.
_TEXTS = {
    "none": "none",
    "gpu reset required": "gpu_reset",
    "gpu reset": "gpu_reset",
    "reset": "gpu_reset",
    "pf flr": "gpu_reset",
    "node reboot required": "node_reboot",
    "node reboot": "node_reboot",
    "os reboot": "node_reboot",
    "reboot": "node_reboot",
    "drain p2p": "drain_p2p",
    "drain and reset": "drain_and_reset",
    "recover imex domain": "recover_imex_domain",
    "bus reset": "bus_reset",
    "bus reset required": "bus_reset",
    "system reboot": "system_reboot",
    "system reboot required": "system_reboot",
}

# From harmless to what takes most; "unknown" ranks with a reset because something is wanted and nobody can say what.
_ORDER = (
    "none",
    "recover_imex_domain",
    "drain_p2p",
    UNKNOWN,
    "drain_and_reset",
    "gpu_reset",
    "bus_reset",
    "node_reboot",
    "system_reboot",
)

_CHANGED = re.compile(r"recovery action changed\b.{0,80}?\bto\s+(?:0x([0-9a-f]{1,8})\s*)?(?:\(([^()]{1,80})\))?", re.IGNORECASE)


def recovery_from_text(text: str) -> Optional[str]:
    """The action that a line of Xid 154 announces; None where the text announces none."""
    found = _CHANGED.search(text)
    if found is None or not any(found.groups()):
        return None
    number, words = found.groups()
    if words and words.strip().lower() in _TEXTS:
        return _TEXTS[words.strip().lower()]
    return recovery_from_number(int(number, 16)) if number else UNKNOWN


def recovery_from_number(number: int) -> str:
    """NVML's value as a word."""
    return RECOVERY_ACTIONS[number] if 0 <= number < len(RECOVERY_ACTIONS) else UNKNOWN


def worst_recovery(actions: Iterable[Optional[str]]) -> Optional[str]:
    """The action that takes most; None where no source could say."""
    known = [action if action in _ORDER else UNKNOWN for action in actions if action is not None]
    return max(known, key=_ORDER.index, default=None)
