# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Options of every module that speaks to an MPS control daemon; documented by the fragment `mps`."""

from __future__ import annotations

from typing import Any

MPS_OPTIONS: dict[str, Any] = {
    "mps_control": {"type": "str", "default": "nvidia-cuda-mps-control"},
    "control_timeout_seconds": {"type": "float", "default": 5},
}
