# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations


class ModuleDocFragment:
    """What the modules of the eBPF probes have in common."""

    DOCUMENTATION = r"""
options:
  probes:
    description: Which probes are meant.
    type: list
    elements: str
    choices: [cuda_mem, gpu_xid]
    default: [cuda_mem, gpu_xid]
  bpffs_dir:
    description: Where they are pinned, a folder on a mounted bpf filesystem. It is made by M(gpuops.remediation.ebpf_probe).
    type: path
    default: /sys/fs/bpf/gpuops
"""
