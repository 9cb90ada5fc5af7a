# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The whole loop on bare hosts: a real process, a real alert, the real playbooks."""

from __future__ import annotations

from pathlib import Path

import pytest
from loop import Controller

MIB = 1 << 20


@pytest.fixture
def controller(tmp_path):
    with Controller(tmp_path / "controller") as made:
        yield made


def alive(pid):
    return Path(f"/proc/{pid}").exists()


def test_from_the_alert_to_the_proof(controller):
    """A row that cannot be remapped: the GPU's holder is ended, the second run finds nothing to do."""
    node = controller.node("bare-1")
    pid = node.start([3], "train", 40_000 * MIB)
    controller.mode("act")
    node.xid(3, 48)
    node.row_remap(3, failure=True)
    alert = controller.alert("bare-1", 3, 48)

    run = controller.remediate(alert_file=str(alert))

    assert run.ok, run.output
    [incident] = controller.incidents()
    assert (incident["state"], incident["gpu"], incident["domain"]) == ("contained", controller.uuid("bare-1", 3), "memory")
    assert incident["budget"]["within"] and incident["budget"]["seconds"] == 720
    assert not alive(pid)
    assert {entry["status"] for entry in controller.journal("bare-1")} == {"intended", "applied"}

    again = controller.remediate(alert_file=str(alert))

    assert again.ok, again.output
    assert [one["id"] for one in controller.incidents()] == [incident["id"]]
    assert len(controller.incidents()[0]["changes"]) == len(incident["changes"])
