#!/usr/bin/python
# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: node_drain
short_description: Evict pods from a Kubernetes node within a deadline, or see that none is left
description:
  - Asks for evictions, so that PodDisruptionBudgets are kept, and asks again until O(deadline_seconds) while they refuse. One pod's refusals
    do not keep the others waiting.
  - Follows pods by their UIDs until they are gone, and fails when one is left, saying which and why.
  - A pod's own grace period is kept, and cut only to what is left of O(deadline_seconds), less 5 seconds in which the kubelet takes it away.
  - Mirror pods, pods of a DaemonSet, the responder's own pods and pods that have completed are never touched.
    Pods that no controller would make again stay unless O(evict_unmanaged=true), and pods annotated C(gpuops.remediation/evict=never) stay
    always; RV(kept) names both.
  - A pod that tolerates the taints of node and device and came back is named and not evicted again; where nothing else is left, it is not waited for.
  - The node is not tainted by this module, and no cordon is ever lifted by it.
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
      - Says what would be evicted, and which PodDisruptionBudgets would refuse some of it now.
  diff_mode:
    support: full
    details:
      - Shows the pods before and after.
  idempotent:
    support: full
options:
  state:
    description: What is wanted.
    type: str
    default: drained
    choices:
      drained: The pods that are meant are evicted.
      free: None of them is there. Nothing is evicted, cordoned or waited for.
  node:
    description: The node's name.
    type: str
    required: true
  uid:
    description: The UID that the node must have. A node which was deleted and created again under its name is left alone.
    type: str
  scope:
    description: What is to become free.
    type: str
    default: node
    choices:
      node:
        - All pods go.
      gpu:
        - The O(pods), if they are given, and the pods to which a ResourceClaim gives O(gpu).
        - Where neither says it for certain, all pods that request or claim a GPU, by any resource of C(nvidia.com) that is not known to be something else,
          but those O(elsewhere).
  gpu:
    description:
      - The sick GPU as in M(gpuops.remediation.device_taint). Where a driver hands it out by Dynamic Resource Allocation, and no pod of the node has a
        GPU from a device plugin, the ResourceClaims say whose it is.
    type: list
    elements: str
  pods:
    description: The pods that are known for certain to use the sick GPU.
    type: list
    elements: dict
    suboptions:
      uid:
        description: The pod's UID.
        type: str
        required: true
  elsewhere:
    description:
      - The pods that are known for certain to have other GPUs of the node and not the sick one, as P(gpuops.remediation.pods_elsewhere#filter) tells
        them. A pod keeps what it was given as long as it lives; one that comes meanwhile is not among them.
      - It says nothing of O(pods), nor where the ResourceClaims say for certain whose O(gpu) is.
    type: list
    elements: dict
    suboptions:
      uid:
        description: The pod's UID.
        type: str
        required: true
  deadline_seconds:
    description: How long all of it may take.
    type: float
    default: 300.0
  evict_unmanaged:
    description: Evict pods without a controller too. Nothing makes them again.
    type: bool
    default: false
  cordon:
    description:
      - Mark the node as unschedulable first. With an incident this is recorded as a change, which M(gpuops.remediation.node_taint) with
        O(gpuops.remediation.node_taint#module:state=absent) undoes, unless the node was cordoned before.
    type: bool
    default: false
seealso:
  - module: gpuops.remediation.node_taint
  - module: gpuops.remediation.device_taint
"""

EXAMPLES = r"""
- name: Evict what uses one GPU of the node
  gpuops.remediation.node_drain:
    node: gpu-1
    scope: gpu
    gpu: GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77
    deadline_seconds: 240
  delegate_to: localhost

- name: Evict the pods of one GPU for an incident
  gpuops.remediation.node_drain:
    node: gpu-1
    uid: 0b9b8cb0-4a4a-4b51-9d2e-6a2d1f6d0f5a
    scope: gpu
    pods:
      - uid: 5f7dd6b1-31f5-4c0b-8d0c-0d5f64a9a0aa
    incident_id: 20260301-101500-1a2b3c4d
    lock_token: 7
    lock_holder: controller-1
  delegate_to: localhost
"""

RETURN = r"""
attribution:
  description:
    - What says which pods are meant. V(claims), the ResourceClaims that hold the GPU; V(pods), O(pods); V(kubelet), what pods request without those
      O(elsewhere); V(requests), a guess by what pods request; V(node), all of the node's.
  returned: always
  type: str
  sample: claims
evicted:
  description: The pods that are gone; in check mode those that would be evicted.
  returned: always
  type: list
  elements: dict
  sample: [{namespace: default, name: inference-7d9f-x2x4v, uid: 5f7dd6b1-31f5-4c0b-8d0c-0d5f64a9a0aa}]
left:
  description: The pods that are still there, and why.
  returned: always
  type: list
  elements: dict
  sample:
    - namespace: default
      name: inference-7d9f-x2x4v
      uid: 5f7dd6b1-31f5-4c0b-8d0c-0d5f64a9a0aa
      why: "DisruptionBudget: The disruption budget inference needs 2 healthy pods and has 2 currently"
kept:
  description: The pods that were left for a human to decide, and why.
  returned: always
  type: list
  elements: dict
  sample: [{namespace: default, name: notebook, uid: 2c0d9c2e-5c0e-4f5c-9a53-3f9b1f1a0c11, why: no controller would make it again}]
moved:
  description: Where the work of the evicted pods went. It is told, not waited for longer than a few seconds.
  returned: always
  type: list
  elements: dict
  contains:
    from:
      description: The evicted pod.
      type: dict
    to:
      description: The pod that its controller made instead, or null.
      type: dict
    to_node:
      description: That pod's node, or null.
      type: str
    pending:
      description: Why it has none; the scheduler's words, if it spoke.
      type: str
blocked:
  description: In check mode, the PodDisruptionBudgets that now allow fewer evictions than are needed.
  returned: always
  type: list
  elements: dict
  sample: [{namespace: default, name: inference, allowed: 0, pods: [inference-7d9f-x2x4v]}]
actions:
  description: What was or would be done.
  returned: success
  type: list
  elements: dict
error_kind:
  description:
    - V(evict_incomplete), pods are left; V(human_override), somebody lifted the incident's taint or cordon; V(node_gone), V(node_recreated),
      V(not_managed); V(api_unavailable); or a kind of the ledger or the lock.
  returned: failure
  type: str
"""

from ansible_collections.gpuops.remediation.plugins.module_utils._kube.access import api_of, ledger_of, permit_of
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.argspec import CONNECTION_SPEC, LOCK_SPEC
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.deadline import Deadline
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.devices import device_holders
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.drain import Drain, result_of
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.evictions import Selection
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.nodes import NodeWriter
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.argspec import LEDGER_SPEC
from ansible_collections.gpuops.remediation.plugins.module_utils._module import run_module

SPEC = {
    "argument_spec": {
        **CONNECTION_SPEC,
        **LOCK_SPEC,
        **LEDGER_SPEC,
        "state": {"default": "drained", "choices": ["drained", "free"]},
        "node": {"required": True},
        "uid": {},
        "scope": {"default": "node", "choices": ["node", "gpu"]},
        "gpu": {"type": "list", "elements": "str"},
        "pods": {"type": "list", "elements": "dict", "options": {"uid": {"required": True}}},
        "elsewhere": {"type": "list", "elements": "dict", "options": {"uid": {"required": True}}},
        "deadline_seconds": {"type": "float", "default": 300.0},
        "evict_unmanaged": {"type": "bool", "default": False},
        "cordon": {"type": "bool", "default": False},
    },
    "required_by": {"lock_token": ["lock_holder"]},
}


def run(params, check_mode):
    deadline = Deadline(params["deadline_seconds"])
    certain, elsewhere = (None if params[name] is None else {pod["uid"] for pod in params[name]} for name in ("pods", "elsewhere"))
    selection = Selection(params["scope"], certain, elsewhere, evict_unmanaged=params["evict_unmanaged"])
    api = api_of(params)
    permit = permit_of(params["node"], params, api, ledger_of(params, check_mode), deadline, check_mode)
    writer = NodeWriter(api, permit, deadline, params["uid"], check_mode and params["state"] == "drained")
    drain = Drain(writer, selection, params["lock_namespace"], device_holders(writer, params["gpu"]) if params["gpu"] else None)
    if params["state"] == "free":
        return result_of(drain.look(), None)
    cordoned = writer.present(cordon=True) if params["cordon"] else None
    return result_of(drain.run(), cordoned)


def main():
    run_module(SPEC, run)


if __name__ == "__main__":
    main()
