# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Who has a GPU's device file open: the way to find its processes when NVML hangs or has lost the GPU."""

from __future__ import annotations

import os
import re

from ansible_collections.gpuops.remediation.plugins.module_utils._gpu import open_files
from ansible_collections.gpuops.remediation.plugins.module_utils._node.procfs import ProcFs
from ansible_collections.gpuops.remediation.plugins.module_utils._node.watchdog import Emit

_GPU_FILE = re.compile(r"^nvidia(\d+)$")


def device_files(dev_root: str) -> dict[open_files.Identity, int]:
    """The GPUs' device files, and the minor of each."""
    return {
        open_files.identity(os.stat(os.path.join(dev_root, name))): int(match.group(1))
        for name in os.listdir(dev_root)
        for match in [_GPU_FILE.match(name)]
        if match
    }


def collect(proc: ProcFs, dev_root: str, emit: Emit) -> None:
    """The minors that exist, and every (minor, process)."""
    devices = device_files(dev_root)
    found = []
    for pid, minors in open_files.holders(proc, devices):
        for minor in sorted(minors):
            record = {"pid": pid, "type": "compute", "memory_bytes": None, "gi": None, "ci": None, "source": "device_file"}
            found.append({"minor": minor, "process": {**record, **proc.describe(pid)}})
    emit({"minors": sorted(devices.values()), "holders": found})
