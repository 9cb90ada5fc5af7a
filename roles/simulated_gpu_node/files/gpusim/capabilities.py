# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The files that say which device file opens which MIG instance: /proc/driver/nvidia/capabilities and nvidia-caps/mig-minors of a node.

Also compiled into the library, so: standard library only, Python 3.9.
"""

from __future__ import annotations

import os
import shutil
from typing import Any, Optional

CONFIG, MONITOR = 1, 2  # minors
GPUS, GPU_INSTANCES, COMPUTE_INSTANCES = 32, 15, 8  # what the driver has minors for
ROOT_ONLY, EVERYBODY = 0o400, 0o444


def minor(gpu: int, gi: int, ci: Optional[int] = None) -> int:
    """Every instance that there could be has its minor from the start."""
    own = 3 + (gpu * GPU_INSTANCES + gi) * (COMPUTE_INSTANCES + 1)
    return own if ci is None else own + 1 + ci


def _write(path: str, number: int, mode: int) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="ascii") as stream:
        stream.write(f"DeviceFileMinor: {number}\nDeviceFileMode: {mode}\nDeviceFileModify: 1\n")


def install(node: str) -> None:
    """What is there with MIG off."""
    top = os.path.join(node, "proc/driver/nvidia/capabilities/mig")
    _write(os.path.join(top, "config"), CONFIG, ROOT_ONLY)
    _write(os.path.join(top, "monitor"), MONITOR, EVERYBODY)
    lines = [f"config {CONFIG}", f"monitor {MONITOR}"]
    for gpu in range(GPUS):
        for gi in range(GPU_INSTANCES):
            lines.append(f"gpu{gpu}/gi{gi}/access {minor(gpu, gi)}")
            lines += [f"gpu{gpu}/gi{gi}/ci{ci}/access {minor(gpu, gi, ci)}" for ci in range(COMPUTE_INSTANCES)]
    os.makedirs(os.path.join(node, "proc/driver/nvidia-caps"), exist_ok=True)
    with open(os.path.join(node, "proc/driver/nvidia-caps/mig-minors"), "w", encoding="ascii") as stream:
        stream.write("\n".join(lines) + "\n")


def device(number: int) -> str:
    return f"nvidia-caps/nvidia-cap{number}"


def access(gpu: dict[str, Any], gi: int, ci: Optional[int] = None) -> str:
    """The file of an instance, below the node."""
    inside = f"gi{gi}" if ci is None else f"gi{gi}/ci{ci}"
    return f"proc/driver/nvidia/capabilities/gpu{gpu['minor']}/mig/{inside}/access"


def update(node: str, gpu: dict[str, Any]) -> None:
    """Make a GPU's files those of its instances. The device files are not the driver's: nvidia-modprobe makes them."""
    wanted = {}
    for instance in gpu["mig"]["instances"]:
        for ci in (None, *(compute["id"] for compute in instance["compute"])):
            wanted[os.path.join(node, access(gpu, instance["id"], ci))] = minor(gpu["minor"], instance["id"], ci)
    top = os.path.join(node, "proc/driver/nvidia/capabilities", f"gpu{gpu['minor']}", "mig")
    for folder, _folders, files in list(os.walk(top)):
        if "access" in files and os.path.join(folder, "access") not in wanted:
            shutil.rmtree(folder, ignore_errors=True)  # with its GPU instance it may be gone already
    for path, number in wanted.items():
        if not os.path.exists(path):
            _write(path, number, EVERYBODY)
