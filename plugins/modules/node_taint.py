#!/usr/bin/python
# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: node_taint
short_description: Taint Kubernetes nodes, and take exactly our own taints off again
description:
  - Taints nodes and names the incident in their annotation C(gpuops.remediation/incidents), in one write that the API server refuses when
    anybody else has written the node since it was read. The module then starts again from what is there now, so that another writer's
    taints, with all their fields, survive.
  - Many nodes are written side by side; each has its own result, and one node's trouble does not touch the others.
  - Nodes labelled C(gpuops.remediation/managed=false) are refused.
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
  diff_mode:
    support: full
    details:
      - Shows taints, incidents and cordon of each node.
  idempotent:
    support: full
options:
  nodes:
    description: The nodes.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description: The node's name.
        type: str
        required: true
      uid:
        description: The UID that the node must have. A node which was deleted and created again under its name is left alone.
        type: str
      incident_id:
        description: This node's incident, where it is not O(incident_id).
        type: str
      groups:
        description: This node's groups, where they are not O(groups).
        type: dict
      lock_token:
        description: The token of this node's lock, where it is not O(lock_token).
        type: int
  state:
    description: What the nodes shall have.
    type: str
    default: present
    choices:
      present:
        - The taints, and the incident in the annotation.
        - A taint which was in force for the incident and has been removed by somebody else is not put back.
      absent:
        - With an incident, what the ledger says that it changed on the node (taints, cordon) is undone, to what was there before.
          What another open incident wants as well stays, and so does what somebody else has put in its place.
        - Without one, the O(taints) are removed, whoever put them there.
      lifted:
        - The O(taints) are removed, whoever put them there, but for those that another open incident wants.
        - What else the incident changed on the node stays.
      forgotten:
        - The annotation does not name the incident, which a human has ended. Nothing else is touched.
  taints:
    description: The taints. A taint is known by key and effect.
    type: list
    elements: dict
    default: [{key: gpu.unhealthy, value: "true", effect: NoSchedule}]
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
        description: The effect. V(NoExecute) deletes the pods that do not tolerate it at once and asks no PodDisruptionBudget.
        type: str
        required: true
        choices: [NoSchedule, PreferNoSchedule, NoExecute]
  keep_cordon:
    description: With O(state=absent) and an incident, what it cordoned stays so, and while that is the case the incident in the annotation.
    type: bool
    default: false
  deadline_seconds:
    description: How long all of it may take, including everything that is tried again (conflicts, requests that fail or get no answer).
    type: float
    default: 30.0
seealso:
  - module: gpuops.remediation.device_taint
  - module: gpuops.remediation.node_drain
"""

EXAMPLES = r"""
- name: Keep new work off a node
  gpuops.remediation.node_taint:
    nodes:
      - name: gpu-1
  delegate_to: localhost

- name: Quarantine a node for an incident
  gpuops.remediation.node_taint:
    nodes:
      - name: gpu-1
        uid: 0b9b8cb0-4a4a-4b51-9d2e-6a2d1f6d0f5a
    incident_id: 20260301-101500-1a2b3c4d
    lock_token: 7
    lock_holder: controller-1
  delegate_to: localhost

- name: Let work come again, and leave the node's quarantine as it is
  gpuops.remediation.node_taint:
    nodes:
      - name: gpu-1
    incident_id: 20260301-101500-1a2b3c4d
    taints: [{key: gpuops.remediation/mig-change, effect: NoSchedule}]
    state: lifted
  delegate_to: localhost

- name: Undo what the incident changed
  gpuops.remediation.node_taint:
    nodes:
      - name: gpu-1
    incident_id: 20260301-101500-1a2b3c4d
    state: absent
  delegate_to: localhost
"""

RETURN = r"""
nodes:
  description: One entry for each node, in the order of O(nodes).
  returned: always
  type: list
  elements: dict
  contains:
    name:
      description: The node.
      type: str
      sample: gpu-1
    changed:
      description: Whether it was written.
      type: bool
    before:
      description: Taints, incidents and cordon as they were read.
      type: dict
      sample: {taints: [], incidents: [], unschedulable: false}
    after:
      description: The same, afterwards.
      type: dict
      sample: {taints: [{key: gpu.unhealthy, value: "true", effect: NoSchedule}], incidents: [20260301-101500-1a2b3c4d], unschedulable: false}
    actions:
      description: What was or would be done.
      type: list
      elements: dict
    error:
      description: What went wrong on this node, or null.
      type: str
    error_kind:
      description:
        - The kind of the error, or null. V(human_override), somebody undid our taint; V(node_gone), V(node_recreated), V(not_managed);
          V(conflict) and V(api_unavailable), nothing else was possible until the deadline; or a kind of the ledger or the lock.
      type: str
error_kind:
  description: The kind that the failed nodes share, or V(several).
  returned: failure
  type: str
"""

from ansible_collections.gpuops.remediation.plugins.module_utils._kube.access import api_of, ledger_of, permit_of
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.argspec import CONNECTION_SPEC, LOCK_SPEC, TAINT_SPEC
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.deadline import Deadline
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.nodes import NodeWriter, side_by_side, summary
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.argspec import LEDGER_SPEC
from ansible_collections.gpuops.remediation.plugins.module_utils._module import run_module
from ansible_collections.gpuops.remediation.plugins.module_utils._names import TAINT_EFFECT, TAINT_KEY, TAINT_VALUE

NODE_SPEC = {
    "name": {"required": True},
    "uid": {},
    **{name: {**LOCK_SPEC[name], "default": None} for name in ("incident_id", "groups", "lock_token")},
}

SPEC = {
    "argument_spec": {
        **CONNECTION_SPEC,
        **LOCK_SPEC,
        **LEDGER_SPEC,
        "nodes": {"type": "list", "elements": "dict", "required": True, "options": NODE_SPEC},
        "state": {"default": "present", "choices": ["present", "absent", "lifted", "forgotten"]},
        "taints": {
            "type": "list",
            "elements": "dict",
            "default": [{"key": TAINT_KEY, "value": TAINT_VALUE, "effect": TAINT_EFFECT}],
            "options": TAINT_SPEC,
        },
        "keep_cordon": {"type": "bool", "default": False},
        "deadline_seconds": {"type": "float", "default": 30.0},
    },
    "required_by": {"lock_token": ["lock_holder"]},
}


def run(params, check_mode):
    deadline = Deadline(params["deadline_seconds"])
    api = api_of(params)
    ledger = ledger_of(params, check_mode)

    def write(node):
        own = {**params, **{name: value for name, value in node.items() if value is not None}}
        permit = permit_of(node["name"], own, api, ledger, deadline, check_mode)
        writer = NodeWriter(api, permit, deadline, node["uid"], check_mode)
        if params["state"] == "present":
            return writer.present(params["taints"])
        if params["state"] == "forgotten":
            return writer.forget()
        if params["state"] == "lifted":
            return writer.lift(params["taints"])
        return writer.release(keep_cordon=params["keep_cordon"]) if own["incident_id"] else writer.absent(params["taints"])

    result = summary(side_by_side(params["nodes"], write))
    return {**result, "failed": "msg" in result}


def main():
    run_module(SPEC, run)


if __name__ == "__main__":
    main()
