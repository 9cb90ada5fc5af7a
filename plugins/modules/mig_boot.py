#!/usr/bin/python

# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: mig_boot
short_description: Keep MIG layouts on a node, with a program that makes them again
description:
  - A reboot loses every MIG layout. This module writes what is wanted into a file on the node, and beside it a program that brings the GPUs to
    it, to be started by a unit before anything uses the GPUs.
  - The program is one file of Python with the very code of M(gpuops.remediation.mig_layout). It needs neither Ansible nor a network.
  - It destroys nothing that is busy or that the kubelet has given to a pod, ends no process and waits for none, and does nothing while another
    actor holds the node's lock.
  - No unit is written, and nothing is started.
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
    details:
      - Of the program only a checksum is shown.
  idempotent:
    support: full
options:
  state:
    description: Whether the files are there.
    type: str
    default: present
    choices: [present, absent]
  layouts:
    description:
      - What is wanted, as the option of that name of M(gpuops.remediation.mig_layout). Required with O(state=present).
    type: list
    elements: dict
  config:
    description: The file with what is wanted.
    type: path
    default: /etc/gpuops/mig.json
  program:
    description: The program. It takes the path of O(config).
    type: path
    default: /usr/local/lib/gpuops/mig-restore
  given:
    description: Instances and whole GPUs that are allocated to somebody other than a kubelet's pods, as M(gpuops.remediation.mig_layout) takes them.
    type: list
    elements: str
    default: []
  may_move:
    description: Whether an idle instance that is wanted, and stands where something else has to be, may be destroyed and made elsewhere.
    type: bool
    default: true
  allow_reset:
    description: Whether a GPU may be reset where its mode changes only with a reset.
    type: bool
    default: false
  kubelet_dir:
    description: The kubelet's own folder, where it keeps what it has given away.
    type: path
    default: /var/lib/kubelet
  driver_seconds:
    description: How long the program waits for the driver to answer.
    type: float
    default: 60
  timeout_seconds:
    description: How long the change of all GPUs may take.
    type: float
    default: 120
  nvidia_smi:
    description: The program that resets a GPU.
    type: str
    default: nvidia-smi
  nvidia_modprobe:
    description: The program that makes the device files of instances.
    type: str
    default: nvidia-modprobe
seealso:
  - module: gpuops.remediation.mig_layout
"""

EXAMPLES = r"""
- name: Keep what the node shall have after each boot
  gpuops.remediation.mig_boot:
    layouts:
      - gpus: [GPU-8a3f0c5e-6a49-4c43-9d0c-2f7ad0a4a1c3]
        counts:
          3g.71gb: 2
"""

RETURN = r"""
before:
  description: The files' contents by path; of the program, a checksum; null where there is none.
  returned: success
  type: dict
after:
  description: The same, afterwards.
  returned: success
  type: dict
actions:
  description: What was or would be done.
  returned: success
  type: list
  elements: dict
error_kind:
  description:
    - V(layout_invalid), an entry of O(layouts) is not what M(gpuops.remediation.mig_layout) takes; V(boot_file), a file cannot be written;
      V(lock_lost).
  returned: failure
  type: str
"""

import sys

from ansible_collections.gpuops.remediation.plugins.module_utils import _program
from ansible_collections.gpuops.remediation.plugins.module_utils._mig import boot
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.boot_files import BootFiles, config_of, show
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.boot_params import boot_params
from ansible_collections.gpuops.remediation.plugins.module_utils._module import run_module
from ansible_collections.gpuops.remediation.plugins.module_utils._node.argspec import LOCK_TOGETHER, NODE_OPTIONS
from ansible_collections.gpuops.remediation.plugins.module_utils._node.lock import guard
from ansible_collections.gpuops.remediation.plugins.module_utils._node.node import Node

SPEC = {
    "argument_spec": {
        **NODE_OPTIONS,
        "state": {"type": "str", "default": "present", "choices": ["present", "absent"]},
        "layouts": {"type": "list", "elements": "dict"},
        "config": {"type": "path", "default": "/etc/gpuops/mig.json"},
        "program": {"type": "path", "default": "/usr/local/lib/gpuops/mig-restore"},
        "given": {"type": "list", "elements": "str", "default": []},
        "may_move": {"type": "bool", "default": True},
        "allow_reset": {"type": "bool", "default": False},
        "kubelet_dir": {"type": "path", "default": "/var/lib/kubelet"},
        "driver_seconds": {"type": "float", "default": 60},
        "timeout_seconds": {"type": "float", "default": 120},
        "nvidia_smi": {"type": "str", "default": "nvidia-smi"},
        "nvidia_modprobe": {"type": "str", "default": "nvidia-modprobe"},
    },
    "required_together": LOCK_TOGETHER,
    "required_if": [("state", "present", ("layouts",))],
}


def run(params, check_mode):
    node = Node.from_params(params)
    wanted = {params["program"]: None, params["config"]: None}
    if params["state"] == "present":
        wanted[params["program"]] = _program.build(boot.__name__, sys.executable)
        wanted[params["config"]] = config_of(boot_params(params), params["kubelet_dir"], params["driver_seconds"])
    files = BootFiles({params["program"]: 0o755, params["config"]: 0o644}, guard(node, params, check_mode=check_mode))
    return files.bring(wanted, check_mode=check_mode).result(show)


def main() -> None:
    run_module(SPEC, run)


if __name__ == "__main__":
    main()
