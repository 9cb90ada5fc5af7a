#!/usr/bin/python

# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: ebpf_probe
short_description: Attach eBPF probes that stay when nobody watches
description:
  - The programs and their maps are pinned in a bpf filesystem. They count from then on with no process of their own, also while no exporter runs.
  - V(cuda_mem) counts the memory that processes hold, at the interface of the driver's libcuda, by process and by cgroup.
  - V(gpu_xid) counts the driver's errors, from the kernel log and from the driver's tracepoint where it has one.
  - V(cuda_launch) counts what processes launch, and how long the calls take on the host. Launches are frequent and each pays for two hits, so it comes
    only if asked for, and the program of M(gpuops.remediation.ebpf_probe_program) takes it away where it costs too much. Asking for it ends that.
  - V(gpu_irq) counts the interrupts of the driver's devices, and how long its handlers kept a CPU. It runs at every interrupt of the node.
  - V(gpu_vm) counts the calls of ioctl and mmap on the driver's device files. It makes every system call of the node a little dearer, so it comes only
    if asked for.
  - Every copy of libcuda on the node gets its probes, the host's and those in containers. A copy that comes later is found when the module runs again.
  - An upgrade of the programs attaches the new ones before it removes the old ones, over the same maps. Nothing is missed and nothing is counted twice.
  - Nothing survives a reboot. Overwriting a library in place under a probe crashes whoever uses it, so stop what runs this module by a timer, and
    remove the probes, before a driver is upgraded. A link to the driver's tracepoint also keeps its module loaded.
  - Attaching and detaching at functions wait for every process that uses the library. Where one hangs with its memory map locked, the module refuses
    (V(hung_process)), since all forks on the node would wait too.
  - Runs on one node wait for each other, as long as O(timeout_seconds) says. Where links and pinned maps do not belong together, as after an
    interrupted run, everything is attached anew and counts from zero.
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
      - The links and maps that are pinned.
  idempotent:
    support: partial
    details:
      - With O(state=restarted) everything is attached anew each time.
options:
  state:
    description: What is wanted.
    type: str
    default: present
    choices:
      present: The probes are attached, and what they have counted is kept.
      absent: No link, map or folder of them is left.
      restarted: They are attached anew and count from zero.
requirements:
  - Linux 5.15 or later on x86_64, with BTF; for V(cuda_mem) and V(cuda_launch) none whose seccomp filters can deny the return of a probed function, as in 6.11
  - libbpf 1.0 or later (C(libbpf.so.1))
  - CAP_SYS_ADMIN
seealso:
  - module: gpuops.remediation.ebpf_probe_info
  - module: gpuops.remediation.ebpf_probe_program
"""

EXAMPLES = r"""
- name: Count GPU memory from now on
  gpuops.remediation.ebpf_probe:

- name: Remove the probes, before the driver is upgraded
  gpuops.remediation.ebpf_probe:
    state: absent
"""

RETURN = r"""
actions:
  description: What was done, or would be in check mode.
  returned: success
  type: list
  elements: dict
before:
  description: The links and maps of each probe that were pinned.
  returned: success
  type: dict
  sample:
    cuda_mem:
      links: []
      maps: []
after:
  description: The same, read again.
  returned: success
  type: dict
copies:
  description: The copies of libcuda, with C(path), C(inode), C(build_id), the number of C(functions) with a probe, and the C(pids) that have it mapped.
  returned: success
  type: list
  elements: dict
deleted:
  description: Processes that go on with a copy that was deleted, C(path) and C(pid). It keeps its probes, and gets no new ones.
  returned: success
  type: list
  elements: dict
not_probed:
  description: Files that look like a copy and got no probes, and why. One of a container that cannot be read or attached to is no failure.
  returned: success
  type: list
  elements: dict
error_kind:
  description:
    - Why nothing, or not everything, was done; V(unsupported), V(no_bpffs), V(not_permitted), V(symbol_missing), V(missing_library),
      V(copy_changed), V(other_layout), V(search_failed), V(hung_process), V(not_alone), V(state_dir), V(probe_error).
  returned: failure
  type: str
"""

from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.argspec import ATTACH_OPTIONS, EBPF_OPTIONS
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.bring import bring
from ansible_collections.gpuops.remediation.plugins.module_utils._module import run_module
from ansible_collections.gpuops.remediation.plugins.module_utils._node.argspec import STATE_DIR_OPTIONS

SPEC = {
    "argument_spec": {
        **STATE_DIR_OPTIONS,
        **EBPF_OPTIONS,
        **ATTACH_OPTIONS,
        "state": {"type": "str", "default": "present", "choices": ["present", "absent", "restarted"]},
    },
}


def main() -> None:
    run_module(SPEC, bring)


if __name__ == "__main__":
    main()
