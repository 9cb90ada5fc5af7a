#!/usr/bin/python

# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: ebpf_probe_info
short_description: Read which eBPF probes are attached and what they have counted
description:
  - Reads the links and maps that M(gpuops.remediation.ebpf_probe) pinned.
  - Memory is what processes asked the driver for. What the driver takes for itself, such as contexts, is not in it; NVML has the total.
version_added: "0.1.0"
author: The gpuops.remediation maintainers (@gpuops)
extends_documentation_fragment:
  - gpuops.remediation.attributes
  - gpuops.remediation.attributes.info_module
  - gpuops.remediation.ebpf
  - gpuops.remediation.node.state_dir
requirements:
  - CAP_SYS_ADMIN, for the links.
seealso:
  - module: gpuops.remediation.ebpf_probe
"""

EXAMPLES = r"""
- name: Read who holds GPU memory
  gpuops.remediation.ebpf_probe_info:
  register: probes
"""

RETURN = r"""
cuda_launch:
  description: The probes on launches.
  returned: when asked for
  type: dict
  contains:
    attached:
      description: Whether any of their links is there.
      type: bool
    links:
      description: As in RV(cuda_mem.links).
      type: list
      elements: dict
    stopped:
      description: C(why) the node's program has taken them away, C(since) when. They stay away until M(gpuops.remediation.ebpf_probe) is asked for them.
      returned: when it has
      type: dict
    counters:
      description: How often a probe was hit, how long the programs ran, and what could not be counted, by name.
      returned: when RV(cuda_launch.attached=true)
      type: dict
    launches:
      description:
        - By process and C(kind), V(launch_kernel), V(launch_cooperative) or V(launch_graph) (one launch of any number of kernels), how many calls
          there were (C(count)), how many C(failed), and how long they took on the host (C(total_ns), C(histogram) as in RV(gpu_irq.irqs)).
        - C(pid) (the host's), C(ns_pid), C(comm), whether the process is C(living); if so, C(container), C(unit), C(cgroup). C(cgroup_ids) are inodes.
      returned: when RV(cuda_launch.attached=true)
      type: list
      elements: dict
cuda_mem:
  description: The memory probes.
  returned: when asked for
  type: dict
  contains:
    attached:
      description: Whether any of their links is there.
      type: bool
    links:
      description: Each link, with C(name), C(id), C(since), C(run_time_ns) and C(runs) (null where the kernel keeps no such statistics) and C(misses).
      type: list
      elements: dict
    counters:
      description: Calls that were seen, and what could not be counted, by name.
      returned: when RV(cuda_mem.attached=true)
      type: dict
    failures:
      description: Calls that failed, by cgroup, operation and CUresult.
      returned: when RV(cuda_mem.attached=true)
      type: list
      elements: dict
    processes:
      description:
        - Living processes that have used GPU memory, C(pid) (the host's) and C(ns_pid), C(held_bytes) and C(live) allocations by kind, C(allocations),
          C(frees), C(container), C(unit), C(cgroup), C(cgroups).
        - Kinds are V(device), V(managed), V(host) (not the GPU's), V(pool) (what was requested of pools), V(handle) (C(cuMemCreate)) and V(shared)
          (another process's, without bytes).
      returned: when RV(cuda_mem.attached=true)
      type: list
      elements: dict
    containers:
      description: The containers of these processes, C(runtime), C(id) and C(pod_uid), with their C(pids) and C(held_bytes).
      returned: when RV(cuda_mem.attached=true)
      type: list
      elements: dict
    cgroups:
      description: The same totals by the cgroup in which memory was allocated. C(ids) are inodes; v1 is the memory controller's.
      returned: when RV(cuda_mem.attached=true)
      type: list
      elements: dict
gpu_xid:
  description: The probes on the driver's errors.
  returned: when asked for
  type: dict
  contains:
    attached:
      description: Whether any of their links is there.
      type: bool
    links:
      description: As in RV(cuda_mem.links).
      type: list
      elements: dict
    counters:
      description: What could not be counted, by name.
      returned: when RV(gpu_xid.attached=true)
      type: dict
    xids:
      description:
        - By C(pci_bus_id) and C(xid), how many there were (C(count), where all that came within a second is one), what each source said
          (C(lines) of the log, C(traces)), and when the C(first) was and the C(last) began.
      returned: when RV(gpu_xid.attached=true)
      type: list
      elements: dict
    events:
      description: The last 256 events, oldest first, with C(number), C(time), C(pci_bus_id), C(xid), C(source) and C(text).
      returned: when RV(gpu_xid.attached=true)
      type: list
      elements: dict
gpu_irq:
  description: The probes on the interrupts of the driver's devices.
  returned: when asked for
  type: dict
  contains:
    attached:
      description: Whether any of their links is there.
      type: bool
    links:
      description: As in RV(cuda_mem.links).
      type: list
      elements: dict
    counters:
      description: What could not be counted, by name.
      returned: when RV(gpu_irq.attached=true)
      type: dict
    irqs:
      description:
        - By C(irq) and C(handler), how many interrupts there were (C(count)), how long their handlers took (C(total_ns), and C(histogram) with the
          C(count) of those from C(from_ns) to the double of it), how many were C(unhandled), and how many have C(woken) the handler's thread.
        - C(pci_bus_id) is of the device that has the line now, as an Xid names it, or null.
      returned: when RV(gpu_irq.attached=true)
      type: list
      elements: dict
gpu_vm:
  description: The probes on system calls on the driver's device files.
  returned: when asked for
  type: dict
  contains:
    attached:
      description: Whether any of their links is there.
      type: bool
    links:
      description: As in RV(cuda_mem.links).
      type: list
      elements: dict
    counters:
      description: What could not be counted, by name.
      returned: when RV(gpu_vm.attached=true)
      type: dict
    calls:
      description:
        - By process, C(device) (the name of its file) and C(call), V(ioctl) or V(mmap), how many there were (C(count)), how many C(failed), how long they
          took (C(total_ns), C(histogram) as in RV(gpu_irq.irqs)), and the C(mapped_bytes), whether or not they still are mapped.
        - The process as in RV(cuda_launch.launches).
      returned: when RV(gpu_vm.attached=true)
      type: list
      elements: dict
error_kind:
  description: Why nothing could be read, V(not_permitted), V(state_dir) or V(probe_error).
  returned: failure
  type: str
"""

from ansible_collections.gpuops.remediation.plugins.module_utils._bpf import budget
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.argspec import EBPF_OPTIONS
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.info import describe
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.probes import PROBES
from ansible_collections.gpuops.remediation.plugins.module_utils._module import run_module
from ansible_collections.gpuops.remediation.plugins.module_utils._node.argspec import STATE_DIR_OPTIONS
from ansible_collections.gpuops.remediation.plugins.module_utils._node.procfs import ProcFs
from ansible_collections.gpuops.remediation.plugins.module_utils._node.statedir import StateDir

SPEC = {
    "argument_spec": {
        **STATE_DIR_OPTIONS,
        **EBPF_OPTIONS,
    },
}


def run(params, check_mode):
    proc = ProcFs(params["proc_root"])
    stopped = budget.stopped(StateDir(params["state_dir"]))
    told = {name: describe(params["bpffs_dir"], name, proc) for name in params["probes"] or PROBES}
    return {"changed": False, **{name: {**each, **({"stopped": stopped[name]} if name in stopped else {})} for name, each in told.items()}}


def main() -> None:
    run_module(SPEC, run)


if __name__ == "__main__":
    main()
