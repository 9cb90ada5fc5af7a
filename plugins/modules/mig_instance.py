#!/usr/bin/python

# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: mig_instance
short_description: Create or destroy one GPU instance
description:
  - One instance more or less than there is on a GPU, by the rules of M(gpuops.remediation.mig_layout).
  - All others stay as they are, also in what is divided inside them.
version_added: "0.1.0"
author: The gpuops.remediation maintainers (@gpuops)
extends_documentation_fragment:
  - gpuops.remediation.attributes
  - gpuops.remediation.mig
  - gpuops.remediation.node
  - gpuops.remediation.node.state_dir
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
    details:
      - The layouts are drawn, a line for each instance over the memory slices that it takes.
  idempotent:
    support: full
options:
  gpu:
    description: The GPU, named by UUID or by PCI address.
    type: str
    required: true
  state:
    description: What is wanted.
    type: str
    default: present
    choices:
      present: There is an instance of that profile, at O(start) if that is said, divided as O(compute) says. MIG is enabled for it.
      absent: There is no instance of that profile at O(start). The mode stays as it is, pending or not.
  profile:
    description: The GPU instance's profile.
    type: str
    required: true
  start:
    description:
      - Its first memory slice. Left out, one of that profile anywhere will do, and a new one is made where it fits best.
      - Required for O(state=absent).
    type: int
  compute:
    description: Its compute instances. Left out, one that is all of it; an empty list, none.
    type: list
    elements: dict
    suboptions:
      slices:
        description: How many compute slices it has.
        type: int
        required: true
      start:
        description: Its first one, counted from the GPU instance's own first.
        type: int
  may_move:
    description: Whether idle instances that stand where the new one has to be may be destroyed and made elsewhere.
    type: bool
    default: false
seealso:
  - module: gpuops.remediation.mig_layout
"""

EXAMPLES = r"""
- name: A half of a GPU
  gpuops.remediation.mig_instance:
    gpu: GPU-8a3f0c5e-6a49-4c43-9d0c-2f7ad0a4a1c3
    profile: 3g.71gb

- name: Away with it, once its holders have ended or been ended
  gpuops.remediation.mig_instance:
    gpu: GPU-8a3f0c5e-6a49-4c43-9d0c-2f7ad0a4a1c3
    profile: 3g.71gb
    start: 4
    state: absent
    busy: drain
"""

RETURN = r"""
gpus:
  description: What came of each GPU. One that failed hides no other; the module then fails, and has them all in its result.
  returned: always
  type: list
  elements: dict
  contains:
    uuid:
      description: The UUID. Null for a GPU that could not be named, or is not there.
      type: str
    pci_bus_id:
      description: The PCI address.
      type: str
    name:
      description: The product's name.
      type: str
    changed:
      description: >-
        Whether the layout is another one, or nobody can tell, or RV(gpus[].device_files) were made. What was taken back is no change, though
        RV(gpus[].steps) has it.
      type: bool
    before:
      description:
        - The mode (C(mig)), what it is after the next reset (C(pending)), and the C(instances).
        - Of an instance C(name), C(profile), C(gi), C(start), C(size), C(memory_bytes) and C(compute), which has C(name), C(ci), C(start), C(slices), C(uuid).
      type: dict
    after:
      description: >-
        The same, read again; null where it was changed and cannot be read. In check mode, what is expected, without ids and UUIDs of what is not there yet.
      type: dict
    steps:
      description: What was done, in order, or would be in check mode; C(consequences) are for people to read first.
      type: list
      elements: dict
      sample:
        - action: create_gpu_instance
          target: 3g.71gb@4
          before:
          after: 3g.71gb@4
          consequences: []
    moved:
      description: Instances that are wanted, but had to be made elsewhere.
      type: list
      elements: str
    clients:
      description:
        - Where the mode is to change, whoever has the GPU open, as C(holders) of an error. The driver may take them for being in the way, and tells only
          when it is asked to change it.
      type: list
      elements: dict
    device_files:
      description:
        - Where there are no steps, the driver's capability files of instances that had no device file, without which containers cannot open them.
          The device files were made, or would be in check mode.
      type: list
      elements: str
    reset_required:
      description: Whether the mode is pending until the GPU is reset.
      type: bool
    error:
      description:
        - Null where all went well, else C(kind) and C(msg) and, as they apply, C(instances) that are in the way, C(holders) (C(pid), C(name), C(cgroup)),
          C(given) among them, and the C(reason) for which a layout is not possible. Where O(busy=wait), C(once_free) is the layout that is made when
          they have gone.
        - Where steps had been taken, they were taken back; C(differs) lists what is not as it was before, and is empty where all is. C(not_taken_back)
          says why something could not be, and is missing where all could.
        - C(kind) is among V(mig_busy), V(mig_fragmented), V(mig_infeasible), V(mig_differs), V(reset_required), V(not_proven), V(still_held), V(permission),
          V(driver_too_old), V(nvml), V(timeout), V(lock_lost) and V(unknown_gpu).
      type: dict
reset_required:
  description: Whether it is so of any GPU.
  returned: always
  type: bool
error_kind:
  description: The kind of the first GPU's error, or why the module did nothing at all, such as V(not_alone), V(mig_parted_invalid) or V(nvml).
  returned: failure
  type: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.change import COMPUTE, OPTIONS, run
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.requests import one_less, one_more, wanted_instance
from ansible_collections.gpuops.remediation.plugins.module_utils._node.argspec import LOCK_TOGETHER


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **OPTIONS,
            "gpu": {"type": "str", "required": True},
            "state": {"type": "str", "default": "present", "choices": ["present", "absent"]},
            "profile": {"type": "str", "required": True},
            "start": {"type": "int"},
            "compute": COMPUTE,
            "may_move": {"type": "bool", "default": False},
        },
        required_if=[("state", "absent", ("start",))],
        required_together=LOCK_TOGETHER,
        supports_check_mode=True,
    )
    params = module.params
    params["gpus"] = [params["gpu"]]
    absent = params["state"] == "absent"
    run(
        module,
        lambda: one_less(params["profile"], params["start"]) if absent else one_more(wanted_instance(params), may_move=params["may_move"]),
    )


if __name__ == "__main__":
    main()
