# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pynvml
import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.calls import Calls


@pytest.mark.parametrize(
    "code, kind, clean",
    [
        ("IN_USE", "nvml", True),
        ("INSUFFICIENT_RESOURCES", "nvml", True),
        ("NO_PERMISSION", "permission", True),
        ("FUNCTION_NOT_FOUND", "driver_too_old", True),
        ("UNKNOWN", "nvml", False),
        ("TIMEOUT", "nvml", False),
        ("GPU_IS_LOST", "nvml", False),
    ],
)
def test_which_refusals_are_known_to_have_done_nothing(code, kind, clean):
    told = Calls(pynvml, lambda _name: None).error(pynvml.NVMLError(getattr(pynvml, f"NVML_ERROR_{code}")))
    assert (told.kind, told.clean) == (kind, clean)
