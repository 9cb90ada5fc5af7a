# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a role has by itself is what it says that it takes, on the oldest, the usual and the newest ansible-core."""

from __future__ import annotations

import json
import os
import subprocess

import pytest
from canaries import CORES
from loop import REPOSITORY

ROLES = sorted(path.name for path in (REPOSITORY / "roles").iterdir())
NEEDED = {"incident_stage": "detect"}


@pytest.mark.parametrize("core", CORES)
def test_defaults_are_valid_arguments(core, tmp_path):
    """An ansible-core that does not leave out what is omitted takes it for a text, which is no number and no choice."""
    programs, environment = CORES[core]
    if not (programs / "ansible-playbook").exists():
        pytest.skip("this machine's Python is too old for the newest ansible-core")
    plays = [{"hosts": "localhost", "gather_facts": False, "vars": NEEDED, "roles": [f"gpuops.remediation.{role}"]} for role in ROLES]
    (tmp_path / "roles.yml").write_text(json.dumps(plays))
    run = subprocess.run(
        [programs / "ansible-playbook", "-i", "localhost,", "--check", "--tags", "nothing", tmp_path / "roles.yml"],
        check=False,
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, **environment, "ANSIBLE_LOCALHOST_WARNING": "false"},
    )
    told = run.stdout + run.stderr
    assert "fatal" not in told and "rror" not in told, told
    assert told.count("Validating arguments") == len(ROLES), told
