#!/usr/bin/python

# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: mig_info
short_description: Read how a node's GPUs are cut into MIG instances, what else they have room for, and who holds what
description:
  - Reads through NVML the MIG mode, every GPU instance with its place and its compute instances, and what the driver offers. Nothing is changed.
  - Beside the processes that NVML lists, every process is named that has the device file of a GPU or of an instance open. These are what makes the
    driver say that an instance is in use where no process is listed, such as a monitoring agent.
  - NVML, the driver's own files and the processes' open files are read side by side, each by a child of its own under a time limit. A source that hangs
    or fails is named in RV(missing), and the answer holds what the others told, and what the hung one had told before.
version_added: "0.1.0"
author: The gpuops.remediation maintainers (@gpuops)
extends_documentation_fragment:
  - gpuops.remediation.attributes
  - gpuops.remediation.attributes.info_module
  - gpuops.remediation.node
  - gpuops.remediation.node.state_dir
options:
  gpus:
    description: Read these GPUs only, named by UUID or by PCI address. Names that nobody knows are listed in RV(missing).
    type: list
    elements: str
    default: []
  mig_parted:
    description:
      - Also return the layouts of all GPUs of the node as a configuration file of nvidia-mig-parted in which the configuration has this name.
      - The file has no places and knows no GPU instance without a compute instance. See RV(mig_parted_why).
    type: str
  assert_mig_parted:
    description:
      - A file of nvidia-mig-parted, as text or as the mapping that it is, and whether the GPUs are as O(mig_parted_config) in it wants them, in
        RV(asserted). It is asked of each GPU by itself, and a GPU instance without a compute instance is a difference.
    type: raw
  mig_parted_config:
    description: Which of its configurations.
    type: str
  timeout_seconds:
    description: The module answers within this time, whatever hangs.
    type: float
    default: 20
seealso:
  - module: gpuops.remediation.gpu_info
"""

EXAMPLES = r"""
- name: Read the layouts and who holds the instances
  gpuops.remediation.mig_info:
  register: mig

- name: Who is in the way of destroying an instance
  ansible.builtin.debug:
    msg: "{{ mig.gpus[0].holders | selectattr('gi', 'eq', 2) | map(attribute='name') }}"

- name: Read the layouts as nvidia-mig-parted writes them
  gpuops.remediation.mig_info:
    mig_parted: as-found
  register: mig

- name: Are they as a configuration of nvidia-mig-parted wants them
  gpuops.remediation.mig_info:
    assert_mig_parted: "{{ lookup('file', 'mig-parted.yaml') }}"
    mig_parted_config: all-balanced
  register: mig
  failed_when: not mig.asserted.holds

- name: Keep them
  ansible.builtin.copy:
    content: "{{ mig.mig_parted | to_nice_yaml(sort_keys=false) }}"
    dest: /etc/nvidia-mig-manager/as-found.yaml
    mode: "0644"
  when: mig.mig_parted is not none
"""

RETURN = r"""
asserted:
  description:
    - C(holds), whether every GPU that was asked for and that the configuration names is as it wants, and there is one.
    - Of each GPU in C(gpus) C(uuid), C(pci_bus_id), C(holds), and C(why) not. C(holds) is null for one that the configuration leaves alone, and where
      the layout could not be read, which counts as a difference.
  returned: when O(assert_mig_parted) is given
  type: dict
  sample:
    holds: false
    gpus:
      - {uuid: GPU-8a3f0c5e-6a49-4c43-9d0c-2f7ad0a4a1c3, pci_bus_id: "0000:06:00.0", holds: true, why: null}
      - {uuid: GPU-1c0d6e0a-54a6-4b0e-8a31-0d0f1c6d7a55, pci_bus_id: "0000:07:00.0", holds: false, why: it is cut otherwise}
driver_version:
  description: The driver's version; null where NVML did not tell.
  returned: success
  type: str
  sample: 580.159.04
gpus:
  description: One record a GPU. A value that nobody could tell is null, and why stands in the GPU's C(errors).
  returned: success
  type: list
  elements: dict
  contains:
    uuid:
      description: The UUID.
      type: str
    pci_bus_id:
      description: The PCI address with a domain of four digits, in lower case.
      type: str
    index:
      description: NVML's number of the GPU. It changes between boots and is never used to name a GPU.
      type: int
    minor:
      description: The number in the name of the device file.
      type: int
    name:
      description: The product's name.
      type: str
    device_path:
      description: The device file.
      type: str
    lost:
      description: Whether NVML says that the GPU is lost, or does not list one that is known to be there.
      type: bool
    errors:
      description: Calls that failed or did not end, with the library's own words.
      type: list
      elements: dict
    supported:
      description: Whether the GPU has MIG at all; null where that could not be read.
      type: bool
    mig:
      description: Whether MIG is on, C(current), and whether it will be after the next reset, C(pending).
      type: dict
    mode_change_needs_reset:
      description: Whether a change of the mode stays pending until the GPU is reset, as the driver says of this GPU.
      type: bool
    model:
      description: The name under which the collection's own tables know the GPU, or the product's name.
      type: str
    evidence:
      description: Where the tables have their figures from, V(measured), V(listed), V(documented) or V(unverified); V(driver) where they do not know the GPU.
      type: str
    instances:
      description: The GPU instances, by place.
      type: list
      elements: dict
      contains:
        name:
          description: Profile and first memory slice, which together are unique on the GPU.
          type: str
          sample: 3g.71gb@4
        profile:
          description: The profile's name.
          type: str
        gi:
          description: The driver's number of the GPU instance.
          type: int
        start:
          description: Its first memory slice.
          type: int
        size:
          description: How many memory slices it takes.
          type: int
        memory_bytes:
          description: Its memory.
          type: int
        holders:
          description: Pids of all that hold it or a part of it.
          type: list
          elements: int
        compute:
          description:
            - Its compute instances, with C(name), C(ci) (the driver's number), C(start) and C(slices) (compute slices), C(uuid) (the MIG device's) and
              C(holders).
          type: list
          elements: dict
    without_compute:
      description: Names of GPU instances that have no compute instance. Nothing can run in them, and other tools do not see them.
      type: list
      elements: str
    free:
      description: Where an instance of each profile could be created now, by its first memory slice. Profiles for which there is no place are left out.
      type: dict
      sample:
        1g.18gb: [0, 1]
        1g.35gb: [0]
    room:
      description:
        - What is left, in memory slices, C(free_slices), C(stranded_slices) (free, and of no use to any further instance), C(largest_slices) (of the
          instances that can be created now), and C(fragmentation), 0 where all that is free can be one instance and 1 where nothing can be created.
        - Null where MIG is off.
      type: dict
    drawing:
      description: The layout as text, a line for each instance over the memory slices that it takes.
      type: str
    profiles:
      description:
        - What the driver offers, with C(name), C(id), C(limit) (so many at once), C(compute_slices), C(memory_slices), C(starts) (where it can ever be),
          C(memory_bytes), C(multiprocessors) and C(compute) (where compute instances of so many C(slices) can start).
      type: list
      elements: dict
    holders:
      description:
        - Who holds the GPU (C(gi) and C(ci) are null), a GPU instance (C(ci) is null) or a compute instance. Each process is listed at the smallest
          thing that it holds.
        - Records are those of M(gpuops.remediation.gpu_info). The C(type) is V(compute), V(graphics), V(mps) (a client of MPS), V(mps_server), or
          V(client) for whoever is in no list of NVML.
      type: list
      elements: dict
    holders_complete:
      description: Whether NVML's lists and all open files could be read. Where not, there may be holders that are not listed.
      type: bool
mig_parted:
  description: The configuration file as data; null where RV(mig_parted_why) says why there is none.
  returned: when O(mig_parted) is given
  type: dict
mig_parted_why:
  description: Why the layouts could not be put into such a file; null where they could.
  returned: when O(mig_parted) is given
  type: str
  sample: "GPU 0: the format has no words for a GPU instance without a compute instance: 1g.35gb@0"
abandoned:
  description: Readers that hang in the driver, cannot be killed, and were left.
  returned: success
  type: list
  elements: dict
missing:
  description: Sources that could not be read to the end, and why.
  returned: success
  type: list
  elements: dict
  sample:
    - source: nvml
      why: did not answer within 20 s
"""

from ansible.module_utils.basic import AnsibleModule, missing_required_lib
from ansible_collections.gpuops.remediation.plugins.module_utils._errors import RemediationError
from ansible_collections.gpuops.remediation.plugins.module_utils._gpu import nvml
from ansible_collections.gpuops.remediation.plugins.module_utils._mig import info
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.parted import entries_of
from ansible_collections.gpuops.remediation.plugins.module_utils._node.argspec import LOCK_TOGETHER, NODE_OPTIONS
from ansible_collections.gpuops.remediation.plugins.module_utils._node.lock import guard
from ansible_collections.gpuops.remediation.plugins.module_utils._node.node import Node


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **NODE_OPTIONS,
            "gpus": {"type": "list", "elements": "str", "default": []},
            "mig_parted": {"type": "str"},
            "assert_mig_parted": {"type": "raw"},
            "mig_parted_config": {"type": "str"},
            "timeout_seconds": {"type": "float", "default": 20},
        },
        required_together=[*LOCK_TOGETHER, ("assert_mig_parted", "mig_parted_config")],
        supports_check_mode=True,
    )
    if nvml.IMPORT_ERROR:
        module.fail_json(msg=missing_required_lib("nvidia-ml-py"), exception=nvml.IMPORT_ERROR)
    params = module.params
    node = Node.from_params(params)
    try:
        guard(node, params, check_mode=module.check_mode)()
        entries = None
        if params["assert_mig_parted"] is not None:
            entries = entries_of(params["assert_mig_parted"], params["mig_parted_config"])
        result = info.read(node, params["gpus"], timeout_seconds=params["timeout_seconds"], config=params["mig_parted"], asserted=entries)
    except RemediationError as error:
        module.fail_json(**error.failure())
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
