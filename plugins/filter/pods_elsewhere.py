# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: pods_elsewhere
short_description: Tell the pods that certainly have other GPUs of a node than the sick one
version_added: "0.1.0"
author: The gpuops.remediation maintainers (@gpuops)
description:
  - A pod is among them if the kubelet has given it all that it requests, each device is known to be of another GPU, no ResourceClaim gives it a GPU, and
    no process of it is on the sick one. Whoever is not among them may have it.
  - Read the pods first and the allocations then. A pod that came in between under the name of another one is then not taken for it.
options:
  _input:
    description: What M(gpuops.remediation.gpu_allocations_info) has returned.
    type: dict
    required: true
  pods:
    description: The API's pods that are bound to the node.
    type: list
    elements: dict
    required: true
  gpus:
    description: The node's GPUs as M(gpuops.remediation.gpu_info) returns them, which say whose a MIG device is.
    type: list
    elements: dict
    required: true
  sick:
    description: The sick GPU's UUID or PCI address, or both.
    type: list
    elements: str
    required: true
"""

EXAMPLES = r"""
- name: Evict who may have the sick GPU
  gpuops.remediation.node_drain:
    node: gpu-1
    scope: gpu
    elsewhere: "{{ (allocations | gpuops.remediation.pods_elsewhere(api_pods.resources, node.gpus, [sick])).pods | default(omit) }}"
  delegate_to: localhost
  vars:
    sick: GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77
"""

RETURN = r"""
_value:
  description: C(pods), as M(gpuops.remediation.node_drain) takes them; empty where it is not known which UUID the sick GPU has.
  type: dict
  sample: {pods: [{uid: 5f7dd6b1-31f5-4c0b-8d0c-0d5f64a9a0aa}]}
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gpuops.remediation.plugins.module_utils._kube import elsewhere
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.evictions import Pod


def pods_elsewhere(told: Mapping[str, Any], pods: Sequence[Pod], gpus: Sequence[Mapping[str, Any]], sick: Sequence[str]) -> dict[str, Any]:
    uids = elsewhere.pods_elsewhere(told, pods, gpus, sick)
    return {} if uids is None else {"pods": [{"uid": uid} for uid in uids]}


class FilterModule:
    """Ansible's entry."""

    def filters(self) -> dict[str, Any]:
        return {"pods_elsewhere": pods_elsewhere}
