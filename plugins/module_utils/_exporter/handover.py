# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""The file that root's reader writes, and the exporter reads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._node.statedir import StateDir, StateDirError


def read(file: Path, boot_id: str) -> Optional[dict[str, Any]]:
    """Of this boot only, and if it can be read."""
    try:
        found: dict[str, Any] = StateDir(str(file.parent)).read(file.name, {})
    except StateDirError:
        return None
    return found if found.get("boot_id") == boot_id else None


def write(file: Path, document: Mapping[str, Any]) -> None:
    StateDir(str(file.parent)).write(file.name, document)
