# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Options of the modules of the probes; documented by the fragments `ebpf` and `ebpf.attach`."""

from __future__ import annotations

from typing import Any

EBPF_OPTIONS: dict[str, Any] = {
    "probes": {"type": "list", "elements": "str", "choices": ["cuda_launch", "cuda_mem", "gpu_irq", "gpu_vm", "gpu_xid"]},
    "bpffs_dir": {"type": "path", "default": "/sys/fs/bpf/gpuops"},
}

ATTACH_OPTIONS: dict[str, Any] = {
    "libraries": {"type": "list", "elements": "path"},
    "attach": {"type": "str", "default": "auto", "choices": ["auto", "multi", "perf"]},
    "max_allocations": {"type": "int", "default": 262144},
    "timeout_seconds": {"type": "float", "default": 30},
}
