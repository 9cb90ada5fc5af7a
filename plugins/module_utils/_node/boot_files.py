# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.
"""The files by which a node does again by itself what a reboot has undone: what is wanted, and the program."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._converge import Outcome, Step, converge
from ansible_collections.gpuops.remediation.plugins.module_utils._errors import RemediationError

Files = Mapping[str, Optional[bytes]]  # by path; None where there is no file


class BootFileError(RemediationError):
    kind = "boot_file"


@dataclass(frozen=True)
class BootFiles:
    """`modes` has the paths, in the order in which they are written. `keep_lock` is called before each, and raises if the lock is lost."""

    modes: Mapping[str, int]
    keep_lock: Callable[[], None] = lambda: None

    def bring(self, wanted: Files, *, check_mode: bool) -> Outcome[Files]:
        def plan(have: Files) -> list[Step]:
            differing = [path for path in self.modes if have[path] != wanted[path]]
            return [
                Step("remove" if wanted[path] is None else "write", path, told(path, have[path]), told(path, wanted[path]))
                for path in differing
            ]

        return converge(
            self._read,
            plan,
            lambda _have, _steps: wanted,
            lambda step: self._write(step.target, wanted[step.target]),
            check_mode=check_mode,
        )

    def _read(self) -> Files:
        return {path: Path(path).read_bytes() if Path(path).exists() else None for path in self.modes}

    def _write(self, path: str, data: bytes | None) -> None:
        self.keep_lock()
        try:
            if data is None:
                os.unlink(path)
                return
            os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
            new = f"{path}.new"
            with open(new, "wb") as file:
                os.fchmod(file.fileno(), self.modes[path])
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, path)
        except OSError as error:
            raise BootFileError(f"cannot write {path}: {error.strerror}") from error


def told(path: str, data: bytes | None) -> Any:
    """For people: JSON as it is, and of a program only that it is another one."""
    if data is None:
        return None
    try:
        return json.loads(data)
    except ValueError:
        return f"sha256:{hashlib.sha256(data).hexdigest()}"


def show(files: Files) -> dict[str, Any]:
    return {path: told(path, data) for path, data in files.items()}


def document(value: Mapping[str, Any]) -> bytes:
    """What the program has to know, as a file."""
    return (json.dumps(value, indent=1, sort_keys=True) + "\n").encode()
