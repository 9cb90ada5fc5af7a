# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""NVML's return codes. Also compiled into the library, so: standard library only, Python 3.9."""

from __future__ import annotations

CODES = {
    "UNINITIALIZED": 1, "INVALID_ARGUMENT": 2, "NOT_SUPPORTED": 3, "NO_PERMISSION": 4, "NOT_FOUND": 6, "INSUFFICIENT_SIZE": 7,
    "DRIVER_NOT_LOADED": 9, "TIMEOUT": 10, "FUNCTION_NOT_FOUND": 13, "GPU_IS_LOST": 15, "RESET_REQUIRED": 16, "OPERATING_SYSTEM": 17, "IN_USE": 19,
    "INSUFFICIENT_RESOURCES": 23, "ARGUMENT_VERSION_MISMATCH": 25, "NOT_READY": 27, "INVALID_STATE": 29, "UNKNOWN": 999,
}  # fmt: skip


class NvmlError(Exception):
    """An NVML return code other than success."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name, self.code = name, CODES[name]
