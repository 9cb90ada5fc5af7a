#!/usr/bin/python
# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_allocations_info
short_description: Read which GPUs and MIG devices the kubelet has given to which pod
description:
  - Reads the kubelet's checkpoint file on the node. A device stays given while no process is on it, which NVML cannot tell.
  - An entry stays for a while after its pod is gone. P(gpuops.remediation.device_holders#filter) joins the entries with the pods that the API
    server knows.
version_added: "0.1.0"
author: The gpuops.remediation maintainers (@gpuops)
extends_documentation_fragment:
  - gpuops.remediation.attributes
  - gpuops.remediation.attributes.info_module
options:
  kubelet_dir:
    description: The kubelet's own folder.
    type: path
    default: /var/lib/kubelet
"""

EXAMPLES = r"""
- name: Read who has what
  gpuops.remediation.gpu_allocations_info:
  register: allocations
"""

RETURN = r"""
allocations:
  description: One entry for each pod, container and resource that is of GPUs or MIG devices, or may be, such as one of virtual GPUs.
  returned: success
  type: list
  elements: dict
  sample:
    - pod_uid: 5f7dd6b1-31f5-4c0b-8d0c-0d5f64a9a0aa
      container: main
      resource: nvidia.com/mig-3g.71gb
      devices: [MIG-c01602c2-35f9-5a7c-8e44-c3d3024b9d45]
registered:
  description: The devices that the device plugin has registered, by resource. They may be those of an earlier layout.
  returned: success
  type: dict
  sample:
    nvidia.com/mig-3g.71gb: [MIG-c01602c2-35f9-5a7c-8e44-c3d3024b9d45]
shared:
  description: Resources whose devices the plugin shares among pods, by time-slicing or MPS, renamed or not.
  returned: success
  type: list
  elements: str
  sample: [nvidia.com/gpu]
error_kind:
  description: V(checkpoint_unreadable), the file is not there or is not understood, so that nobody can tell who has what.
  returned: failure
  type: str
"""

from ansible_collections.gpuops.remediation.plugins.module_utils._module import run_module
from ansible_collections.gpuops.remediation.plugins.module_utils._node import device_allocations

SPEC = {"argument_spec": {"kubelet_dir": {"type": "path", "default": "/var/lib/kubelet"}}}


def run(params, check_mode):
    return {"changed": False, **device_allocations.read(params["kubelet_dir"])}


def main():
    run_module(SPEC, run)


if __name__ == "__main__":
    main()
