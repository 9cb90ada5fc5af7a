# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.gpuops.remediation.plugins.modules import notification
from run_module import run_module


@pytest.fixture
def run(tmp_path):
    def run(state, check_mode=False, **params):
        return run_module(notification.main, check_mode=check_mode, ledger_url=f"sqlite:///{tmp_path}/ledger.db", state=state, **params)

    return run


def test_from_the_queue_to_the_pager(run):
    queued = {"key": "waiting", "topic": "waiting", "payload": {"incidents": 12}}
    assert [run("queued", check_mode=check, **queued)["changed"] for check in (True, False, False, True)] == [True, True, False, False]
    assert len(run("claimed", check_mode=True)["notifications"]) == 1
    (one,) = run("claimed")["notifications"]
    assert (one["topic"], one["payload"], one["incident_id"]) == ("waiting", {"incidents": 12}, None)
    assert run("claimed") == {**run("claimed"), "changed": False, "notifications": []}
    assert run("failed", ids=[one["id"]], why="the pager is down")["changed"]
    assert run("sent", ids=[one["id"]])["changed"]
    assert not run("sent", ids=[one["id"]])["changed"]
    assert not run("failed", ids=[one["id"]], why="too late")["changed"]


def test_each_channel_by_itself(run):
    run("queued", key="waiting", topic="waiting")
    (one,) = run("claimed", channels=["command", "alertmanager"])["notifications"]
    assert one["channels"] == ["alertmanager", "command"]
    assert run("sent", ids=[one["id"]], channel="command")["changed"]
    assert not run("sent", ids=[one["id"]], channel="command")["changed"]
    assert run("failed", ids=[one["id"]], why="the pager is down")["changed"]
    assert run("sent", ids=[one["id"]], channel="alertmanager")["changed"]
    assert not run("failed", ids=[one["id"]], why="too late")["changed"]


@pytest.mark.parametrize("options", [{"state": "sent"}, {"state": "failed", "ids": [1]}, {"state": "queued", "key": "x"}])
def test_what_is_missing(run, options):
    assert run(**options)["failed"]
