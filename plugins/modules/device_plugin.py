#!/usr/bin/python
# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: device_plugin
short_description: Have NVIDIA's device plugin advertise what is on a Kubernetes node
description:
  - The device plugin looks at GPUs and MIG devices when it starts, and goes on advertising them to the scheduler when they have changed.
    Where the node advertises something else than what is there, this module deletes the plugin's pod on that node, waits until its
    DaemonSet has made a new one and this is ready, and then until the node advertises what is there.
  - A pod that would not come back is not deleted, such as one whose DaemonSet does not tolerate the node's taints.
  - A plugin that shares GPUs among pods (time-slicing or MPS) is refused where it renames their resources (C(.shared)). Where it does not,
    the node never advertises as many as there are, and the module fails; M(gpuops.remediation.gpu_allocations_info) tells such a plugin.
version_added: "0.1.0"
author: The gpuops.remediation maintainers (@gpuops)
extends_documentation_fragment:
  - gpuops.remediation.attributes
  - gpuops.remediation.kubernetes
  - gpuops.remediation.kubernetes.lock
  - gpuops.remediation.ledger
attributes:
  check_mode:
    support: full
    details:
      - The server is asked whether the pod could be deleted (a dry run), so that a missing right is found before anything is changed.
  diff_mode:
    support: full
  idempotent:
    support: full
options:
  node:
    description: The node's name.
    type: str
    required: true
  uid:
    description: The UID that the node must have. A node which was deleted and created again under its name is left alone.
    type: str
  gpus:
    description: How many of the node's GPUs have MIG switched off.
    type: int
    required: true
  mig_devices:
    description: How many MIG devices the node has, by profile name. Compute instances that share a GPU instance are named C(1c.3g.71gb).
    type: dict
    required: true
  empty_gpus:
    description:
      - Those of the node's GPUs that have MIG switched on and no MIG device. Where there is one the plugin ends with an error whenever it starts, so
        that none of the node's GPUs can be allocated, and the module fails before it restarts it.
    type: list
    elements: str
    default: []
  restart:
    description:
      - The devices are others than the plugin saw, though there may be as many of each kind, so the pod is restarted in any case.
      - M(gpuops.remediation.gpu_allocations_info) tells what the kubelet has registered.
    type: bool
    default: false
  strategy:
    description:
      - The plugin's MIG strategy. By default what the plugin's pod says (C(--mig-strategy), E(MIG_STRATEGY)), else the node's label
        C(nvidia.com/mig.strategy).
    type: str
    choices:
      mixed: A resource for each profile, C(nvidia.com/mig-3g.71gb). Compute instances that share a GPU instance have none, and by one of them the
        plugin ends with an error, so that they are refused.
      single: All devices are C(nvidia.com/gpu); they must be of one kind.
  pod_labels:
    description:
      - The plugin's pod is known by one of these labels, each C(key=value). By one of the default ones it is known only where a container is named
        C(nvidia-device-plugin-ctr) or C(nvidia-device-plugin), or its command is C(nvidia-device-plugin); others that carry such a label, as the
        Helm chart gives them to GPU feature discovery and the MPS daemon, are left alone.
    type: list
    elements: str
    default: [app=nvidia-device-plugin-daemonset, app.kubernetes.io/name=nvidia-device-plugin, name=nvidia-device-plugin-ds]
  taints:
    description: Taints that the node is going to have when the pod is restarted. In check mode they are not there yet.
    type: list
    elements: dict
    default: []
    suboptions:
      key:
        description: The key.
        type: str
        required: true
      value:
        description: The value.
        type: str
        default: ""
      effect:
        description: The effect.
        type: str
        required: true
        choices: [NoSchedule, PreferNoSchedule, NoExecute]
  deadline_seconds:
    description: How long all of it may take.
    type: float
    default: 180.0
seealso:
  - module: gpuops.remediation.node_taint
"""

EXAMPLES = r"""
- name: Have the scheduler know the new layout
  gpuops.remediation.device_plugin:
    node: gpu-1
    gpus: 6
    mig_devices:
      3g.71gb: 2
      1g.18gb: 6
"""

RETURN = r"""
before:
  description:
    - The resources that could be allocated, those at 0 left out, and the plugin's pod.
    - C(unhealthy), how many of each there are that the plugin has taken out as unhealthy. They are as they should be; a restart would only put
      them back.
  returned: success
  type: dict
  sample:
    resources: {nvidia.com/gpu: 7}
    unhealthy: {nvidia.com/gpu: 1}
    pod: {namespace: gpu-operator, name: nvidia-device-plugin-daemonset-x2x4v, uid: 5f7dd6b1-31f5-4c0b-8d0c-0d5f64a9a0aa}
after:
  description: The same, afterwards.
  returned: success
  type: dict
actions:
  description: What was or would be done.
  returned: success
  type: list
  elements: dict
error_kind:
  description:
    - V(strategy_unfit), the plugin's strategy does not know such a layout, or cannot be told; V(plugin_missing); V(plugin_unfit), the pod
      would not come back, there is more than one, or GPUs are shared; V(plugin_not_back), no new pod, or one that is not ready, until the deadline;
      V(not_advertised), a new pod is ready and the node advertises something else; V(node_gone), V(node_recreated), V(not_managed);
      V(forbidden); V(api_unavailable); or a kind of the ledger or the lock.
  returned: failure
  type: str
"""

from ansible_collections.gpuops.remediation.plugins.module_utils._kube.access import api_of, ledger_of, permit_of
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.advertised import PLUGIN_LABELS, STRATEGIES
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.argspec import CONNECTION_SPEC, LOCK_SPEC, TAINT_SPEC
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.deadline import Deadline
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.device_plugin import DevicePlugin, Seen, Want
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.nodes import NodeWriter
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.argspec import LEDGER_SPEC
from ansible_collections.gpuops.remediation.plugins.module_utils._module import run_module

SPEC = {
    "argument_spec": {
        **CONNECTION_SPEC,
        **LOCK_SPEC,
        **LEDGER_SPEC,
        "node": {"required": True},
        "uid": {},
        "gpus": {"type": "int", "required": True},
        "mig_devices": {"type": "dict", "required": True},
        "empty_gpus": {"type": "list", "elements": "str", "default": []},
        "restart": {"type": "bool", "default": False},
        "strategy": {"choices": list(STRATEGIES)},
        "pod_labels": {"type": "list", "elements": "str", "default": list(PLUGIN_LABELS)},
        "taints": {"type": "list", "elements": "dict", "default": [], "options": TAINT_SPEC},
        "deadline_seconds": {"type": "float", "default": 180.0},
    },
    "required_by": {"lock_token": ["lock_holder"]},
}


def run(params, check_mode):
    deadline = Deadline(params["deadline_seconds"])
    api = api_of(params)
    permit = permit_of(params["node"], params, api, ledger_of(params, check_mode), deadline, check_mode)
    writer = NodeWriter(api, permit, deadline, params["uid"], check_mode)
    devices = {name: int(count) for name, count in params["mig_devices"].items()}
    want = Want(
        params["gpus"], devices, params["strategy"], params["pod_labels"], params["taints"], params["restart"], params["empty_gpus"]
    )
    return DevicePlugin(writer, want).advertise().result(Seen.show)


def main():
    run_module(SPEC, run)


if __name__ == "__main__":
    main()
