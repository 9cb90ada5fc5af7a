#!/usr/bin/python

# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_info
short_description: Read a node's GPUs, who uses them, and what the kernel says of them
description:
  - NVML, the driver's own files, the processes' open files and the kernel log are read side by side, each by a child of its own under a time limit.
    A source that hangs or fails is named in RV(missing), and the answer holds what the others told, and what the hung one had told before.
  - While a child of an earlier run hangs in the driver and cannot be killed, its source is not asked again. See RV(abandoned).
  - Where NVML has lost a GPU or does not answer, the processes that have its device file open are listed instead.
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
  since:
    description: Leave out lines of the kernel log up to this time (ISO 8601, UTC where no zone is given).
    type: str
  timeout_seconds:
    description: The module answers within this time, whatever hangs.
    type: float
    default: 20
"""

EXAMPLES = r"""
- name: Read everything
  gpuops.remediation.gpu_info:
  register: node

- name: Read one GPU, and what the kernel said since the alert began
  gpuops.remediation.gpu_info:
    gpus:
      - GPU-8a3f0c5e-6a49-4c43-9d0c-2f7ad0a4a1c3
    since: "2026-03-01T10:15:00Z"
"""

RETURN = r"""
node:
  description: The node, and when it was read.
  returned: success
  type: dict
  contains:
    boot_id:
      description: Which boot the answer is of.
      type: str
    boot_time:
      description: When the node was booted.
      type: str
    collected_at:
      description: When the answer was complete.
      type: str
    driver_version:
      description: The driver's version; null where NVML did not tell.
      type: str
  sample:
    boot_id: 0f5cbb6f-8d3f-4a0e-9f0e-1e2d3c4b5a69
    boot_time: "2026-03-01T08:00:00.000000+00:00"
    collected_at: "2026-03-01T10:16:02.114000+00:00"
    driver_version: 580.159.04
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
    serial:
      description: The board's serial number.
      type: str
    slot:
      description: The module number in the chassis.
      type: int
    name:
      description: The product's name.
      type: str
    device_path:
      description: The device file.
      type: str
    memory_total_bytes:
      description: Total memory.
      type: int
    memory_used_bytes:
      description: Memory in use.
      type: int
    temperature_celsius:
      description: The GPU's temperature.
      type: int
    persistence_mode:
      description: Whether the driver keeps the GPU initialised while nobody has it open; without it each reading may initialise it anew.
      type: bool
    ecc:
      description:
        - Whether ECC is C(enabled), and whether it will be after the next reset (C(pending)).
        - The counters C(corrected_volatile), C(uncorrected_volatile), C(corrected_aggregate), C(uncorrected_aggregate).
        - C(sram_threshold_exceeded), whether on-chip memory has had more errors than the driver tolerates; null where the driver does not say.
      type: dict
    remapped_rows:
      description: Counts of C(correctable) and C(uncorrectable) remaps, and whether one is C(pending) or has ended in C(failure).
      type: dict
    recovery_action:
      description: The driver's own verdict, C(none), C(gpu_reset), C(node_reboot), C(drain_p2p), C(drain_and_reset) and so on; null where it gives none.
      type: str
    mig:
      description: >-
        MIG mode, C(current) and C(pending), and the C(instances) with C(uuid), C(gi), C(ci), C(profile), and C(memory_total_bytes) and
        C(memory_used_bytes) of the whole GPU instance.
      type: dict
    processes:
      description:
        - Who uses the GPU, with C(pid), C(type) (V(compute), V(graphics), V(mps)), C(memory_bytes), C(gi) and C(ci), C(start_time), C(start_ticks), C(name),
          C(executable), C(cgroup), C(container) (C(runtime), C(id), C(pod_uid)), C(unit), and C(source) (V(nvml) or V(device_file)).
      type: list
      elements: dict
    processes_source:
      description: Where C(processes) is from, V(nvml) or V(device_file). When null, nobody could tell, and the empty list means nothing.
      type: str
    lost:
      description: Whether NVML says that the GPU is lost, or does not list one that is known to be there.
      type: bool
    errors:
      description: Calls that failed or did not end, with the library's own words. A call that the model does not support is not among them.
      type: list
      elements: dict
xids:
  description: Errors of GPUs in the kernel log, oldest first.
  returned: success
  type: list
  elements: dict
kernel_log:
  description: The kernel log's raw lines about GPUs, oldest first.
  returned: success
  type: list
  elements: str
abandoned:
  description: Readers that hang in the driver, cannot be killed, and were left.
  returned: success
  type: list
  elements: dict
  sample:
    - source: nvml
      pid: 4711
      since: "2026-03-01T10:16:02.114000+00:00"
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
from ansible_collections.gpuops.remediation.plugins.module_utils._gpu import info, nvml
from ansible_collections.gpuops.remediation.plugins.module_utils._node.argspec import LOCK_TOGETHER, NODE_OPTIONS
from ansible_collections.gpuops.remediation.plugins.module_utils._node.lock import guard
from ansible_collections.gpuops.remediation.plugins.module_utils._node.node import Node
from ansible_collections.gpuops.remediation.plugins.module_utils._node.procfs import parse_seconds


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **NODE_OPTIONS,
            "gpus": {"type": "list", "elements": "str", "default": []},
            "since": {"type": "str"},
            "timeout_seconds": {"type": "float", "default": 20},
        },
        required_together=LOCK_TOGETHER,
        supports_check_mode=True,
    )
    if nvml.IMPORT_ERROR:
        module.fail_json(msg=missing_required_lib("nvidia-ml-py"), exception=nvml.IMPORT_ERROR)
    params = module.params
    node = Node.from_params(params)
    try:
        guard(node, params, check_mode=module.check_mode)()
        result = info.read(
            node,
            params["gpus"],
            timeout_seconds=params["timeout_seconds"],
            since=parse_seconds(params["since"]) if params["since"] else None,
            remember=not module.check_mode,
        )
    except RemediationError as error:
        module.fail_json(**error.failure())
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
