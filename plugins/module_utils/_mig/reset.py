# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.
"""A GPU reset. NVML has no call for it that users have; nvidia-smi is the way."""

from __future__ import annotations

import os
import subprocess

from ansible_collections.gpuops.remediation.plugins.module_utils._mig.errors import ResetRequired


def reset_gpu(nvidia_smi: str, pci_bus_id: str, timeout_seconds: float) -> None:
    """That GPU and no other. Its last words say why not: what uses it, or that a virtual machine cannot."""
    command = [nvidia_smi, "--gpu-reset", "-i", pci_bus_id]
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            timeout=timeout_seconds, check=False,
        )  # fmt: skip
    except OSError as error:
        raise ResetRequired(f"GPU {pci_bus_id} has to be reset, and {nvidia_smi} cannot be run: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise ResetRequired(f"GPU {pci_bus_id} has to be reset, and {nvidia_smi} did not end within {timeout_seconds:.0f} s") from error
    if done.returncode:
        raise ResetRequired(f"GPU {pci_bus_id} has to be reset, and {nvidia_smi} could not: {done.stdout.strip()}")
