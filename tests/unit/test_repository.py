# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What every file of this repository keeps to."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LISTED = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
FILES = [name for name in LISTED if name and (ROOT / name).is_file()]
# A folder of somebody's machine, or a paper that readers of this repository do not have. (Written so that this file does not match.)
PRIVATE = re.compile(r"(?<![\w.])/work[/]|/root[/]\.|\.\./shared[/]|\bissue #?\d+\b", re.IGNORECASE)


@pytest.mark.parametrize("name", FILES)
def test_mentions_nothing_private(name: str) -> None:
    text = (ROOT / name).read_bytes().decode(errors="replace")
    found = [f"{name}:{number}: {line.strip()}" for number, line in enumerate(text.splitlines(), 1) if PRIVATE.search(line)]
    assert not found


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".py")])
def test_states_its_license(name: str) -> None:
    assert "SPDX-License-Identifier: GPL-3.0-or-later" in (ROOT / name).read_text()[:500]


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith((".yaml", ".yml"))])
def test_yaml_files_end_in_yml(name: str) -> None:
    assert name.endswith(".yml") or name in ("changelogs/config.yaml", "changelogs/changelog.yaml")


@pytest.mark.parametrize("name", [name for name in FILES if name.startswith("plugins/module_utils/") and name.endswith(".py")])
def test_module_utils_are_private_and_load_on_a_node(name: str) -> None:
    text = (ROOT / name).read_text()
    assert "**PRIVATE**" in text
    assert "from __future__ import annotations" in text
