#!/usr/bin/python

# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: mps_daemon
short_description: Run one MPS control daemon for a GPU or a MIG device, and set its limits
description:
  - One daemon serves one device, so that a fault on it, which stops all clients of its server, stops no other device's. Each has a systemd unit, folders
    for its pipes and logs, and a program that sets the limits whenever the daemon starts, since MPS keeps them in no file.
  - Every value is judged before it is sent and read back after it, because the daemon takes what it does not understand without a word and then has
    no limit, or another one.
  - A limit of MPS is one of a B(process). A tenant with three processes has it three times. O(tenant) makes a process's limit of a budget and of how
    many processes may share it, and RV(tenant) says how many there are now.
  - MPS is no wall between tenants that distrust each other. Who has the pipes can ask the daemon for other limits. MIG is one.
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
      - What would be refused is refused in check mode too.
  diff_mode:
    support: full
  idempotent:
    support: full
options:
  device:
    description: The UUID of a GPU that is not in MIG mode, or of a MIG device.
    type: str
    required: true
  state:
    description: What is wanted.
    type: str
    default: present
    choices:
      present: The daemon runs, now and after a boot, with these limits. What is not named stays as it is; after a start it is as NVIDIA has it.
      absent: There is none. With clients it is refused, since a daemon that is told to quit answers nobody until they have gone.
  managed_by:
    description: Who starts the daemon.
    type: str
    default: systemd
    choices:
      systemd: This module, as the unit C(gpuops-mps@DEVICE.service).
      other: Somebody else, such as NVIDIA's device plugin for Kubernetes. Only the limits of what runs are set, and are lost when it ends.
  pipe_directory:
    description: Where the daemon's pipes are. Only with O(managed_by=other); the unit's own are in C(/run/gpuops-mps/DEVICE).
    type: path
  memory_limit:
    description:
      - How much memory of the device each client process may take, as a whole number with V(M) or V(G) (1024 based), or V(none).
      - A client's context counts, of which an H200 wants about 270 MiB.
    type: str
  tenant:
    description: Instead of O(memory_limit).
    type: dict
    suboptions:
      memory_budget:
        description: What a tenant may take in all, in the same form.
        type: str
        required: true
      clients:
        description: How many processes that tenant may have at once. MPS does not count them.
        type: int
        required: true
  active_thread_percentage:
    description: The share of the device's threads that each client may use, above 0 and up to 100, in tenths.
    type: float
  client_priority:
    description: A hint to the driver's scheduler. A running server has none that could be read or set, so it is for the next one.
    type: str
    choices: [normal, below_normal]
  compute_mode:
    description:
      - The compute mode of the GPU. With V(exclusive_process) only MPS's server can open it, which is refused in MIG mode and while other processes are on it.
      - It is lost when the driver is unloaded, and O(state=absent) leaves it.
    type: str
    choices: [default, exclusive_process]
  config_dir:
    description: Where the unit's files of variables and of limits are.
    type: path
    default: /etc/gpuops/mps
  program:
    description: Where the program is that sets the limits after a start.
    type: path
    default: /usr/local/lib/gpuops/gpuops-mps
  unit_dir:
    description: Where the unit's file is.
    type: path
    default: /etc/systemd/system
  incident_id:
    description: The incident, for the node's journal.
    type: str
  why:
    description: The reason in plain words, for the node's journal.
    type: str
    default: asked for by an operator
notes:
  - systemd is never reloaded. If the unit's file was changed by a newer release while an instance of it was loaded, RV(reload_pending) says so.
  - Every change of the daemon is written to C(journal.jsonl) in O(state_dir) before it is made, and to the system log.
seealso:
  - module: gpuops.remediation.mps_client
  - module: gpuops.remediation.mps_info
"""

EXAMPLES = r"""
- name: Four processes of one tenant share 64 GiB, half of the multiprocessors each
  gpuops.remediation.mps_daemon:
    device: GPU-8a3f0c5e-6a49-4c43-9d0c-2f7ad0a4a1c3
    tenant:
      memory_budget: 64G
      clients: 4
    active_thread_percentage: 50
    compute_mode: exclusive_process
  register: mps

- name: Who goes on as before
  ansible.builtin.debug:
    msg: "{{ mps.seen_by }}"

- name: Limits in the daemon of NVIDIA's device plugin
  gpuops.remediation.mps_daemon:
    device: GPU-8a3f0c5e-6a49-4c43-9d0c-2f7ad0a4a1c3
    managed_by: other
    pipe_directory: /run/nvidia/mps/nvidia.com/gpu/pipe
    memory_limit: 16G
"""

RETURN = r"""
actions:
  description: What was done, or would be in check mode.
  returned: success
  type: list
  elements: dict
  sample:
    - action: set_server
      target: server 648
      before: {memory_limit_bytes: 4294967296}
      after: {memory_limit_bytes: 8589934592}
seen_by:
  description: >-
    Who sees each change. C(takes_effect) is V(now); V(new_clients), and C(clients_as_before) go on with what they have; or V(next_server), and
    C(servers_as_before) go on.
  returned: success
  type: list
  elements: dict
  sample:
    - action: set_server
      target: server 648
      takes_effect: new_clients
      clients_as_before: [646, 685]
before:
  description: The daemon, its defaults, and each server's state, clients and settings. A limit is null where there is none.
  returned: success
  type: dict
  sample:
    running: true
    defaults: {memory_limit_bytes: 4294967296, active_thread_percentage: 50.0, client_priority: normal}
    servers:
      - pid: 648
        status: ACTIVE
        clients: [646, 685]
        settings: {memory_limit_bytes: 4294967296, active_thread_percentage: 50.0}
after:
  description: The same, read again.
  returned: success
  type: dict
tenant:
  description: The budget, what each client may take, and what those that there are now could take together. Null without O(tenant).
  returned: success
  type: dict
  sample:
    memory_budget_bytes: 68719476736
    clients: 4
    each_client_bytes: 17179869184
    clients_now: 5
    together_now_bytes: 85899345920
    within_budget: false
reload_pending:
  description: Whether systemd has the unit loaded from an earlier file.
  returned: success
  type: bool
error_kind:
  description: >-
    Why nothing was done; among others V(bad_value), V(no_daemon), V(no_program), V(has_clients), V(server_fault), V(control_hangs), V(compute_mode),
    V(unit), V(lock_lost).
  returned: failure
  type: str
clients:
  description: The clients because of which it was refused.
  returned: when RV(error_kind=has_clients) or RV(error_kind=server_fault)
  type: list
  elements: int
"""

from ansible.module_utils.basic import AnsibleModule, missing_required_lib
from ansible_collections.gpuops.remediation.plugins.module_utils._errors import RemediationError
from ansible_collections.gpuops.remediation.plugins.module_utils._gpu import nvml
from ansible_collections.gpuops.remediation.plugins.module_utils._mps.argspec import MPS_OPTIONS
from ansible_collections.gpuops.remediation.plugins.module_utils._mps.bring import bring
from ansible_collections.gpuops.remediation.plugins.module_utils._mps.device import MODES
from ansible_collections.gpuops.remediation.plugins.module_utils._mps.limits import PRIORITIES
from ansible_collections.gpuops.remediation.plugins.module_utils._node.argspec import LOCK_TOGETHER, NODE_OPTIONS

TENANT = {"memory_budget": {"type": "str", "required": True}, "clients": {"type": "int", "required": True}}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **NODE_OPTIONS,
            **MPS_OPTIONS,
            "device": {"type": "str", "required": True},
            "state": {"type": "str", "default": "present", "choices": ["present", "absent"]},
            "managed_by": {"type": "str", "default": "systemd", "choices": ["systemd", "other"]},
            "pipe_directory": {"type": "path"},
            "memory_limit": {"type": "str"},
            "tenant": {"type": "dict", "options": TENANT},
            "active_thread_percentage": {"type": "float"},
            "client_priority": {"type": "str", "choices": list(PRIORITIES)},
            "compute_mode": {"type": "str", "choices": list(MODES)},
            "config_dir": {"type": "path", "default": "/etc/gpuops/mps"},
            "program": {"type": "path", "default": "/usr/local/lib/gpuops/gpuops-mps"},
            "unit_dir": {"type": "path", "default": "/etc/systemd/system"},
            "incident_id": {"type": "str"},
            "why": {"type": "str", "default": "asked for by an operator"},
        },
        mutually_exclusive=[("memory_limit", "tenant")],
        required_if=[("managed_by", "other", ("pipe_directory",))],
        required_together=LOCK_TOGETHER,
        supports_check_mode=True,
    )
    if nvml.IMPORT_ERROR:
        module.fail_json(msg=missing_required_lib("nvidia-ml-py"), exception=nvml.IMPORT_ERROR)
    try:
        result = bring(module.params, module.check_mode)
    except RemediationError as error:
        module.fail_json(**error.failure())
    if result["tenant"] and not result["tenant"]["within_budget"]:
        module.warn("%(clients_now)d clients share a budget that was made for %(clients)d" % result["tenant"])
    module.exit_json(**result)


if __name__ == "__main__":
    main()
