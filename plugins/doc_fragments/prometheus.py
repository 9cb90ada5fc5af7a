# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations


class ModuleDocFragment:
    """Prometheus, asked by its API."""

    DOCUMENTATION = r"""
requirements:
  - prometheus-api-client, with O(prometheus_url)
options:
  prometheus_url:
    description: The address of Prometheus.
    type: str
    default: ""
  prometheus_token:
    description: A bearer token for it.
    type: str
  prometheus_ca_file:
    description: A file with the authorities that its certificate may be of, where the system's do not suffice.
    type: path
  prometheus_timeout_seconds:
    description: How long an answer may take.
    type: float
    default: 5.0
"""
