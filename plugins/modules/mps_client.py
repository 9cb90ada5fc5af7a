#!/usr/bin/python

# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: mps_client
short_description: End the GPU work of clients of MPS, and bring a server back that is in FAULT
description:
  - Killing a client of MPS while its work runs takes the server's other clients with it. So its server is told to terminate it first, which ends its
    GPU work and lets the process live, and only then, with O(end_process), the process is ended.
  - A fault of one client stops all of its server. The server is in C(FAULT) and takes nobody new until every client has gone. Their work is lost already,
    so O(state=recovered) ends their processes and waits for C(ACTIVE).
  - In C(FAULT) no client is ever terminated through the server. It would not answer again, and would stay in C(FAULT) after all have gone.
  - A client that is frozen or stopped is not terminated either. Its server would wait for it, and the work of its neighbours too.
  - A client that was terminated is listed by MPS as before until its process ends, and terminating it again stops the control daemon until then. The
    module remembers whom it has told.
version_added: "0.1.0"
author: The gpuops.remediation maintainers (@gpuops)
extends_documentation_fragment:
  - gpuops.remediation.attributes
  - gpuops.remediation.mps
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
  pipe_directory:
    description: Where the control daemon's pipes are. M(gpuops.remediation.mps_daemon) has them in C(/run/gpuops-mps/DEVICE).
    type: path
    required: true
  state:
    description: What is wanted.
    type: str
    required: true
    choices:
      listed: Nothing is changed. RV(after) has the servers and their clients.
      terminated: The GPU work of O(pids) has ended.
      recovered: No server is in C(FAULT).
  pids:
    description: Who is terminated. One that lives and is no client of this daemon is a reason to do nothing.
    type: list
    elements: dict
    suboptions:
      pid:
        description: The process, as the host numbers it.
        type: int
        required: true
      start_ticks:
        description: Its start, as M(gpuops.remediation.mps_info) returned it. A pid may be another process's by now.
        type: int
        required: true
  end_process:
    description: >-
      Whether the processes are ended too, once their work is, by SIGTERM and after O(grace_seconds) by SIGKILL. The cgroup of each must be one container's
      or one unit's alone, as for M(gpuops.remediation.cgroup_state); otherwise nothing at all is done.
    type: bool
    default: false
  grace_seconds:
    description: How long a process may take to end after SIGTERM.
    type: float
    default: 10
  protect:
    description: Units (by name) and containers (by cgroup) whose processes are never ended, as patterns, beside those that never are anyway.
    type: list
    elements: str
    default: []
  timeout_seconds:
    description: The module answers within this time, and the one answer that it may be waiting for.
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
  - NVML is not asked. O(nvml_library), O(kmsg_path) and O(dev_root) are there for the sake of C(module_defaults).
seealso:
  - module: gpuops.remediation.mps_daemon
  - module: gpuops.remediation.mps_info
  - module: gpuops.remediation.cgroup_state
"""

EXAMPLES = r"""
- name: End one client's GPU work and then its process; its neighbours go on
  gpuops.remediation.mps_client:
    pipe_directory: /run/gpuops-mps/GPU-8a3f0c5e-6a49-4c43-9d0c-2f7ad0a4a1c3
    state: terminated
    pids:
      - pid: 4711
        start_ticks: 172402
    end_process: true
    why: its tenant went past its budget

- name: Have a server take clients again after a fault
  gpuops.remediation.mps_client:
    pipe_directory: /run/gpuops-mps/GPU-8a3f0c5e-6a49-4c43-9d0c-2f7ad0a4a1c3
    state: recovered
"""

RETURN = r"""
actions:
  description: What was done, or would be in check mode.
  returned: success
  type: list
  elements: dict
  sample:
    - action: terminate_client
      target: client 4711 of server 648
      before: {terminated: false}
      after: {terminated: true}
    - action: end
      target: server 648
      before: {processes: [4711]}
      after: {processes: []}
before:
  description: >-
    The servers and their clients, each as the node's process record has it (container, unit, cgroup, start), whether it was C(terminated), and whether
    it C(lingers), which is that its process has gone and its server has not noticed.
  returned: success
  type: dict
  sample:
    servers:
      - pid: 648
        status: ACTIVE
    clients:
      - server: 648
        pid: 4711
        name: python3
        executable: /usr/bin/python3
        start_time: "2026-03-01T10:15:00.000000+00:00"
        start_ticks: 172402
        cgroup: /system.slice/train.service
        unit: train.service
        container: null
        terminated: false
        lingers: false
after:
  description: The same, read again.
  returned: success
  type: dict
error_kind:
  description: >-
    Why nothing was done, or what did not end; among others V(not_proven), V(server_fault), V(client_stopped), V(control_hangs),
    V(no_daemon), V(still_held), V(lock_lost).
  returned: failure
  type: str
suspects:
  description: The processes for which the proof is lacking, and what it lacks.
  returned: when RV(error_kind=not_proven)
  type: list
  elements: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuops.remediation.plugins.module_utils._converge import converge
from ansible_collections.gpuops.remediation.plugins.module_utils._errors import RemediationError
from ansible_collections.gpuops.remediation.plugins.module_utils._mps.argspec import MPS_OPTIONS
from ansible_collections.gpuops.remediation.plugins.module_utils._mps.clients import ClientTask, State, Want
from ansible_collections.gpuops.remediation.plugins.module_utils._mps.control import Control, find_program
from ansible_collections.gpuops.remediation.plugins.module_utils._node.argspec import LOCK_TOGETHER, NODE_OPTIONS
from ansible_collections.gpuops.remediation.plugins.module_utils._node.journal import Journal
from ansible_collections.gpuops.remediation.plugins.module_utils._node.lock import guard
from ansible_collections.gpuops.remediation.plugins.module_utils._node.node import Node

PIDS = {"pid": {"type": "int", "required": True}, "start_ticks": {"type": "int", "required": True}}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **NODE_OPTIONS,
            **MPS_OPTIONS,
            "pipe_directory": {"type": "path", "required": True},
            "state": {"type": "str", "required": True, "choices": ["listed", "terminated", "recovered"]},
            "pids": {"type": "list", "elements": "dict", "options": PIDS},
            "end_process": {"type": "bool", "default": False},
            "grace_seconds": {"type": "float", "default": 10},
            "protect": {"type": "list", "elements": "str", "default": []},
            "timeout_seconds": {"type": "float", "default": 60},
            "incident_id": {"type": "str"},
            "why": {"type": "str", "default": "asked for by an operator"},
        },
        required_if=[("state", "terminated", ("pids",))],
        required_together=LOCK_TOGETHER,
        supports_check_mode=True,
    )
    params = module.params
    node = Node.from_params(params)
    try:
        keep_lock = guard(node, params, check_mode=module.check_mode)
        control = Control(find_program(params["mps_control"]), params["pipe_directory"], params["control_timeout_seconds"])
        task = ClientTask(node, control, Want.from_params(params), Journal.from_params(node, params), keep_lock, params["timeout_seconds"])
        with task.holding():
            outcome = converge(task.read, task.plan, task.predict, task.apply, check_mode=module.check_mode)
    except RemediationError as error:
        module.fail_json(**error.failure())
    module.exit_json(**outcome.result(State.show))


if __name__ == "__main__":
    main()
