# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""This checkout as the collection that it is, on a machine where nothing of it is installed."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def make_importable(folder: Path, *beside: Path) -> None:
    """By a link in this folder; and what lies in folders beside it."""
    (folder / "ansible_collections/gpuops").mkdir(parents=True)
    (folder / "ansible_collections/gpuops/remediation").symlink_to(ROOT)
    sys.path[:0] = [str(folder), *map(str, beside)]
