# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations


class ModuleDocFragment:
    """The breaker's numbers."""

    DOCUMENTATION = r"""
options:
  breaker:
    description:
      - How many nodes of one group may be fenced or tainted in a window, the larger of a number and a share.
      - What is not given stays as it is; a new ledger has the defaults.
    type: dict
    suboptions:
      nodes:
        description: The number of nodes.
        type: int
      percent:
        description: The share of the group's nodes.
        type: float
      window_seconds:
        description: The window.
        type: int
"""
