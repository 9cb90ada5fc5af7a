# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""What can be seen from inside a container: its device files, the pipes of MPS. Its paths and links are followed as it would follow them."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple, Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.files import open_in_root
from ansible_collections.gpuops.remediation.plugins.module_utils._gpu import capabilities
from ansible_collections.gpuops.remediation.plugins.module_utils._gpu.open_files import Identity, identity
from ansible_collections.gpuops.remediation.plugins.module_utils._mps.control import DEFAULT_PIPES
from ansible_collections.gpuops.remediation.plugins.module_utils._node.procfs import ProcFs

_CONTROL = "control"
_FOLDERS = ("/dev", "/dev/nvidia-caps")
_MOST_NAMES = 4096  # of a folder, and of mounts
_OCTAL = re.compile(r"\\([0-7]{3})")


class Device(NamedTuple):
    """`kind` is gpu, gpu_instance, compute_instance or mig_config; `minor` is the GPU's."""

    kind: str
    minor: Optional[int] = None
    gi: Optional[int] = None
    ci: Optional[int] = None

    def record(self) -> dict[str, Any]:
        return self._asdict()


def devices_of_node(proc: ProcFs, dev_root: str) -> dict[Identity, Device]:
    """The device files that lead to a GPU or to a part of one, and the one that cuts them."""
    found = {
        which: Device("gpu" if held.gi is None else "gpu_instance" if held.ci is None else "compute_instance", *held)
        for which, held in capabilities.files(proc, dev_root).items()
    }
    try:
        name = capabilities.device_file(proc.root / "driver/nvidia/capabilities/mig/config", dev_root)
        config = os.stat(name) if name else None
    except OSError:
        config = None
    if config:
        found[identity(config)] = Device("mig_config")
    return found


def devices_seen(root: str, known: Mapping[Identity, Device]) -> list[Device]:
    """By their numbers, whatever a container calls them. Nodes that somebody has made outside of /dev are not looked for."""
    return sorted({known[one] for folder in _FOLDERS for one in _identities(root, folder) if one in known}, key=str)


def _identities(root: str, folder: str) -> list[Identity]:
    try:
        fd = open_in_root(root, folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return []
    try:
        with os.scandir(fd) as entries:
            found = [_status(entry) for entry in islice(entries, _MOST_NAMES)]
    finally:
        os.close(fd)
    return [identity(one) for one in found if one and not stat.S_ISDIR(one.st_mode) and not stat.S_ISLNK(one.st_mode)]


def _status(entry: os.DirEntry[str]) -> Optional[os.stat_result]:
    try:
        return entry.stat(follow_symlinks=False)
    except OSError:
        return None


def control_pipe(root: str, folder: str) -> Optional[Identity]:
    """The pipe by which the MPS control daemon of this folder is spoken to."""
    try:
        fd = open_in_root(root, f"{folder}/{_CONTROL}", os.O_PATH)
    except (OSError, ValueError):  # a folder's name may hold a null
        return None
    try:
        found = os.fstat(fd)
    finally:
        os.close(fd)
    return ("file", found.st_dev, found.st_ino)


def pipes_seen(root: str, named: Iterable[str], mounts: Sequence[str], pipes: Mapping[Identity, str]) -> list[str]:
    """Which daemons' folders are reached: where the container's processes say, where MPS looks by itself, and wherever something is mounted."""
    bases = {folder.rstrip("/").rpartition("/")[2] for folder in pipes.values()}
    folders = [*named, DEFAULT_PIPES, *mounts, *(f"{mount}/{base}" for mount in mounts for base in bases)]
    found = {control_pipe(root, folder) for folder in folders if folder.startswith("/")}
    return sorted(pipes[one] for one in found if one is not None and one in pipes)


def mount_points(proc: ProcFs, pid: int) -> list[str]:
    try:
        with open(proc.root / str(pid) / "mountinfo", errors="replace") as lines:
            points = [line.split(" ", 5)[4] for line in islice(lines, _MOST_NAMES) if line.count(" ") > 5]
    except OSError:
        return []
    return [_OCTAL.sub(lambda octal: chr(int(octal.group(1), 8)), point) for point in points if point != "/"]
