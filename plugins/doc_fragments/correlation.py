# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations


class ModuleDocFragment:
    """When alerts of many nodes are one fault."""

    DOCUMENTATION = r"""
options:
  correlation:
    description:
      - When the same domain (V(application), V(nvlink) or V(fabric)) is at fault on many nodes of one job, NVLink domain or rack, one incident of
        that group is opened in place of one a node. It is left to people at once, and the nodes are not touched.
      - What a node belongs to is in O(inventory) or in an alert's labels (O(alert_labels)).
    type: dict
    default: {}
    suboptions:
      nodes:
        description: As many nodes make a group.
        type: int
        default: 3
      seconds:
        description: How far apart two of its alerts may arrive.
        type: float
        default: 15.0
"""
