# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""The files in which the kernel keeps the limits of a cgroup v2. No decisions are taken here."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.limits import (
    IO_KEYS,
    NAMES,
    BadLimit,
    Value,
    file_of,
    read_value,
)
from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.state import CgroupError, write_file

_USAGE = ("memory.current", "memory.swap.current", "pids.current")


class NoController(CgroupError):
    """The kernel, or the cgroup above, does not offer what the limit needs."""

    kind = "no_controller"


class LimitFiles:
    def __init__(self, root: str) -> None:
        self.root = Path(root)

    def folder(self, path: str) -> Path:
        return self.root / path.strip("/")

    def require(self, controllers: set[str]) -> None:
        """Version 2 with these controllers, or an error that says what is there instead."""
        require_v2(self.root)
        lacking = controllers - set(self._text(self.root / "cgroup.controllers").split())
        if lacking:
            raise NoController(f"the cgroup v2 at {self.root} has no controller {', '.join(sorted(lacking))}")

    def exists(self, path: str) -> bool:
        return self.folder(path).is_dir()

    def limits(self, path: str) -> dict[str, Value | None]:
        return {name: self._value(path, name) for name in NAMES}

    def _value(self, path: str, name: str) -> Value | None:
        file = self.folder(path) / file_of(name)
        return read_value(name, self._text(file)) if file.exists() else None

    def usage(self, path: str) -> dict[str, int]:
        files = {name: self.folder(path) / name for name in _USAGE}
        return {name.replace(".", "_"): int(self._text(file)) for name, file in files.items() if file.exists()}

    def require_file(self, path: str, name: str) -> Path:
        file = self.folder(path) / file_of(name)
        if not file.exists():
            controller = file_of(name).split(".")[0]
            above = self.folder(path).parent / "cgroup.subtree_control"
            raise NoController(
                f"{path} has no {file_of(name)}: the controller {controller} is not enabled in {above}, or the kernel lacks it"
            )
        return file

    def write(self, path: str, name: str, value: Value) -> None:
        file = self.require_file(path, name)
        if isinstance(value, dict):
            for device, keys in value.items():
                write_file(file, " ".join([device, *(f"{key}={keys[key]}" for key in IO_KEYS if key in keys)]))
        else:
            write_file(file, str(int(value)) if isinstance(value, bool) else str(value))

    def create(self, path: str, controllers: set[str]) -> None:
        """With the controllers that its limits need enabled above it."""
        folder = self.folder(path)
        if not folder.parent.is_dir():
            raise CgroupError(f"{path} cannot be made: there is no {folder.parent}")
        enabled = set(self._text(folder.parent / "cgroup.subtree_control").split())
        for controller in sorted(controllers - enabled):
            write_file(folder.parent / "cgroup.subtree_control", f"+{controller}")
        try:
            folder.mkdir()
        except OSError as error:
            raise CgroupError(f"cannot make {folder}: {error}") from error

    def remove(self, path: str) -> None:
        try:
            os.rmdir(self.folder(path))
        except OSError as error:
            raise CgroupError(f"cannot remove {self.folder(path)}: {error}") from error

    def empty(self, path: str) -> bool:
        """Neither processes nor cgroups below."""
        folder = self.folder(path)
        return not self._text(folder / "cgroup.procs").strip() and not any(child.is_dir() for child in folder.iterdir())

    @staticmethod
    def _text(file: Path) -> str:
        try:
            return file.read_text()
        except OSError as error:
            raise CgroupError(f"cannot read {file}: {error}") from error


def require_v2(root: Path) -> None:
    if not (root / "cgroup.controllers").exists():
        hybrid = (root / "unified" / "cgroup.controllers").exists()
        raise NoController(
            f"{root} is cgroup {'v1 with v2 beside it for systemd alone' if hybrid else 'v1'}: this is done with cgroup v2. "
            "Boot the node with systemd.unified_cgroup_hierarchy=1"
        )


def controllers_of(names: Mapping[str, object]) -> set[str]:
    return {file_of(name).split(".")[0] for name in names}


def device_numbers(device: str) -> str:
    """MAJOR:MINOR of a whole disk, by its file or as it is given."""
    numbers = device
    if not re.match(r"^\d+:\d+$", device):
        try:
            found = os.stat(device)
        except OSError as error:
            raise BadLimit(f"io_max: cannot find {device}: {error}") from error
        if not stat.S_ISBLK(found.st_mode):
            raise BadLimit(f"io_max: {device} is no block device")
        numbers = f"{os.major(found.st_rdev)}:{os.minor(found.st_rdev)}"
    if os.path.exists(f"/sys/dev/block/{numbers}/partition"):
        raise BadLimit(f"io_max: {device} is a partition, and the kernel limits whole disks")
    return numbers
