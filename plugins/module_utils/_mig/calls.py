# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.
"""NVML's calls, each announced before it is made, so that one which hangs is known by name; and its refusals as our errors."""

from __future__ import annotations

from typing import Any, Callable

from ansible_collections.gpuops.remediation.plugins.module_utils._mig.errors import DriverTooOld, MigError, NotPermitted, Refused

# With which the driver turns a call down before it does anything
_CLEAN = (
    *("UNINITIALIZED", "INVALID_ARGUMENT", "ARGUMENT_VERSION_MISMATCH", "NOT_SUPPORTED", "NOT_FOUND"),
    *("INSUFFICIENT_SIZE", "INSUFFICIENT_RESOURCES", "IN_USE"),
)


class Calls:
    """Stands for pynvml. Constants, structures and errors are pynvml's own."""

    def __init__(self, nvml: Any, begins: Callable[[str], None]) -> None:
        self._nvml = nvml
        self._begins = begins
        self._last = ""

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._nvml, name)
        if not name.startswith("nvml") or not callable(value):
            return value

        def call(*args: Any) -> Any:
            self._last = name
            self._begins(name)
            return value(*args)

        return call

    def error(self, error: Any) -> MigError:
        """What the last call was refused with."""
        nvml, call = self._nvml, self._last
        if error.value == nvml.NVML_ERROR_NO_PERMISSION:
            return NotPermitted(f"{call}: {error}; is this root?", call=call)
        if error.value == nvml.NVML_ERROR_FUNCTION_NOT_FOUND:
            return DriverTooOld(f"the driver has no {call}", call=call)
        refused = Refused(f"{call}: {error}", call=call, nvml_error=error.value)
        refused.clean = error.value in [getattr(nvml, f"NVML_ERROR_{name}") for name in _CLEAN]
        return refused
