# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.
"""A GPU reset. NVML has no call for it that users have; nvidia-smi is the way."""

from __future__ import annotations

import subprocess

from ansible_collections.gpuops.remediation.plugins.module_utils._mig.errors import ResetRequired
from ansible_collections.gpuops.remediation.plugins.module_utils._node import programs
from ansible_collections.gpuops.remediation.plugins.module_utils._node.watchdog import Emit

# Most take seconds, those of a board with NVLink switches longer. One that is killed midway may leave the GPU unusable, so that none is begun
# with less time.
RESET_SECONDS = 60.0


def reset_gpu(nvidia_smi: str, pci_bus_id: str, timeout_seconds: float, emit: Emit) -> None:
    """That GPU and no other. Its last words say why not: what uses it, or that a virtual machine cannot."""
    try:
        status, words = programs.run([nvidia_smi, "--gpu-reset", "-i", pci_bus_id], emit, timeout_seconds)
    except OSError as error:
        raise ResetRequired(f"GPU {pci_bus_id} has to be reset, and {nvidia_smi} cannot be run: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise ResetRequired(f"GPU {pci_bus_id} has to be reset, and {nvidia_smi} did not end within {timeout_seconds:.0f} s") from error
    if status:
        raise ResetRequired(f"GPU {pci_bus_id} has to be reset, and {nvidia_smi} could not: {words}")
