#!/usr/bin/python

# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: mps_info
short_description: Read a node's MPS control daemons, their servers' states and limits, and their clients with their containers
description:
  - A daemon that does not answer hides no other. It is named with the reason in its C(error).
  - What a client that runs may take cannot be read. It is what its server had when it came, or less where its own environment says so.
version_added: "0.1.0"
author: The gpuops.remediation maintainers (@gpuops)
extends_documentation_fragment:
  - gpuops.remediation.attributes
  - gpuops.remediation.attributes.info_module
  - gpuops.remediation.mps
  - gpuops.remediation.node.state_dir
options:
  pipe_directories:
    description: The daemons' folders of pipes. Unless given, each in C(/run/gpuops-mps) and C(/tmp/nvidia-mps), where there is one.
    type: list
    elements: path
seealso:
  - module: gpuops.remediation.mps_daemon
  - module: gpuops.remediation.mps_client
"""

EXAMPLES = r"""
- name: Read all MPS daemons
  gpuops.remediation.mps_info:
  register: mps

- name: Servers that take nobody new
  ansible.builtin.debug:
    msg: "{{ mps.daemons | map(attribute='servers') | flatten | selectattr('status', 'ne', 'ACTIVE') }}"
"""

RETURN = r"""
daemons:
  description: >-
    By folder of pipes. C(error) is null, or has C(msg) and C(error_kind) of why it could not be read, such as V(no_daemon) or V(control_hangs). A limit is
    null where there is none. Clients are process records as in M(gpuops.remediation.mps_client).
  returned: success
  type: list
  elements: dict
  sample:
    - pipe_directory: /run/gpuops-mps/GPU-8a3f0c5e-6a49-4c43-9d0c-2f7ad0a4a1c3
      error: null
      defaults: {memory_limit_bytes: 4294967296, active_thread_percentage: 50.0, client_priority: normal}
      servers:
        - pid: 648
          status: ACTIVE
          settings: {memory_limit_bytes: 4294967296, active_thread_percentage: 50.0}
          clients:
            - server: 648
              pid: 4711
              name: python3
              executable: /usr/bin/python3
              start_time: "2026-03-01T10:15:00.000000+00:00"
              start_ticks: 172402
              cgroup: /system.slice/train.service
              unit: train.service
              container: null
              terminated: false
              lingers: false
error_kind:
  description: V(no_program), there is no control program on this node.
  returned: failure
  type: str
"""

from ansible_collections.gpuops.remediation.plugins.module_utils._module import run_module
from ansible_collections.gpuops.remediation.plugins.module_utils._mps import info
from ansible_collections.gpuops.remediation.plugins.module_utils._mps.argspec import MPS_OPTIONS
from ansible_collections.gpuops.remediation.plugins.module_utils._node.argspec import STATE_DIR_OPTIONS

SPEC = {"argument_spec": {**STATE_DIR_OPTIONS, **MPS_OPTIONS, "pipe_directories": {"type": "list", "elements": "path"}}}


def main() -> None:
    run_module(SPEC, lambda params, check_mode: {"changed": False, "daemons": info.read(params)})


if __name__ == "__main__":
    main()
