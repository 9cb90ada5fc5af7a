# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The script that compares a real GPU with the simulator and the tables: on the simulator itself it finds no difference, and one that is made."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from gpusim import instances
from gpusim.node import Node

SCRIPT = Path(__file__).resolve().parents[1] / "h200/mig_read_only.py"
WITHOUT_ANSIBLE = """
import os, runpy, sys
sys.modules["ansible"] = None
del sys.argv[0]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def compare(node: Node) -> str:
    places = node.host_variables()
    roots = ["--proc-root", places["gpuops_proc_root"], "--dev-root", places["gpuops_dev_root"]]
    command = [sys.executable, "-c", WITHOUT_ANSIBLE, SCRIPT, "--nvml-library", node.nvml_library, *roots]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd="/").stdout


@pytest.mark.parametrize("mig", [False, True])
def test_no_difference(make_node: Callable[..., Node], mig: bool) -> None:
    node = make_node(mig=mig, gpus=1)
    if mig:
        instances.create(node, 0, "3g.71gb", 4, ("2c", "1c"))
        instances.create(node, 0, "1g.18gb+me", 0)
        node.start([0], "dcgm", 0, kind="monitor", gi=2)
    before = node.state()["gpus"]
    text = compare(node)
    assert " different: none" in text and "**no**" not in text
    assert ("3g.71gb@4: 1c.3g.71gb, places | 0:1 1:1 2:1" in text) is mig
    assert ("MIG off: GPU instance 0" in text) is not mig
    assert ("holds [[0, 2, None], [0, None, None]] | dcgm |" in text) is mig
    assert node.state()["gpus"] == before, "it only reads"


def test_a_difference_is_named(make_node: Callable[..., Node]) -> None:
    """Boards of this model for which the driver says 7g.79gb, which the planner knows for 7g.80gb."""
    node = make_node(model_name="a100-80", gpus=1)
    path = node.path / "model.json"
    path.write_text(path.read_text().replace("7g.80gb", "7g.79gb"))
    text = compare(node)
    assert "| query 4, name | 7g.79gb | 7g.80gb | **no** |" in text
    assert "| 7g.80gb, as planned with | no such profile | " in text
