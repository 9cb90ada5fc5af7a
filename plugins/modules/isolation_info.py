#!/usr/bin/python

# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: isolation_info
short_description: Read what keeps a node's GPU tenants apart, and what does not
description:
  - Reads the GPUs and who is on them, the container toolkit's settings, the engines' versions, the daemons of MPS, and for each container or unit
    that has to do with GPUs what it is limited to, what it can see and what it uses.
  - Nothing is judged here. P(gpuops.remediation.isolation_findings#filter) does that, and the role P(gpuops.remediation.isolation_audit#role) uses both.
  - Of the processes' environments the variables E(NVIDIA_VISIBLE_DEVICES) and E(CUDA_MPS_PIPE_DIRECTORY) are returned, and no other.
  - Device files are looked for in C(/dev) and C(/dev/nvidia-caps) of each container's own mounts, by their numbers. A file that is there may still be
    denied by the container's cgroup. One that somebody has made elsewhere is seen when it is open.
  - Each source is read by a child of its own under a time limit. One that hangs or fails is named in RV(missing).
version_added: "0.1.0"
author: The gpuops.remediation maintainers (@gpuops)
extends_documentation_fragment:
  - gpuops.remediation.attributes
  - gpuops.remediation.attributes.info_module
  - gpuops.remediation.node
  - gpuops.remediation.node.state_dir
options:
  toolkit_configs:
    description: Where the NVIDIA Container Toolkit may have its C(config.toml). The first that is there is read.
    type: list
    elements: path
    default:
      - /usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml
      - /etc/nvidia-container-runtime/config.toml
  engine_dirs:
    description: Folders in which C(nvidia-ctk) and C(runc) are looked for. Each that is found is asked for its version.
    type: list
    elements: path
    default:
      - /usr/local/nvidia/toolkit
      - /usr/bin
      - /usr/sbin
      - /usr/local/bin
      - /usr/local/sbin
      - /var/lib/rancher/k3s/data/current/bin
      - /var/lib/rancher/rke2/bin
  timeout_seconds:
    description: The module answers within this time, whatever hangs.
    type: float
    default: 40
seealso:
  - module: gpuops.remediation.gpu_info
  - module: gpuops.remediation.gpu_allocations_info
"""

EXAMPLES = r"""
- name: Read what keeps tenants apart
  gpuops.remediation.isolation_info:
  register: isolation

- name: Show which containers have no memory limit
  ansible.builtin.debug:
    msg: "{{ isolation.containers | selectattr('memory_max', 'eq', 'max') | map(attribute='id') }}"
"""

RETURN = r"""
node:
  description: The node, as M(gpuops.remediation.gpu_info) returns it.
  returned: success
  type: dict
gpus:
  description: The GPUs, as M(gpuops.remediation.gpu_info) returns them, with C(compute_mode); null where NVML does not tell.
  returned: success
  type: list
  elements: dict
engines:
  description: Each engine that was found, its C(path), its C(version) and, where that is null, C(why).
  returned: success
  type: list
  elements: dict
  sample:
    - engine: nvidia-container-toolkit
      path: /usr/bin/nvidia-ctk
      version: 1.17.8
      why: null
toolkit:
  description: The file that was read, and the settings in force that decide who gets which GPU; null where there is no file.
  returned: success
  type: dict
  sample:
    path: /etc/nvidia-container-runtime/config.toml
    settings:
      accept-nvidia-visible-devices-envvar-when-unprivileged: true
      accept-nvidia-visible-devices-as-volume-mounts: false
      nvidia-container-cli.no-cgroups: false
      nvidia-container-runtime.mode: auto
      features.allow-cuda-compat-libs-from-container: false
mps_daemons:
  description: Control daemons and servers of MPS.
  returned: success
  type: list
  elements: dict
  sample:
    - pid: 4711
      name: nvidia-cuda-mps
      cgroup: /system.slice/mps.service
      pipe_directory: /tmp/nvidia-mps
containers:
  description:
    - Each container, unit or other cgroup that has to do with GPUs. A value that nobody could tell is null.
    - C(cgroup), C(unit), C(runtime), C(id) and C(pod_uid) say which it is; C(processes) are its processes, 64 at most.
    - C(memory_max) is the limit in bytes that holds for it, its own or one above it, or V(max).
    - C(devices) are the GPUs and parts of GPUs whose device files it sees, C(open) those that its processes have open, each with C(kind) (V(gpu),
      V(gpu_instance), V(compute_instance), V(mig_config)), the GPU's C(minor), C(gi) and C(ci).
    - C(uses) are those on which it is by NVML, or by the device file where NVML is silent, with C(gpu), C(gi), C(ci), C(type) and C(source).
    - C(visible_devices) is E(NVIDIA_VISIBLE_DEVICES) of its first process, as it was started; null where it is not set or C(environment_read) is false.
    - C(mps_pipes) are the values of E(CUDA_MPS_PIPE_DIRECTORY) that its processes have.
    - C(mps_reached) are the pipe directories of daemons outside of it that it can reach.
    - C(host_pid) is whether its pid namespace is the host's; C(capabilities) are those by which one leaves a container, V(all) where it has the host's.
  returned: success
  type: list
  elements: dict
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
    - source: containers
      why: did not answer within 20 s
"""

from ansible.module_utils.basic import AnsibleModule, missing_required_lib
from ansible_collections.gpuops.remediation.plugins.module_utils._errors import RemediationError
from ansible_collections.gpuops.remediation.plugins.module_utils._gpu import nvml
from ansible_collections.gpuops.remediation.plugins.module_utils._isolation import info
from ansible_collections.gpuops.remediation.plugins.module_utils._node.argspec import LOCK_TOGETHER, NODE_OPTIONS
from ansible_collections.gpuops.remediation.plugins.module_utils._node.lock import guard
from ansible_collections.gpuops.remediation.plugins.module_utils._node.node import Node

TOOLKIT_CONFIGS = [
    "/usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml",
    "/etc/nvidia-container-runtime/config.toml",
]
ENGINE_DIRS = [
    "/usr/local/nvidia/toolkit",
    "/usr/bin",
    "/usr/sbin",
    "/usr/local/bin",
    "/usr/local/sbin",
    "/var/lib/rancher/k3s/data/current/bin",
    "/var/lib/rancher/rke2/bin",
]


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **NODE_OPTIONS,
            "toolkit_configs": {"type": "list", "elements": "path", "default": TOOLKIT_CONFIGS},
            "engine_dirs": {"type": "list", "elements": "path", "default": ENGINE_DIRS},
            "timeout_seconds": {"type": "float", "default": 40},
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
        options = {name: params[name] for name in ("toolkit_configs", "engine_dirs", "timeout_seconds")}
        result = info.read(node, **options)
    except RemediationError as error:
        module.fail_json(**error.failure())
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
