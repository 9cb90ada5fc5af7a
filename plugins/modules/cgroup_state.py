#!/usr/bin/python

# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: cgroup_state
short_description: Freeze, thaw or kill a container's or unit's cgroup, or end a GPU's holders
description:
  - A process is touched only with proof, which is taken in the same run. NVML lists the process on O(gpu), or has lost that GPU and the process has
    its device file open; it started before O(fault_time), or before O(stage_started_at) where all holders of the GPU are meant; its cgroup is
    one container's or one unit's alone.
  - Without proof nothing at all is done, the module fails with RV(error_kind=not_proven), and RV(suspects) names the processes.
  - Never touched are the root, slices, C(init.scope), session scopes, the kubelet, container runtimes, sshd, and whatever runs this very task.
  - While an MPS server is on the GPU nothing is done, since killing one of its clients takes the others with it.
  - Freezing stops new work only. Work that is queued on the GPU runs on, and its memory stays allocated.
  - The end state is read back. What does not end in time is named in RV(left), with RV(error_kind=still_held).
version_added: "0.1.0"
author: The gpuops.remediation maintainers (@gpuops)
extends_documentation_fragment:
  - gpuops.remediation.attributes
  - gpuops.remediation.node
  - gpuops.remediation.node.state_dir
attributes:
  check_mode:
    support: full
    details:
      - The proof is asked for in check mode too, so that the prediction fails where the real run would.
  diff_mode:
    support: full
  idempotent:
    support: full
options:
  state:
    description: What is wanted.
    type: str
    required: true
    choices:
      frozen: The cgroup's processes run no more, and keep what they have.
      thawed: They run again.
      killed: >-
        With O(cgroup) that cgroup is empty. Without it no process that counts holds the GPU; holders first get SIGTERM and O(grace_seconds).
      free: >-
        No process that counts holds the GPU. Nothing is touched and nothing needs to be proven; the module waits O(timeout_seconds) for it.
  gpu:
    description:
      - The GPU concerned, named by UUID, PCI address or the path of its device file.
      - Required but for O(state=thawed).
    type: str
  cgroup:
    description:
      - The cgroup, as C(/proc/PID/cgroup) has it. Only processes in it and below are touched.
      - Required for O(state=thawed).
    type: str
  pids:
    description:
      - The suspects. Only these, and the containers or units they are in, are touched.
      - One that lives and is not on the GPU is a reason to do nothing, and so is an empty list, which names nobody.
    type: list
    elements: dict
    suboptions:
      pid:
        description: The process.
        type: int
        required: true
      start_ticks:
        description: Its start, as M(gpuops.remediation.gpu_info) returned it. A pid may be another process's by now.
        type: int
        required: true
  fault_time:
    description: When the fault happened (ISO 8601). Needed with O(cgroup) or O(pids).
    type: str
  stage_started_at:
    description: When the stage began (ISO 8601). Needed where all holders of the GPU are meant.
    type: str
  allowed_holders:
    description:
      - Processes that may stay on the GPU, such as monitoring, as patterns.
      - A pattern with a slash is compared with the cgroup, any other with the executable's name.
    type: list
    elements: str
    default: []
  protect:
    description: Units (by name) and containers (by cgroup) that are never touched, as patterns, beside those that never are anyway.
    type: list
    elements: str
    default: []
  grace_seconds:
    description: How long holders of the GPU may take to end after SIGTERM. Frozen ones and those of O(cgroup) are killed at once.
    type: float
    default: 30
  timeout_seconds:
    description: The module answers within this time.
    type: float
    default: 60
  incident_id:
    description: The incident, for the node's journal.
    type: str
  why:
    description: The reason in plain words, for the node's journal.
    type: str
    default: asked for by an operator
notes:
  - Every change is written to C(journal.jsonl) in O(state_dir) before it is made, and to the system log.
seealso:
  - module: gpuops.remediation.gpu_info
"""

EXAMPLES = r"""
- name: Freeze the container that the fault came from, while it is looked at
  gpuops.remediation.cgroup_state:
    state: frozen
    gpu: GPU-8a3f0c5e-6a49-4c43-9d0c-2f7ad0a4a1c3
    pids:
      - pid: 4711
        start_ticks: 172402
    fault_time: "2026-03-01T10:15:00Z"

- name: End all holders of a GPU
  gpuops.remediation.cgroup_state:
    state: killed
    gpu: GPU-8a3f0c5e-6a49-4c43-9d0c-2f7ad0a4a1c3
    stage_started_at: "2026-03-01T10:16:00Z"
    allowed_holders:
      - nv-hostengine
    why: row remap failure
"""

RETURN = r"""
actions:
  description: What was done, or would be in check mode.
  returned: success
  type: list
  elements: dict
  sample:
    - action: kill
      target: /system.slice/train.service
      before: {processes: [4711]}
      after: {processes: []}
before:
  description: The cgroups concerned, their processes and which of them hold the GPU.
  returned: success
  type: dict
  sample:
    gpu: GPU-8a3f0c5e-6a49-4c43-9d0c-2f7ad0a4a1c3
    cgroups:
      - path: /system.slice/train.service
        frozen: false
        processes: [4711]
        holders: [4711]
after:
  description: The same, read again.
  returned: success
  type: dict
error_kind:
  description: Why nothing was done, or what did not end; among others V(not_proven), V(still_held), V(unknown_gpu), V(lock_lost).
  returned: failure
  type: str
suspects:
  description: The processes for which the proof is lacking, and what it lacks.
  returned: when RV(error_kind=not_proven)
  type: list
  elements: dict
mps_server:
  description: The MPS server because of which nothing was done, its C(pid) (null where only clients were seen) and its C(clients).
  returned: when there is one
  type: dict
left:
  description: What has not ended in time.
  returned: when RV(error_kind=still_held)
  type: list
  elements: dict
"""

from ansible.module_utils.basic import AnsibleModule, missing_required_lib
from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.act import CgroupTask, State, Want
from ansible_collections.gpuops.remediation.plugins.module_utils._converge import converge
from ansible_collections.gpuops.remediation.plugins.module_utils._errors import RemediationError
from ansible_collections.gpuops.remediation.plugins.module_utils._gpu import nvml
from ansible_collections.gpuops.remediation.plugins.module_utils._node.argspec import LOCK_TOGETHER, NODE_OPTIONS
from ansible_collections.gpuops.remediation.plugins.module_utils._node.journal import Journal
from ansible_collections.gpuops.remediation.plugins.module_utils._node.lock import guard
from ansible_collections.gpuops.remediation.plugins.module_utils._node.node import Node

STRINGS = {"type": "list", "elements": "str", "default": []}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **NODE_OPTIONS,
            "state": {"type": "str", "required": True, "choices": ["frozen", "thawed", "killed", "free"]},
            "gpu": {"type": "str"},
            "cgroup": {"type": "str"},
            "pids": {
                "type": "list",
                "elements": "dict",
                "options": {"pid": {"type": "int", "required": True}, "start_ticks": {"type": "int", "required": True}},
            },
            "fault_time": {"type": "str"},
            "stage_started_at": {"type": "str"},
            "allowed_holders": STRINGS,
            "protect": STRINGS,
            "grace_seconds": {"type": "float", "default": 30},
            "timeout_seconds": {"type": "float", "default": 60},
            "incident_id": {"type": "str"},
            "why": {"type": "str", "default": "asked for by an operator"},
        },
        required_if=[*(("state", state, ("gpu",)) for state in ("frozen", "killed", "free")), ("state", "thawed", ("cgroup",))],
        required_together=LOCK_TOGETHER,
        supports_check_mode=True,
    )
    if nvml.IMPORT_ERROR:
        module.fail_json(msg=missing_required_lib("nvidia-ml-py"), exception=nvml.IMPORT_ERROR)
    params = module.params
    node = Node.from_params(params)
    try:
        journal = Journal.from_params(node, params)
        keep_lock = guard(node, params, check_mode=module.check_mode)
        task = CgroupTask(node, Want.from_params(params), journal, keep_lock, params["timeout_seconds"])
        with task.holding():
            outcome = converge(task.read, task.plan, task.predict, task.apply, check_mode=module.check_mode)
    except RemediationError as error:
        module.fail_json(**error.failure())
    module.exit_json(**outcome.result(State.show))


if __name__ == "__main__":
    main()
