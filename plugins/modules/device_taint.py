#!/usr/bin/python
# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: device_taint
short_description: Take one GPU of a Kubernetes node out of service, and back, where GPUs are handed out by Dynamic Resource Allocation
description:
  - Creates a C(DeviceTaintRule) for each device that a driver hands out of the GPU, in the version that the API server has (C(v1beta2) or
    C(v1alpha3) of C(resource.k8s.io)). The scheduler then gives the GPU to no new work, and the node's other GPUs serve on. The node's own
    object is read and never written.
  - The devices are found in the ResourceSlices by the GPU's UUID or PCI address, whichever driver published them. A GPU that is cut up into
    MIG instances is several devices.
  - Each incident has rules of its own, so that no other writer's are touched. Kubernetes deletes them together with the node's object.
  - The module fails with V(device_not_taintable) where only the whole node can be tainted; C(msg) says why. The GPU may be in no ResourceSlice,
    the server may not serve the rules, or keep them without anybody to act on them, the account may lack the rights, a device plugin may
    hand out the node's GPUs too, or the device of a rule that stands may be another GPU by now. Rules that stand are kept.
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
    details:
      - The server is asked with C(dryRun=All), so what it would refuse is said.
  diff_mode:
    support: full
    details:
      - Shows the rules.
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
  gpu:
    description:
      - The GPU by UUID, by PCI address, or by both, since not every driver says both in its ResourceSlices.
      - With both, a device with the address and another UUID is not taken for it. A reboot may give a lost GPU's address to a healthy one.
      - It is not needed to undo what an incident did.
    type: list
    elements: str
  state:
    description: What is wanted.
    type: str
    default: present
    choices:
      present:
        - The rules exist.
        - A rule which was in force for the incident and has been removed or changed by somebody else is not put back.
      absent:
        - With an incident, its rules on this node are deleted, but for those that somebody else has changed.
        - Without one, those that this module made for the GPU without an incident.
  taint:
    description: The taint.
    type: dict
    default: {key: gpu.unhealthy, value: "true", effect: NoSchedule}
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
        description: The effect. V(NoExecute) deletes the pods whose claims do not tolerate it at once and asks no PodDisruptionBudget.
        type: str
        default: NoSchedule
        choices: [NoSchedule, NoExecute]
  preview:
    description:
      - In place of the taint, ask the server what V(NoExecute) would do. It is asked by rules with the effect C(None), which change nothing and
        are deleted by the same task.
      - In check mode nothing is asked, since the server answers only rules that exist.
    type: bool
    default: false
  deadline_seconds:
    description: How long all of it may take, including everything that is tried again.
    type: float
    default: 30.0
seealso:
  - module: gpuops.remediation.node_taint
  - module: gpuops.remediation.node_drain
"""

EXAMPLES = r"""
- name: Keep new work off one GPU
  gpuops.remediation.device_taint:
    node: gpu-1
    gpu: GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77

- name: Ask whose pods would be deleted by force
  gpuops.remediation.device_taint:
    node: gpu-1
    gpu: "0000:19:00.0"
    preview: true

- name: Undo what the incident changed
  gpuops.remediation.device_taint:
    node: gpu-1
    incident_id: 20260301-101500-1a2b3c4d
    state: absent
"""

RETURN = r"""
before:
  description: The rules as they were.
  returned: success
  type: dict
  sample: {rules: []}
after:
  description: The rules afterwards.
  returned: success
  type: dict
  sample:
    rules:
      - name: gpuops-20260301-101500-1a2b3c4d-gpu-0-5d41402a
        driver: gpu.nvidia.com
        pool: gpu-1
        device: gpu-0
        taint: {key: gpu.unhealthy, value: "true", effect: NoSchedule}
actions:
  description: What was or would be done.
  returned: success
  type: list
  elements: dict
preview:
  description: What the server says that V(NoExecute) would do.
  returned: with O(preview=true), but not in check mode
  type: str
  sample: 1 published device selected. 1 allocated device selected. 1 pod would be evicted in 1 namespace if the effect was NoExecute.
error_kind:
  description:
    - V(device_not_taintable), see the description; V(human_override), somebody removed or changed a rule; V(node_gone), V(node_recreated),
      V(not_managed); V(api_unavailable); or a kind of the ledger or the lock.
  returned: failure
  type: str
node_parts:
  description:
    - What the incident has changed on the node's own object, as a fence that came before the device could be tainted.
      It is more than is needed once the rules stand.
  returned: success and O(state=present)
  type: list
  elements: str
  sample: ["taint/gpu.unhealthy:NoSchedule"]
in_force:
  description: Whether a rule of the incident was made and read back before the API ceased to answer.
  returned: with RV(error_kind=api_unavailable) and O(state=present)
  type: bool
"""

from ansible_collections.gpuops.remediation.plugins.module_utils._kube.access import api_of, ledger_of, permit_of
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.argspec import CONNECTION_SPEC, LOCK_SPEC
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.deadline import Deadline
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.device_taints import show
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.devices import DeviceWriter
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.errors import ApiUnavailable
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.nodes import NodeWriter
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.resources import ResourceApi
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.argspec import LEDGER_SPEC
from ansible_collections.gpuops.remediation.plugins.module_utils._module import run_module
from ansible_collections.gpuops.remediation.plugins.module_utils._names import TAINT_EFFECT, TAINT_KEY, TAINT_VALUE

TAINT_SPEC = {
    "key": {"required": True, "no_log": False},
    "value": {"default": ""},
    "effect": {"default": TAINT_EFFECT, "choices": ["NoSchedule", "NoExecute"]},
}
SPEC = {
    "argument_spec": {
        **CONNECTION_SPEC,
        **LOCK_SPEC,
        **LEDGER_SPEC,
        "node": {"required": True},
        "uid": {},
        "gpu": {"type": "list", "elements": "str"},
        "state": {"default": "present", "choices": ["present", "absent"]},
        "taint": {"type": "dict", "default": {"key": TAINT_KEY, "value": TAINT_VALUE, "effect": TAINT_EFFECT}, "options": TAINT_SPEC},
        "preview": {"type": "bool", "default": False},
        "deadline_seconds": {"type": "float", "default": 30.0},
    },
    "required_by": {"lock_token": ["lock_holder"]},
    "required_if": [("state", "present", ["gpu"]), ("preview", True, ["gpu"])],
    "required_one_of": [("gpu", "incident_id")],
}


def run(params, check_mode):
    deadline = Deadline(params["deadline_seconds"])
    api = api_of(params)
    permit = permit_of(params["node"], params, api, ledger_of(params, check_mode), deadline, check_mode)
    writer = DeviceWriter(NodeWriter(api, permit, deadline, params["uid"], check_mode), ResourceApi(api, deadline))
    if params["preview"]:
        said = {} if check_mode else {"preview": writer.preview(params["gpu"], params["taint"])}
        return {"changed": False, "actions": [], "before": show({}), "after": show({}), **said}
    if params["state"] == "present":
        try:
            outcome = writer.present(params["gpu"], params["taint"])
            if not (check_mode and outcome.steps):
                writer.noticed(outcome.after)
        except ApiUnavailable as error:
            error.details["in_force"] = any(change.status == "applied" for change in writer.changes().values())
            raise
        return {**outcome.result(show), "node_parts": sorted(permit.changes("taint"))}
    return (writer.release() if params["incident_id"] else writer.absent(params["gpu"])).result(show)


def main():
    run_module(SPEC, run)


if __name__ == "__main__":
    main()
