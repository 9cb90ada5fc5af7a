# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: named_incidents
short_description: Find which of the Kubernetes API's nodes name one of some incidents in their annotation
version_added: "0.1.0"
author: The gpuops.remediation maintainers (@gpuops)
description:
  - Answers what M(gpuops.remediation.node_taint) takes as its nodes.
options:
  _input:
    description: The API's nodes.
    type: list
    elements: dict
    required: true
  ids:
    description: The incidents.
    type: list
    elements: str
    required: true
"""

EXAMPLES = r"""
- name: Show which nodes go on naming an incident
  ansible.builtin.debug:
    msg: "{{ api_nodes.resources | gpuops.remediation.named_incidents(['20260301-101500-1a2b3c4d']) }}"
"""

RETURN = r"""
_value:
  description: One entry for each node and incident, with C(name), C(uid) and C(incident_id).
  type: list
  elements: dict
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ansible_collections.gpuops.remediation.plugins.module_utils._kube.taints import parse_node


def named_incidents(api_nodes: Sequence[Mapping[str, Any]], ids: Collection[str]) -> list[dict[str, str]]:
    return [
        {"name": node.name, "uid": node.uid, "incident_id": one}
        for node in map(parse_node, api_nodes)
        for one in node.incidents
        if one in ids
    ]


class FilterModule:
    """Ansible's entry."""

    def filters(self) -> dict[str, Any]:
        return {"named_incidents": named_incidents}
