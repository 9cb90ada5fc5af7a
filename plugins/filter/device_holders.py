# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: device_holders
short_description: Join what the kubelet has given away with the pods that the API server knows
version_added: "0.1.0"
author: The gpuops.remediation maintainers (@gpuops)
description:
  - An allocation of a pod that the API server knows no more is over, and so is that of a pod which has completed.
options:
  _input:
    description: The allocations, as M(gpuops.remediation.gpu_allocations_info) returns them from the source V(checkpoint).
    type: list
    elements: dict
    required: true
  pods:
    description: The API's pods that are bound to the node.
    type: list
    elements: dict
    required: true
"""

EXAMPLES = r"""
- name: Show who has which device
  ansible.builtin.debug:
    msg: "{{ (allocations.allocations | gpuops.remediation.device_holders(api_pods.resources)).devices }}"
"""

RETURN = r"""
_value:
  description:
    - C(devices), the pod (C(namespace/name)) by the UUID of the GPU or MIG device that it has; C(pods), the same pods as
      M(gpuops.remediation.node_drain) takes them; C(unsettled), pods that are bound to the node and request a GPU of a device plugin, and have not
      been given one yet.
  type: dict
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gpuops.remediation.plugins.module_utils._kube.evictions import STATIC_UID, Pod, finished, has_gpu_of_plugin, uid


def device_holders(allocations: Sequence[Mapping[str, Any]], pods: Sequence[Pod]) -> dict[str, Any]:
    alive = {
        key: pod
        for pod in pods
        if not finished(pod)
        for key in (uid(pod), (pod["metadata"].get("annotations") or {}).get(STATIC_UID))
        if key
    }
    given = {device: alive[one["pod_uid"]] for one in allocations if one["pod_uid"] in alive for device in one["devices"]}
    settled = {uid(pod) for pod in given.values()}
    waiting = [pod for pod in pods if uid(pod) in alive and uid(pod) not in settled and has_gpu_of_plugin(pod)]
    return {
        "devices": {device: _name(pod) for device, pod in given.items()},
        "pods": {device: {"uid": uid(pod)} for device, pod in given.items()},
        "unsettled": sorted(map(_name, waiting)),
    }


def _name(pod: Pod) -> str:
    return "{namespace}/{name}".format(**pod["metadata"])


class FilterModule:
    """Ansible's entry."""

    def filters(self) -> dict[str, Any]:
        return {"device_holders": device_holders}
