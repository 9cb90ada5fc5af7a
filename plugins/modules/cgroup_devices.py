#!/usr/bin/python

# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: cgroup_devices
short_description: Allow a cgroup v2 the GPUs and MIG instances that its tenant needs, and no others
description:
  - Attaches a device filter to a cgroup, or to that of a unit, a container or a process. It is a program in the kernel that is pinned in a bpf
    filesystem, and holds for everybody in the cgroup and below it, with no process of its own.
  - Of the NVIDIA driver's devices only those can be opened that the named GPUs and MIG instances need. All other devices are as before, unless
    O(deny_others) is given.
  - Filters stack. What systemd's C(DeviceAllow=), a container runtime or a filter of a cgroup above denies stays denied, and none of them removes this one.
  - Another list takes the old one's place at once. There is no moment at which a device of both lists is denied, or one of neither is open.
  - A filter is asked when a device is opened. Who has one open already keeps it, and is named in RV(still_open).
  - A filter ends with its cgroup, so that a unit has none after a restart, and none survives a boot. What is left of those is removed by each run.
  - What M(gpuops.remediation.cgroup_limits) never touches is refused here too. O(state=absent) is not.
version_added: "0.1.0"
author: The gpuops.remediation maintainers (@gpuops)
extends_documentation_fragment:
  - gpuops.remediation.attributes
  - gpuops.remediation.node
  - gpuops.remediation.node.state_dir
attributes:
  check_mode:
    support: full
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
    description: The cgroup of this systemd unit, which runs. A slice keeps its filter while the units in it come and go.
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
    description: What is wanted.
    type: str
    default: present
    choices:
      present: The cgroup has a filter with exactly this list. At least one of O(gpus), O(mig_instances) and O(devices) is required, and may be empty.
      absent: The cgroup has none of ours. That there is no such cgroup, unit, container or process is no failure.
  gpus:
    description:
      - GPUs, each by UUID, PCI address or the number of its device file. In MIG mode this gives no instance.
      - With a GPU or a MIG instance come C(nvidiactl), C(nvidia-uvm) and C(nvidia-uvm-tools); with neither, all of the driver is closed.
    type: list
    elements: str
  mig_instances:
    description: MIG instances, each with its GPU's device file and the capabilities of the instance. They have to be there.
    type: list
    elements: dict
    suboptions:
      gpu:
        description: The GPU, as in O(gpus).
        type: str
        required: true
      gi:
        description: The id of the GPU instance.
        type: int
        required: true
      ci:
        description: The id of the compute instance; all of the GPU instance that there are now when omitted.
        type: int
  devices:
    description:
      - Other devices that may be opened, each by its file or as C(c MAJOR:MINOR) or C(b MAJOR:MINOR), where C(*) is every minor.
      - RV(undo.devices) can be given here.
    type: list
    elements: str
  modeset:
    description: Whether C(nvidia-modeset) may be opened too, which displays need and CUDA does not.
    type: bool
    default: false
  deny_others:
    description:
      - Whether the devices of all other drivers are denied as well.
      - C(null), C(zero), C(full), C(random), C(urandom), C(tty), C(ptmx) and pseudoterminals stay, as with systemd's C(DevicePolicy=closed).
    type: bool
    default: false
  bpffs_dir:
    description: The folder on a mounted bpf filesystem below which filters are pinned, in C(devices).
    type: path
    default: /sys/fs/bpf/gpuops
  protect:
    description: Units (by name), and containers and other cgroups (by path), that are never touched, as patterns.
    type: list
    elements: str
    default: []
  timeout_seconds:
    description: How long another run on the node is waited for.
    type: float
    default: 30
  incident_id:
    description: The incident, for the node's journal.
    type: str
  why:
    description: The reason in plain words, for the node's journal.
    type: str
    default: asked for by an operator
requirements:
  - Linux 5.11 or later with cgroup v2 alone, and a mounted bpf filesystem
  - CAP_SYS_ADMIN
notes:
  - The driver's devices are those whose name in C(/proc/devices) begins with C(nvidia). Their numbers are the kernel's choice but for the GPUs', so run
    this again after the driver was loaded anew. C(/dev/dri) is of another driver and stays open.
  - Every change is written to C(journal.jsonl) in O(state_dir) before it is made, and to the system log.
  - NVML is not asked. O(nvml_library), O(kmsg_path) and O(dev_root) are there for the sake of C(module_defaults).
seealso:
  - module: gpuops.remediation.cgroup_limits
  - module: gpuops.remediation.mig_layout
"""

EXAMPLES = r"""
- name: One GPU for a tenant's slice, whatever runs in it
  gpuops.remediation.cgroup_devices:
    cgroup: /tenant.slice/tenant-a.slice
    gpus:
      - GPU-8a3f0c5e-6a49-4c43-9d0c-2f7ad0a4a1c3

- name: One MIG instance for a container
  gpuops.remediation.cgroup_devices:
    container: 4f1c2a9be03d
    mig_instances:
      - gpu: "0000:00:06.0"
        gi: 2
        ci: 0
  register: filtered

- name: As it was before
  gpuops.remediation.cgroup_devices:
    container: 4f1c2a9be03d
    state: "{{ filtered.undo.state }}"
    devices: "{{ filtered.undo.devices | default([]) }}"
    deny_others: "{{ filtered.undo.deny_others | default(false) }}"

- name: Close the GPUs to a unit
  gpuops.remediation.cgroup_devices:
    unit: notebook.service
    gpus: []
"""

RETURN = r"""
actions:
  description: What was done, or would be in check mode.
  returned: success
  type: list
  elements: dict
  sample:
    - action: attach
      target: /system.slice/notebook.service
      before:
      after: {allowed: [], guarded_majors: [195, 238, 241], deny_others: false}
before:
  description: >-
    The C(cgroup) (null where there is none), its C(filter) (null where it has none of ours), and C(left_over), the ids of cgroups that ended with a filter.
  returned: success
  type: dict
  sample:
    cgroup: /tenant.slice/tenant-a.slice
    filter:
      allowed:
        - device: c 195:0
          path: /dev/nvidia0
        - device: c 195:255
          path: /dev/nvidiactl
        - device: c 238:0
          path: /dev/nvidia-uvm
        - device: c 238:1
          path: /dev/nvidia-uvm-tools
      guarded_majors: [195, 238, 241]
      deny_others: false
    left_over: []
after:
  description: The same, read again.
  returned: success
  type: dict
denied:
  description:
    - How often opening which device was denied by the cgroup's filter since it was attached, whatever its list was meanwhile. Where the filter is
      removed, until then.
    - C(path) is null for what is not the driver's, and C(device) too for all that a thousand devices left no room for.
    - CUDA tries every GPU that it sees a file of, so a count is no sign of bad intent.
  returned: success
  type: list
  elements: dict
  sample:
    - device: c 195:1
      path: /dev/nvidia1
      opens: 4
still_open:
  description: Devices that are denied, and that processes of the cgroup had open before. They keep working until they are closed.
  returned: success
  type: list
  elements: dict
  sample:
    - pid: 4711
      start_ticks: 81274
      name: python3
      device: c 195:1
      path: /dev/nvidia1
undo:
  description: What the options have to be, to have it as it was.
  returned: success
  type: dict
  contains:
    state:
      description: What O(state) has to be.
      type: str
    devices:
      description: What O(devices) has to be.
      returned: with C(state=present)
      type: list
      elements: str
    deny_others:
      description: What O(deny_others) has to be.
      returned: with C(state=present)
      type: bool
  sample:
    state: absent
error_kind:
  description: >-
    Why nothing was done; among others V(no_device) for a GPU or instance that the driver does not have, V(bad_device), V(not_proven) for a cgroup that is
    never touched, V(no_cgroup), V(no_controller) without cgroup v2, V(no_bpffs), V(unsupported), V(not_permitted), V(not_stackable) where another
    program allows none beside it, V(not_alone), V(lock_lost).
  returned: failure
  type: str
"""

from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.argspec import EBPF_OPTIONS
from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.device_task import filter_devices
from ansible_collections.gpuops.remediation.plugins.module_utils._module import run_module
from ansible_collections.gpuops.remediation.plugins.module_utils._node.argspec import LOCK_TOGETHER, NODE_OPTIONS

TARGETS = ("cgroup", "unit", "container", "pid")
INSTANCE = {"gpu": {"type": "str", "required": True}, "gi": {"type": "int", "required": True}, "ci": {"type": "int"}}
SPEC = {
    "argument_spec": {
        **NODE_OPTIONS,
        "bpffs_dir": EBPF_OPTIONS["bpffs_dir"],
        "cgroup": {"type": "str"},
        "unit": {"type": "str"},
        "container": {"type": "str"},
        "pid": {"type": "int"},
        "start_ticks": {"type": "int"},
        "state": {"type": "str", "default": "present", "choices": ["present", "absent"]},
        "gpus": {"type": "list", "elements": "str"},
        "mig_instances": {"type": "list", "elements": "dict", "options": INSTANCE},
        "devices": {"type": "list", "elements": "str"},
        "modeset": {"type": "bool", "default": False},
        "deny_others": {"type": "bool", "default": False},
        "protect": {"type": "list", "elements": "str", "default": []},
        "timeout_seconds": {"type": "float", "default": 30},
        "incident_id": {"type": "str"},
        "why": {"type": "str", "default": "asked for by an operator"},
    },
    "required_one_of": [TARGETS],
    "mutually_exclusive": [TARGETS],
    "required_if": [("state", "present", ("gpus", "mig_instances", "devices"), True)],
    "required_by": {"start_ticks": ("pid",)},
    "required_together": LOCK_TOGETHER,
}


def main() -> None:
    run_module(SPEC, filter_devices)


if __name__ == "__main__":
    main()
