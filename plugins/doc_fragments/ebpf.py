# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations


class ModuleDocFragment:
    """What the modules of the eBPF probes have in common."""

    DOCUMENTATION = r"""
options:
  probes:
    description:
      - Which probes are meant.
      - When omitted, V(cuda_mem), V(gpu_irq) and V(gpu_xid); all of them where they are taken away or read.
    type: list
    elements: str
    choices: [cuda_launch, cuda_mem, gpu_irq, gpu_vm, gpu_xid]
  bpffs_dir:
    description: Where they are pinned, a folder on a mounted bpf filesystem. It is made by M(gpuops.remediation.ebpf_probe).
    type: path
    default: /sys/fs/bpf/gpuops
"""

    ATTACH = r"""
options:
  libraries:
    description:
      - These copies of libcuda, and no others.
      - When omitted, they are looked for in the usual folders of each mount namespace and in the maps of all processes. What a container has mapped
        from a volume is left alone, since a link keeps the volume busy.
    type: list
    elements: path
  attach:
    description: How functions are attached to.
    type: str
    default: auto
    choices:
      auto: As V(multi) where the kernel can, else as V(perf).
      multi: All functions of a library by one link (kernel 6.6 and later).
      perf: Each function by a link of its own, which takes seconds to remove.
  max_allocations:
    description:
      - How many allocations can be followed at once. What exceeds them is not charged, and is counted as untracked.
      - A change takes O(state=restarted) of M(gpuops.remediation.ebpf_probe).
    type: int
    default: 262144
  timeout_seconds:
    description: How long the search for copies of libcuda may take, the look for processes that hang, and the wait for another run, each.
    type: float
    default: 30
"""
