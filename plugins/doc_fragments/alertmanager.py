# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations


class ModuleDocFragment:
    """Alertmanager, asked by its API."""

    DOCUMENTATION = r"""
options:
  alertmanager_urls:
    description:
      - The addresses of an Alertmanager, or of all of a cluster. All are asked at once, and what any of them says counts.
      - Where none answers the work goes on without it, and the result says so.
    type: list
    elements: str
    default: []
  alertmanager_token:
    description: A bearer token for it.
    type: str
  alertmanager_ca_file:
    description: A file with the authorities that its certificate may be of, where the system's do not suffice.
    type: path
  alertmanager_timeout_seconds:
    description: How long each address may take to answer.
    type: float
    default: 5.0
"""
