# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""The cgroup memory limit that holds for a cgroup: the least of its own and of those above it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Optional, Union

from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.limits import MAX
from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.paths import V2, owner_of

Limit = Union[int, str]
_UNLIMITED_V1 = 1 << 62  # version 1 writes the largest number that a page counter has


def limit_of(root: str, memberships: Mapping[str, str]) -> Optional[Limit]:
    """In bytes, or "max"; None where there is no such file."""
    unified = (Path(root) / "cgroup.controllers").exists()
    top, name = (Path(root), "memory.max") if unified else (Path(root) / "memory", "memory.limit_in_bytes")
    path = memberships.get(V2 if unified else "memory")
    if path is None:
        return None
    owner = owner_of(path)
    folder = top / (owner.path if owner else path).strip("/")
    if _read(folder / name) is None:
        return None
    limits = [_read(above / name) for above in (folder, *folder.parents) if top in above.parents]
    return min((one for one in limits if isinstance(one, int)), default=MAX)


def _read(file: Path) -> Optional[Limit]:
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return MAX if text == MAX or int(text) >= _UNLIMITED_V1 else int(text)
