# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations


class ModuleDocFragment:
    """How an MPS control daemon is spoken to."""

    DOCUMENTATION = r"""
options:
  mps_control:
    description: NVIDIA's program that speaks to the control daemon, and that is the daemon.
    type: str
    default: nvidia-cuda-mps-control
  control_timeout_seconds:
    description: >-
      How long the control daemon may take for one answer. It answers within milliseconds, or waits for a client to end; then the module fails
      with RV(error_kind=control_hangs).
    type: float
    default: 5
"""
