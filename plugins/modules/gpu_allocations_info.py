#!/usr/bin/python
# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_allocations_info
short_description: Read which GPUs and MIG devices the kubelet has given to which pod
description:
  - Asks the kubelet on the node. A device stays given while no process is on it, which NVML cannot tell.
  - The sources are read side by side, each by a child of its own under a time limit, and the first of O(sources) that tells all of it counts.
  - An entry stays for a while after its pod is gone. P(gpuops.remediation.device_holders#filter) and P(gpuops.remediation.pods_elsewhere#filter) join
    the entries with the pods that the API server knows.
version_added: "0.1.0"
author: The gpuops.remediation maintainers (@gpuops)
extends_documentation_fragment:
  - gpuops.remediation.attributes
  - gpuops.remediation.attributes.info_module
  - gpuops.remediation.node.state_dir
options:
  kubelet_dir:
    description: The kubelet's own folder.
    type: path
    default: /var/lib/kubelet
  sources:
    description:
      - What to believe, the best first.
      - V(pod_resources) is the kubelet's PodResources API, gRPC on a socket. It knows pods by their names and leaves out init containers that end
        before the others begin. It needs the Python library C(h2).
      - V(checkpoint) is the file that the kubelet reads when it starts. It knows pods by their UIDs, has all containers and no claims, and its format
        is the kubelet's own affair.
    type: list
    elements: str
    choices: [pod_resources, checkpoint]
    default: [pod_resources, checkpoint]
  timeout_seconds:
    description: The module answers within this time, whatever hangs.
    type: float
    default: 10
requirements:
  - h2 on the node, for V(pod_resources)
"""

EXAMPLES = r"""
- name: Read who has what
  gpuops.remediation.gpu_allocations_info:
  register: allocations
"""

RETURN = r"""
source:
  description: Which of O(sources) has told it.
  returned: success
  type: str
  sample: pod_resources
allocations:
  description:
    - One entry for each pod, container and resource that is of GPUs or MIG devices, or may be, such as one of virtual GPUs. The pod is
      C(pod_namespace) and C(pod_name) from V(pod_resources), C(pod_uid) from V(checkpoint).
    - C(devices) are UUIDs; C(count) is how many the kubelet has given, which is more where a device is shared and the pod has several shares of it.
  returned: success
  type: list
  elements: dict
  sample:
    - pod_namespace: default
      pod_name: inference-7d9f-x2x4v
      container: main
      resource: nvidia.com/mig-3g.71gb
      devices: [MIG-c01602c2-35f9-5a7c-8e44-c3d3024b9d45]
      count: 1
claims:
  description: One entry for each pod, container and device that a ResourceClaim gives it, of all drivers; from V(pod_resources) only.
  returned: success
  type: list
  elements: dict
  sample:
    - pod_namespace: default
      pod_name: inference-7d9f-x2x4v
      container: main
      claim: default/inference-7d9f-x2x4v-gpu-kq2m8
      driver: gpu.nvidia.com
      pool: gpu-1
      device: gpu-0
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
missing:
  description: Sources that did not answer, and why.
  returned: always
  type: list
  elements: dict
  sample:
    - source: pod_resources
      why: did not answer within 10 s
error_kind:
  description: V(allocations_unknown), no source has told it, so that nobody can tell who has what.
  returned: failure
  type: str
"""

from ansible_collections.gpuops.remediation.plugins.module_utils._module import run_module
from ansible_collections.gpuops.remediation.plugins.module_utils._node import allocations
from ansible_collections.gpuops.remediation.plugins.module_utils._node.argspec import STATE_DIR_OPTIONS
from ansible_collections.gpuops.remediation.plugins.module_utils._node.statedir import StateDir

SPEC = {
    "argument_spec": {
        **STATE_DIR_OPTIONS,
        "kubelet_dir": {"type": "path", "default": "/var/lib/kubelet"},
        "sources": {
            "type": "list",
            "elements": "str",
            "choices": ["pod_resources", "checkpoint"],
            "default": ["pod_resources", "checkpoint"],
        },
        "timeout_seconds": {"type": "float", "default": 10},
    }
}


def run(params, check_mode):
    told = allocations.read(params["kubelet_dir"], params["sources"], StateDir(params["state_dir"]), params["timeout_seconds"])
    return {"changed": False, **told}


def main():
    run_module(SPEC, run)


if __name__ == "__main__":
    main()
