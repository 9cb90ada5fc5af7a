# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""S4 on bare hosts: what is predicted, and what each mode leaves alone."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest
from loop import Controller

pytestmark = pytest.mark.timeout(900)
MIB = 1 << 20


@pytest.fixture
def controller(tmp_path):
    with Controller(tmp_path / "controller") as made:
        yield made


def touched(controller):
    """What was written to the nodes' state folders."""
    return {name: sorted(path.name for path in (node.path / "var/lib/gpuops").iterdir()) for name, node in controller.nodes.items()}


def rows(controller):
    with contextlib.closing(sqlite3.connect(controller.directory / "ledger.db")) as ledger:
        return list(ledger.iterdump())


def test_check_and_each_mode(controller):
    """One sick node of ours and one that is opted out: predicted twice, watched, fenced where there is a fence, and then contained."""
    holders = {}
    for name, variables in (("ours", {}), ("theirs", {"gpuops_managed": False})):
        node = controller.node(name, gpus=2, **variables)
        holders[name] = node.start([1], "train", 40_000 * MIB)
        node.xid(1, 48)
    alert = str(controller.together(*(controller.alert(name, 1, 48) for name in holders)))

    def alive():
        return [name for name, pid in holders.items() if Path(f"/proc/{pid}").exists()]

    first = controller.remediate("--check", "--diff", alert_file=alert)
    assert first.ok, first.output
    assert not list(controller.directory.glob("ledger.db*"))  # a new ledger would observe, and none was made
    assert "ours: isolate would be due, the mode observe forbids touching processes" in first.output

    controller.ledger(write=True).set_mode("act", "tests", "the test needs it")
    before = rows(controller)
    predicted = controller.remediate("--check", "--diff", alert_file=alert)
    assert predicted.ok, predicted.output
    assert rows(controller) == before
    for words in ("diagnose would be ok, quarantine_gpu because: Xid 48", "isolate would be ok", f"{holders['ours']}"):
        assert words in predicted.output
    assert str(holders["theirs"]) not in predicted.output
    assert (alive(), touched(controller)) == (["ours", "theirs"], {"ours": [], "theirs": []})

    for mode in ("observe", "fence"):
        controller.ledger(write=True).set_mode(mode, "tests", "the test needs it")
        run = controller.remediate(alert_file=alert)
        assert run.ok, run.output
        incidents = {one["node"]: one for one in controller.incidents()}
        assert {one["state"] for one in incidents.values()} == {"no_action"}
        assert f"the mode {mode} forbids touching processes" in incidents["ours"]["stages"]["isolate"]["reason"]
        assert incidents["theirs"]["reason"] == "the node is opted out"
        assert alive() == ["ours", "theirs"] and controller.journal("ours") == []
        assert mode == "fence" or touched(controller)["ours"] == []

    controller.ledger(write=True).set_mode("act", "tests", "the test needs it")
    run = controller.remediate(alert_file=alert)

    assert run.ok, run.output
    assert [one["state"] for one in controller.incidents("ours")][-1] == "contained"
    assert {one["state"] for one in controller.incidents("theirs")} == {"no_action"}
    assert (alive(), touched(controller)["theirs"]) == (["theirs"], [])
