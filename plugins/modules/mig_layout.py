#!/usr/bin/python

# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: mig_layout
short_description: Bring a node's GPUs to a MIG layout
description:
  - Of all ways to the wanted layout the one is taken that destroys the fewest instances. Nothing that is busy is destroyed, and what fits stays as it is.
  - A GPU instance without compute instances gets those that it lacks.
  - Each step is read back. If one fails, what the run did on that GPU is taken back, and the error says what is not as it was.
  - All that the driver is asked is asked in a child under a time limit, one a GPU, side by side. Where a call hangs, the error names it.
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
  gpus:
    description: These GPUs only, named by UUID or by PCI address. Empty means all.
    type: list
    elements: str
    default: []
  counts:
    description:
      - So many of each profile, C(3g.71gb) for a GPU instance with all its compute, C(1c.3g.71gb) for a part of one. What is beyond it goes.
      - Empty means MIG without any instance.
    type: dict
  instances:
    description: The instances one by one. What is beyond them goes; an empty list means MIG without any instance.
    type: list
    elements: dict
    suboptions:
      profile:
        description: The GPU instance's profile.
        type: str
        required: true
      start:
        description: Its first memory slice. Left out, it is wherever it fits best.
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
  mig_parted:
    description: A file of nvidia-mig-parted, as text or as the mapping that it is.
    type: raw
  mig_parted_config:
    description: Which of its configurations. GPUs that it does not name are left alone.
    type: str
  mig_enabled:
    description:
      - V(false) destroys all instances and disables MIG.
      - V(true) alone, without one of the options above, enables it and leaves the instances as they are.
    type: bool
  layouts:
    description:
      - Several of these at once, each an entry with the options above, for GPUs that are to look different. Of the entries that name a GPU the last counts.
        An entry without O(layouts[].gpus) names all, and one with O(layouts[].mig_parted) those that its configuration has.
    type: list
    elements: dict
    suboptions:
      gpus:
        description: As O(gpus).
        type: list
        elements: str
        default: []
      counts:
        description: As O(counts).
        type: dict
      instances:
        description: As O(instances).
        type: list
        elements: dict
        suboptions:
          profile:
            description: The GPU instance's profile.
            type: str
            required: true
          start:
            description: Its first memory slice.
            type: int
          compute:
            description: Its compute instances.
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
      mig_parted:
        description: As O(mig_parted).
        type: raw
      mig_parted_config:
        description: As O(mig_parted_config).
        type: str
      mig_enabled:
        description: As O(mig_enabled).
        type: bool
  may_move:
    description: Whether an idle instance that is wanted, and stands where something else has to be, may be destroyed and made elsewhere.
    type: bool
    default: true
seealso:
  - module: gpuops.remediation.mig_info
  - module: gpuops.remediation.mig_instance
"""

EXAMPLES = r"""
- name: Two halves on every GPU, whatever is idle and not wanted goes
  gpuops.remediation.mig_layout:
    counts:
      3g.71gb: 2

- name: What would change, drawn
  gpuops.remediation.mig_layout:
    gpus:
      - GPU-8a3f0c5e-6a49-4c43-9d0c-2f7ad0a4a1c3
    instances:
      - profile: 3g.71gb
        start: 4
        compute:
          - slices: 2
          - slices: 1
      - profile: 1g.18gb
  check_mode: true
  diff: true

- name: A configuration of nvidia-mig-parted, waiting five minutes for what is busy and in the way
  gpuops.remediation.mig_layout:
    mig_parted: "{{ lookup('ansible.builtin.file', 'mig-parted.yaml') }}"
    mig_parted_config: all-balanced
    busy: wait
    busy_timeout_seconds: 300

- name: Quarters, and two halves on one GPU
  gpuops.remediation.mig_layout:
    layouts:
      - counts:
          1g.35gb: 4
      - gpus:
          - GPU-8a3f0c5e-6a49-4c43-9d0c-2f7ad0a4a1c3
        counts:
          3g.71gb: 2

- name: No MIG, also on GPUs that have to be reset for it
  gpuops.remediation.mig_layout:
    mig_enabled: false
    allow_reset: true
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
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.change import LAYOUT_SPEC, run
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.requests import request_of


def main() -> None:
    module = AnsibleModule(supports_check_mode=True, **LAYOUT_SPEC)
    run(module, lambda: request_of(module.params))


if __name__ == "__main__":
    main()
