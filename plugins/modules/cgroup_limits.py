#!/usr/bin/python

# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: cgroup_limits
short_description: Limit the host memory, CPU, processes and I/O of a cgroup v2
description:
  - Limits a cgroup, or what a unit, a container or a process runs in. What is not named in O(limits) stays as it is.
  - Where systemd manages the cgroup, its properties are set over D-Bus, without a reload; they survive C(systemctl daemon-reload) and a restart
    of the unit, and with O(persistent) a boot. Elsewhere the kernel's files are written, and the limits go with the cgroup.
  - A memory limit below what is in use is refused with RV(error_kind=limit_below_use), unless O(step_down) or O(force) is given.
  - Never touched are the root, C(system.slice) and C(user.slice), system units such as the kubelet, container runtimes and sshd, whatever holds one of
    these, the kubelet's slices, and whatever runs this very task. What systemd has not delegated is refused too.
  - These are limits of the host. The memory of a GPU is not counted by cgroups, and work that is queued on a GPU uses no CPU of the host.
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
      - What would be refused is refused in check mode too. Whether the kernel can reclaim enough for O(step_down) is not predicted.
  diff_mode:
    support: full
  idempotent:
    support: full
options:
  cgroup:
    description:
      - The cgroup, as C(/proc/PID/cgroup) has it.
      - Exactly one of O(cgroup), O(unit), O(container) and O(pid) is required.
    type: str
  unit:
    description: The cgroup of this systemd unit, which runs.
    type: str
  container:
    description: The cgroup of the container whose id begins so, 12 digits of it at least.
    type: str
  pid:
    description: The cgroup of the container or unit in which this process is.
    type: int
  start_ticks:
    description: The start of O(pid), as M(gpuops.remediation.gpu_info) returned it. A pid may be another process's by now.
    type: int
  state:
    description: Whether the cgroup itself is made or removed.
    type: str
    default: existing
    choices:
      existing: It is there already.
      present: >-
        It is made if it is missing, which needs O(cgroup). Where systemd runs, that is a slice, or a cgroup below a unit with C(Delegate=yes).
      absent: It is removed if it is empty. Nobody is ended. A slice that is made again has the limits again that systemd keeps.
  limits:
    description:
      - What is wanted. V(max) is no limit.
      - RV(undo) can be given here.
    type: dict
    suboptions:
      memory_max:
        description: >-
          Memory beyond which something in the cgroup is killed, in bytes, as a size such as V(2G) (1024 based), or as percentage of the node's memory.
        type: str
      memory_high:
        description: Memory beyond which the kernel reclaims and slows down whoever takes more. The same forms.
        type: str
      memory_low:
        description: Memory that is not reclaimed while others have some that can be. The same forms.
        type: str
      memory_swap_max:
        description: Swap beyond which nothing more of the cgroup is swapped out. The same forms.
        type: str
      memory_oom_group:
        description: >-
          Whether running out of memory kills the whole cgroup. systemd has no property for it that can be set while the unit runs, and clears it when
          something else sets a memory property of the unit or restarts it; C(OOMPolicy=kill) in the unit's own file is for good. This module keeps it.
        type: bool
      cpu_max:
        description: >-
          CPU time, as percentage of one CPU (V(150%)), or C(QUOTA PERIOD) in microseconds. Where systemd manages the cgroup it is a whole percentage.
        type: str
      cpu_weight:
        description: The share of CPU time while others want it too, 1 to 10000. It is 100 unless set.
        type: int
      pids_max:
        description: Processes and threads beyond which no more are started.
        type: str
      io_max:
        description: Limits by block device. Devices that are not named, and what is not said of one, stay as they are.
        type: list
        elements: dict
        suboptions:
          device:
            description: The device file of a whole disk, or its C(MAJOR:MINOR).
            type: str
            required: true
          rbps:
            description: Bytes read in a second, or a size.
            type: str
          wbps:
            description: Bytes written in a second, or a size.
            type: str
          riops:
            description: Reads in a second.
            type: str
          wiops:
            description: Writes in a second.
            type: str
  persistent:
    description: >-
      Whether systemd keeps the limits over a boot. Those of a container, of a transient unit and of what systemd does not manage end with it, whatever
      is said here. A limit that is persistent stays persistent. O(limits.io_max) is kept by the device's number, so it is for devices that have the
      same after each boot.
    type: bool
    default: false
  step_down:
    description:
      - For a memory limit below what is in use, sets C(memory.high) somewhat below it, waits O(timeout_seconds) for the kernel to reclaim, and sets
        the limit then. If that does not suffice, everything is as before and the module fails.
      - Meanwhile the kernel slows down whoever in the cgroup takes more memory. A run that is killed then leaves C(memory.high); the node's journal has
        what it was.
    type: bool
    default: false
  force:
    description: Sets a memory limit below what is in use at once. The kernel may then kill what runs there.
    type: bool
    default: false
  protect:
    description: Units (by name), and containers and other cgroups (by path), that are never touched, as patterns.
    type: list
    elements: str
    default: []
  timeout_seconds:
    description: How long O(step_down) may take.
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
  - Needs cgroup v2 with the controllers concerned. On v1, or on v2 beside v1, it fails with RV(error_kind=no_controller).
  - Every change is written to C(journal.jsonl) in O(state_dir) before it is made, and to the system log.
  - NVML is not asked. O(nvml_library), O(kmsg_path) and O(dev_root) are there for the sake of C(module_defaults).
seealso:
  - module: gpuops.remediation.cgroup_state
"""

EXAMPLES = r"""
- name: Hold a data loader to 32 GiB and 8 CPUs, and give its page cache back first
  gpuops.remediation.cgroup_limits:
    unit: loader.service
    limits:
      memory_max: 32G
      cpu_max: 800%
    step_down: true
  register: limited

- name: As it was before
  gpuops.remediation.cgroup_limits:
    unit: loader.service
    limits: "{{ limited.undo }}"

- name: A slice for a tenant, kept over boots
  gpuops.remediation.cgroup_limits:
    cgroup: /tenant.slice/tenant-a.slice
    state: present
    limits:
      memory_max: 50%
      pids_max: 4096
      io_max:
        - device: /dev/nvme0n1
          wbps: 200M
    persistent: true
"""

RETURN = r"""
actions:
  description: What was done, or would be in check mode.
  returned: success
  type: list
  elements: dict
  sample:
    - action: set
      target: /system.slice/loader.service
      before: {memory_max: max}
      after: {memory_max: 34359738368}
before:
  description: >-
    The cgroup, whether it C(exists), who manages it (C(systemd) or C(cgroupfs)), its limits (null where it has no such file), and C(kept), which says of
    the limits that were asked for whether systemd keeps them until the next boot (V(runtime)) or over it (V(persistent)).
  returned: success
  type: dict
  sample:
    cgroup: /system.slice/loader.service
    exists: true
    managed_by: systemd
    limits:
      memory_max: max
      memory_high: max
      memory_low: 0
      memory_swap_max: max
      memory_oom_group: false
      cpu_max: max 100000
      cpu_weight: 100
      pids_max: 618012
      io_max: []
    kept: {}
after:
  description: The same, read again.
  returned: success
  type: dict
undo:
  description: What O(limits) has to be, to have it as it was.
  returned: success
  type: dict
  sample:
    memory_max: max
usage:
  description: What was in use before.
  returned: success, and when RV(error_kind=limit_below_use)
  type: dict
  sample:
    memory_current: 1287651328
    memory_swap_current: 0
    pids_current: 42
error_kind:
  description: >-
    Why nothing was done; among others V(limit_below_use), V(not_proven) for a cgroup that is never touched, V(no_cgroup), V(no_controller), V(bad_limit),
    V(systemd), V(lock_lost).
  returned: failure
  type: str
limit_bytes:
  description: The limit that is below what is in use.
  returned: when RV(error_kind=limit_below_use)
  type: int
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.limit_task import LimitTask
from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.limits import State, undo_of
from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.systemd import Systemd
from ansible_collections.gpuops.remediation.plugins.module_utils._converge import converge
from ansible_collections.gpuops.remediation.plugins.module_utils._errors import RemediationError
from ansible_collections.gpuops.remediation.plugins.module_utils._node.argspec import LOCK_TOGETHER, NODE_OPTIONS
from ansible_collections.gpuops.remediation.plugins.module_utils._node.journal import Journal
from ansible_collections.gpuops.remediation.plugins.module_utils._node.lock import guard
from ansible_collections.gpuops.remediation.plugins.module_utils._node.node import Node

IO_OPTIONS = {"device": {"type": "str", "required": True}, **{key: {"type": "str"} for key in ("rbps", "wbps", "riops", "wiops")}}
LIMITS = {
    **{name: {"type": "str"} for name in ("memory_max", "memory_high", "memory_low", "memory_swap_max", "cpu_max", "pids_max")},
    "memory_oom_group": {"type": "bool"},
    "cpu_weight": {"type": "int"},
    "io_max": {"type": "list", "elements": "dict", "options": IO_OPTIONS},
}
TARGETS = ("cgroup", "unit", "container", "pid")


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **NODE_OPTIONS,
            "cgroup": {"type": "str"},
            "unit": {"type": "str"},
            "container": {"type": "str"},
            "pid": {"type": "int"},
            "start_ticks": {"type": "int"},
            "state": {"type": "str", "default": "existing", "choices": ["existing", "present", "absent"]},
            "limits": {"type": "dict", "options": LIMITS},
            "persistent": {"type": "bool", "default": False},
            "step_down": {"type": "bool", "default": False},
            "force": {"type": "bool", "default": False},
            "protect": {"type": "list", "elements": "str", "default": []},
            "timeout_seconds": {"type": "float", "default": 60},
            "incident_id": {"type": "str"},
            "why": {"type": "str", "default": "asked for by an operator"},
        },
        required_one_of=[TARGETS],
        mutually_exclusive=[TARGETS],
        required_if=[("state", "present", ("cgroup",)), ("state", "absent", ("cgroup",))],
        required_by={"start_ticks": ("pid",)},
        required_together=LOCK_TOGETHER,
        supports_check_mode=True,
    )
    params = module.params
    node = Node.from_params(params)
    try:
        keep_lock = guard(node, params, check_mode=module.check_mode)
        task = LimitTask(node, params, Systemd.running(node.cgroup_root), Journal.from_params(node, params), keep_lock)
        outcome = converge(task.read, task.plan, task.predict, task.apply, check_mode=module.check_mode)
    except RemediationError as error:
        module.fail_json(**error.failure())
    module.exit_json(**outcome.result(State.show), undo=undo_of(outcome.steps), usage=dict(outcome.before.usage))


if __name__ == "__main__":
    main()
