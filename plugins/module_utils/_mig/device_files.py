# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.
"""The device files through which MIG instances are opened. The driver makes none: nvidia-modprobe does, and containers fail without."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from ansible_collections.gpuops.remediation.plugins.module_utils._errors import RemediationError
from ansible_collections.gpuops.remediation.plugins.module_utils._gpu import capabilities
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.reading import Reading
from ansible_collections.gpuops.remediation.plugins.module_utils._node import programs
from ansible_collections.gpuops.remediation.plugins.module_utils._node.procfs import ProcFs
from ansible_collections.gpuops.remediation.plugins.module_utils._node.watchdog import Emit


class DeviceFileError(RemediationError):
    kind = "device_file"


def missing(proc: ProcFs, dev_root: str, reading: Reading) -> list[str]:
    """The capability files of instances that have no device file yet."""
    return [str(path) for path in _capabilities(proc, reading) if not _has_device(path, dev_root)]


def make(nvidia_modprobe: str, paths: Sequence[str], emit: Emit) -> None:
    """To be called in a watched child: it may load modules."""
    for path in paths:
        emit({"begins": path})
        try:
            status, words = programs.run([nvidia_modprobe, "-f", path], emit)
        except OSError as error:
            raise DeviceFileError(f"{nvidia_modprobe} cannot be run: {error.strerror}") from error
        if status:
            raise DeviceFileError(f"{nvidia_modprobe} -f {path}: {words}")


def _capabilities(proc: ProcFs, reading: Reading) -> Iterator[Path]:
    top = proc.root / "driver/nvidia/capabilities" / f"gpu{reading.minor}" / "mig"
    for instance in reading.layout.instances if reading.layout else ():
        yield top / f"gi{instance.id}" / "access"
        yield from (top / f"gi{instance.id}" / f"ci{part.id}" / "access" for part in instance.compute)


def _has_device(path: Path, dev_root: str) -> bool:
    """A driver that has no such file has no device file to be opened either."""
    try:
        name = capabilities.device_file(path, dev_root)
    except OSError:
        return True
    return name is None or os.path.exists(name)
