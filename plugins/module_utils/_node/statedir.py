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
            self._flock(fd)
            yield
        finally:
            os.close(fd)

    def _flock(self, fd: int) -> None:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise StateDirError(f"another process has held {self.path} for {_PATIENCE_SECONDS:.0f} s") from None
                time.sleep(0.02)

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
