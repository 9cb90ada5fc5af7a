# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""NVML's logic, compiled into libnvidia-ml.so.1 (see build.py).

Every exported call passes `entry`: injected faults first, then a function named like the call, else the model's data.
"""

from __future__ import annotations

from _gpusim_nvml import ffi, lib  # the cffi module inside the shared library

from . import calls, mig_calls
from .core import DEVICE, entry, from_data
from .errors import CODES


def export() -> None:
    """Give every call of nvml.h its function."""
    for name in dir(lib):
        if name.startswith("nvml"):
            types = ffi.typeof(getattr(lib, name)).args
            takes = types[0].cname if types else ""
            answer = getattr(calls, name, None) or getattr(mig_calls, name, None) or from_data(name, list(types), takes == DEVICE)
            ffi.def_extern(name=name, error=CODES["UNKNOWN"])(entry(name, answer, takes))


export()
