# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Who has a MIG instance's device file open. The driver's own files say which one that is.

A client of an instance has it open for as long as it is one, since the driver keeps a copy of the descriptor among the client's own. So this
finds those too that NVML lists nowhere, a monitor for one, and for whose sake the driver says that the instance is in use.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple, Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._gpu import open_files
from ansible_collections.gpuops.remediation.plugins.module_utils._gpu.holders import device_files
from ansible_collections.gpuops.remediation.plugins.module_utils._node.procfs import ProcFs
from ansible_collections.gpuops.remediation.plugins.module_utils._node.watchdog import Emit

_FILE = re.compile(r"/gpu(\d+)/mig/gi(\d+)/(?:ci(\d+)/)?access$")
_MINOR = re.compile(r"^DeviceFileMinor: (\d+)$", re.MULTILINE)


class Held(NamedTuple):
    """A GPU by its minor, one of its GPU instances, or one of that one's compute instances."""

    minor: int
    gi: Optional[int] = None
    ci: Optional[int] = None


def device_file(access: Path, dev_root: str) -> Optional[str]:
    """The device file that opens what this file of the driver's stands for; None where it names none. OSError where it cannot be read."""
    told = _MINOR.search(access.read_text(errors="replace"))
    return os.path.join(dev_root, "nvidia-caps", f"nvidia-cap{told.group(1)}") if told else None


def files(proc: ProcFs, dev_root: str) -> dict[open_files.Identity, Held]:
    """The device files of the GPUs and of the instances that there are."""
    found = {identity: Held(minor) for identity, minor in device_files(dev_root).items()}
    for path in (proc.root / "driver/nvidia/capabilities").glob("gpu*/mig/**/access"):
        named = _FILE.search(str(path))
        try:
            name = device_file(path, dev_root)
            node = os.stat(name) if name else None
        except FileNotFoundError:  # destroyed meanwhile, or nobody has made the device file yet
            continue
        if named and node:
            minor, gi, ci = named.groups()
            found[open_files.identity(node)] = Held(int(minor), int(gi), int(ci) if ci else None)
    return found


def collect(proc: ProcFs, dev_root: str, emit: Emit) -> None:
    """The minors that exist; every process that has any of the files open, and which."""
    known = files(proc, dev_root)
    emit({"minors": sorted({one.minor for one in known.values() if one.gi is None})})
    for pid, held in open_files.holders(proc, known):
        emit({"pid": pid, "held": sorted(held, key=str), "process": proc.describe(pid)})
