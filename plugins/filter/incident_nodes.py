# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: incident_nodes
short_description: Join the inventory's hosts and the orchestrator's nodes by node name
version_added: "0.1.0"
author: The gpuops.remediation maintainers (@gpuops)
description:
  - Answers what M(gpuops.remediation.incident) has to know of the nodes that alerts may name.
  - A host is a GPU node of ours unless it is an orchestrator's node that the orchestrator does not know.
options:
  _input:
    description: The variables of all hosts, C(hostvars).
    type: dict
    required: true
  api_nodes:
    description: The Kubernetes API's nodes, where Kubernetes is the orchestrator.
    type: list
    elements: dict
"""

EXAMPLES = r"""
- name: Show which nodes alerts may name
  ansible.builtin.debug:
    msg: "{{ hostvars | gpuops.remediation.incident_nodes }}"
"""

RETURN = r"""
_value:
  description:
    - By node name, with C(host), the inventory's name of it; C(uid), the API object's UID or on a bare host the node name; C(managed), false
      where the node is opted out; and C(groups) as the circuit breaker counts them.
  type: dict
"""

from collections.abc import Mapping, Sequence
from typing import Any, Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._names import LABEL_MANAGED

_NO = ("false", "no", "off", "0", "n", "f")


def incident_nodes(hostvars: Mapping[str, Mapping[str, Any]], api_nodes: Optional[Sequence[Mapping[str, Any]]] = None) -> dict[str, Any]:
    api = None if api_nodes is None else {node["metadata"]["name"]: node["metadata"] for node in api_nodes}
    hosts = {variables.get("gpuops_node_name", host): (host, variables) for host, variables in hostvars.items()}
    if api is not None:
        hosts = {name: host for name, host in hosts.items() if name in api}
    fleet = len(hosts if api is None else api)
    return {
        name: {
            "host": host,
            "uid": name if api is None else api[name]["uid"],
            "managed": _managed(variables, {} if api is None else api[name].get("labels") or {}),
            "groups": {**(variables.get("gpuops_groups") or {}), "fleet": fleet},
        }
        for name, (host, variables) in hosts.items()
    }


def _managed(variables: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whoever opts a node out may write it in any way that Ansible takes for no."""
    return str(variables.get("gpuops_managed", True)).lower() not in _NO and labels.get(LABEL_MANAGED) != "false"


class FilterModule:
    """Ansible's entry."""

    def filters(self) -> dict[str, Any]:
        return {"incident_nodes": incident_nodes}
