# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""The words of NVIDIA_VISIBLE_DEVICES."""

from __future__ import annotations

import re
from typing import Optional

ALL = "all"
NONE = "none"
UNSAID = ("", "void")  # also what CDI writes, which gives devices by itself
_CDI = re.compile(r"^(?:runtime\.|management\.)?nvidia\.com/gpu=")


def asked(value: Optional[str]) -> list[str]:
    """The GPUs that NVIDIA_VISIBLE_DEVICES names; none where it is not set."""
    tokens = (token.strip() for token in (value or "").split(","))
    return [_CDI.sub("", token) for token in tokens if token not in (NONE, *UNSAID)]
