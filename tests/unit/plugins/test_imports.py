# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What is loaded where: each of these libraries costs half a second of CPU, and no node has them."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

LIBRARIES = ("alembic", "kubernetes", "sqlalchemy")


def loaded_by(module):
    code = f"import json, sys, ansible_collections.gpuops.remediation.plugins.{module}; print(json.dumps(sorted(sys.modules)))"
    answer = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    return [name for name in LIBRARIES if name in json.loads(answer.stdout)]


@pytest.mark.parametrize(
    "module",
    [
        "modules.cgroup_devices",
        "modules.cgroup_limits",
        "modules.cgroup_state",
        "modules.gpu_info",
        "modules.isolation_info",
        "modules.node_lock",
    ],
)
def test_on_a_node(module):
    assert loaded_by(module) == []


@pytest.mark.parametrize(
    ("module", "libraries"),
    [("action.incident", ["alembic", "sqlalchemy"]), ("action.node_taint", ["alembic", "kubernetes", "sqlalchemy"])],
)
def test_before_the_controllers_workers_are_forked(module, libraries):
    assert loaded_by(module) == libraries
