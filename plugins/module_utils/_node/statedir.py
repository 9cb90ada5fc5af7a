# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""The node's own folder: one lock for all its files, and files that are replaced whole."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ansible_collections.gpuops.remediation.plugins.module_utils._errors import RemediationError

_PATIENCE_SECONDS = 5.0


class StateDirError(RemediationError):
    kind = "state_dir"


class NotAlone(RemediationError):
    """Another run on this node is at the same work."""

    kind = "not_alone"


def _flock(fd: int, patience_seconds: float) -> bool:
    deadline = time.monotonic() + patience_seconds
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)


class StateDir:
    def __init__(self, path: str) -> None:
        self.path = Path(path)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """The folder itself is what is locked: files in it are replaced, so that a lock on one of them would hold nothing."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise StateDirError(f"cannot use {self.path}: {error}") from error
        try:
            if not _flock(fd, _PATIENCE_SECONDS):
                raise StateDirError(f"another process has held {self.path} for {_PATIENCE_SECONDS:.0f} s")
            yield
        finally:
            os.close(fd)

    @contextmanager
    def alone(self, name: str, patience_seconds: float) -> Iterator[None]:
        """For work that takes long, and writes to the folder meanwhile: one process a name."""
        path = self.path / name
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StateDirError(f"cannot use {path}: {error}") from error
        try:
            if not _flock(fd, patience_seconds):
                other = os.pread(fd, 20, 0).decode(errors="replace").strip()
                raise NotAlone(f"another run (pid {other or 'unknown'}) has held {path} for {patience_seconds:g} s", pid=other)
            os.truncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
            yield
        finally:
            os.close(fd)

    def read(self, name: str, default: Any) -> Any:
        """A file's JSON; `default` where there is none. One that is not JSON is an error: guessing could double an action."""
        try:
            return json.loads((self.path / name).read_text())
        except FileNotFoundError:
            return default
        except (OSError, ValueError) as error:
            raise StateDirError(f"cannot read {self.path / name}: {error}") from error

    def write(self, name: str, value: Any) -> None:
        """Readers see the old file or the new one, also after a power cut."""
        new = self.path / f".{name}.new"
        try:
            with open(new, "w") as file:
                json.dump(value, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, self.path / name)
            self.sync()
        except OSError as error:
            raise StateDirError(f"cannot write {self.path / name}: {error}") from error

    def sync(self) -> None:
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
