#!/usr/bin/python

# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: ebpf_probe_program
short_description: Keep on a node the program that attaches its eBPF probes again
description:
  - A reboot loses every probe, and containers bring copies of libcuda after M(gpuops.remediation.ebpf_probe) has looked. This module writes what is
    wanted into a file on the node, and beside it a program that does what M(gpuops.remediation.ebpf_probe) does, to be started by units.
  - The program is one file of Python with the very code of M(gpuops.remediation.ebpf_probe). It needs neither Ansible nor a network.
  - Each run attaches what is missing, sweeps what is gone, takes away probes that are not among O(probes), and replaces O(result) by what it did and
    what it cost, and takes V(cuda_launch) away where that costs more than it may.
  - No unit is written, nothing is started, and no probe is attached or removed.
version_added: "0.1.0"
author: The gpuops.remediation maintainers (@gpuops)
extends_documentation_fragment:
  - gpuops.remediation.attributes
  - gpuops.remediation.ebpf
  - gpuops.remediation.ebpf.attach
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
    choices:
      present: They are, and the program attaches.
      held: They are, and the program removes every probe, also after a reboot. For the time of a driver upgrade.
      absent: They are not.
  config:
    description: The file with what is wanted.
    type: path
    default: /etc/gpuops/probes.json
  program:
    description: The program. It takes the path of O(config).
    type: path
    default: /usr/local/lib/gpuops/gpuops-probes
  launch_cpu_percent:
    description:
      - How much of one CPU V(cuda_launch) may take between two runs. Above that the program takes it away, says why in O(result), and leaves it
        away, also after a reboot, until M(gpuops.remediation.ebpf_probe) is asked for it again.
    type: float
    default: 5
  result:
    description: The file that the program replaces with each run. The folder has to be there then.
    type: path
    default: /run/gpuops-probes/result.json
seealso:
  - module: gpuops.remediation.ebpf_probe
"""

EXAMPLES = r"""
- name: Keep what attaches the probes again
  gpuops.remediation.ebpf_probe_program:
    probes: [gpu_xid]
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
  description: V(boot_file), a file cannot be written.
  returned: failure
  type: str
"""

import sys

from ansible_collections.gpuops.remediation.plugins.module_utils import _program
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf import program
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.argspec import ATTACH_OPTIONS, EBPF_OPTIONS
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.budget import DEFAULT_CPU_PERCENT
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.probes import named
from ansible_collections.gpuops.remediation.plugins.module_utils._module import run_module
from ansible_collections.gpuops.remediation.plugins.module_utils._node.argspec import STATE_DIR_OPTIONS
from ansible_collections.gpuops.remediation.plugins.module_utils._node.boot_files import BootFiles, document, show

PROBE_OPTIONS = {**STATE_DIR_OPTIONS, **EBPF_OPTIONS, **ATTACH_OPTIONS}
SPEC = {
    "argument_spec": {
        **PROBE_OPTIONS,
        "state": {"type": "str", "default": "present", "choices": ["present", "held", "absent"]},
        "config": {"type": "path", "default": "/etc/gpuops/probes.json"},
        "program": {"type": "path", "default": "/usr/local/lib/gpuops/gpuops-probes"},
        "launch_cpu_percent": {"type": "float", "default": DEFAULT_CPU_PERCENT},
        "result": {"type": "path", "default": "/run/gpuops-probes/result.json"},
    },
}


def run(params, check_mode):
    wanted = {params["program"]: None, params["config"]: None}
    if params["state"] != "absent":
        probes = {**{name: params[name] for name in PROBE_OPTIONS}, "probes": sorted(named(params["probes"], "present"))}
        wanted[params["program"]] = _program.build(program.__name__, "%s -I" % sys.executable)
        wanted[params["config"]] = document(
            {
                "ebpf_probe": probes,
                "held": params["state"] == "held",
                "launch_cpu_percent": params["launch_cpu_percent"],
                "result": params["result"],
            }
        )
    return BootFiles({params["program"]: 0o755, params["config"]: 0o644}).bring(wanted, check_mode=check_mode).result(show)


def main() -> None:
    run_module(SPEC, run)


if __name__ == "__main__":
    main()
