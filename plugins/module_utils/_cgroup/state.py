# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""cgroupfs, version 2 and version 1's freezer: who is in a cgroup, and freeze, thaw or kill it. No decisions are taken here."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

from ansible_collections.gpuops.remediation.plugins.module_utils._errors import RemediationError
from ansible_collections.gpuops.remediation.plugins.module_utils._node import pidfd

_POLL_SECONDS = 0.05


class CgroupError(RemediationError):
    kind = "cgroup"


@dataclass(frozen=True)
class Member:
    pid: int
    path: str  # of its own cgroup, which may be below the one asked about


def wait(condition: Callable[[], bool], until: float) -> bool:
    """Whether it came true in time; looked at once in any case."""
    while not condition():
        if time.monotonic() >= until:
            return False
        time.sleep(_POLL_SECONDS)
    return True


class Cgroups:
    """`Cgroups.at(root)` gives the one that fits what is mounted there."""

    def __init__(self, root: str) -> None:
        self._root = Path(root)

    @staticmethod
    def at(root: str) -> Cgroups:
        return CgroupsV2(root) if (Path(root) / "cgroup.controllers").exists() else CgroupsV1(root)

    def _folder(self, path: str) -> Path | None:
        """Where the cgroup is; None when it is gone."""
        raise NotImplementedError

    def frozen(self, path: str) -> bool:
        raise NotImplementedError

    def set_frozen(self, path: str, frozen: bool, until: float) -> None:
        raise NotImplementedError

    def _kill_all(self, path: str, until: float) -> None:
        raise NotImplementedError

    def members(self, path: str) -> list[Member]:
        """Everyone in it and below."""
        folder = self._folder(path)
        found = []
        for here, _folders, _files in os.walk(folder) if folder else ():
            below = os.path.relpath(here, str(folder))
            own = path if below == "." else f"{path.rstrip('/')}/{below}"
            with contextlib.suppress(OSError):  # removed meanwhile, or threaded: its processes then show in the threads' domain above
                found += [Member(int(pid), own) for pid in Path(here, "cgroup.procs").read_text().split()]
        return found

    def kill(self, path: str, until: float) -> bool:
        """SIGKILL for everyone in it and below, also for what they start meanwhile. Whether it is empty in time."""
        self._kill_all(path, until)
        return wait(lambda: not self.members(path), until)

    def _signal_each(self, path: str, until: float) -> None:
        """For as long as there is somebody; each is looked at again when it can no longer become another process."""

        def empty() -> bool:
            for member in self.members(path):
                descriptor = pidfd.open_pid(member.pid)
                if descriptor is None:
                    continue
                try:
                    if any(now.pid == member.pid for now in self.members(path)):
                        pidfd.send(descriptor, signal.SIGKILL)
                finally:
                    os.close(descriptor)
            return not self.members(path)

        wait(empty, until)


def write_file(path: Path, value: str) -> None:
    try:
        with open(path, "w") as file:
            file.write(value)
    except OSError as error:
        raise CgroupError(f"cannot write {value} to {path}: {error}") from error


class CgroupsV2(Cgroups):
    def _folder(self, path: str) -> Path | None:
        folder = self._root / path.strip("/")
        return folder if folder.is_dir() else None

    def frozen(self, path: str) -> bool:
        folder = self._folder(path)
        if folder is None:
            return False
        try:
            return "frozen 1" in (folder / "cgroup.events").read_text().splitlines()
        except OSError as error:
            raise CgroupError(f"cannot read {folder / 'cgroup.events'}: {error}") from error

    def set_frozen(self, path: str, frozen: bool, until: float) -> None:
        folder = self._folder(path)
        if folder is None:
            raise CgroupError(f"there is no cgroup {path} below {self._root}")
        write_file(folder / "cgroup.freeze", "1" if frozen else "0")
        wait(lambda: self.frozen(path) == frozen, until)

    def _kill_all(self, path: str, until: float) -> None:
        folder = self._folder(path)
        if folder is None:
            return
        try:
            if (folder / "cgroup.kill").exists():  # Linux 5.14
                return write_file(folder / "cgroup.kill", "1")
        except CgroupError:  # a threaded cgroup, or one that was removed just now
            if self._folder(path) is None:
                return
        self._signal_frozen(path, until)

    def _signal_frozen(self, path: str, until: float) -> None:
        """Frozen first, so that nobody can fork faster than it is killed; a frozen process of version 2 can be killed."""
        with contextlib.suppress(CgroupError):
            self.set_frozen(path, True, min(until, time.monotonic() + 1))
        self._signal_each(path, until)
        with contextlib.suppress(CgroupError):
            self.set_frozen(path, False, time.monotonic())


class CgroupsV1(Cgroups):
    """Hierarchies side by side. systemd gives its units no freezer cgroup, so that these can be killed and not frozen."""

    _HIERARCHIES = ("freezer", "systemd", "pids", "memory", "devices", "unified")

    def _folder(self, path: str) -> Path | None:
        folders = (self._root / name / path.strip("/") for name in self._HIERARCHIES)
        return next((folder for folder in folders if folder.is_dir()), None)

    def _freezer(self, path: str) -> Path | None:
        folder = self._root / "freezer" / path.strip("/")
        return folder if path != "/" and folder.is_dir() else None

    def frozen(self, path: str) -> bool:
        folder = self._freezer(path)
        return folder is not None and (folder / "freezer.state").read_text().strip() == "FROZEN"

    def set_frozen(self, path: str, frozen: bool, until: float) -> None:
        folder = self._freezer(path)
        if folder is None:
            raise CgroupError(f"{path} has no cgroup of its own in the freezer hierarchy below {self._root}")
        write_file(folder / "freezer.state", "FROZEN" if frozen else "THAWED")
        wait(lambda: self.frozen(path) == frozen, until)

    def _kill_all(self, path: str, until: float) -> None:
        """A frozen process of version 1 dies only when it is thawed: the signal is there first, so that it runs no more."""
        if self._freezer(path) is None:
            return self._signal_each(path, until)
        self.set_frozen(path, True, min(until, time.monotonic() + 1))
        self._signal_each(path, time.monotonic())
        self.set_frozen(path, False, until)
        self._signal_each(path, until)
