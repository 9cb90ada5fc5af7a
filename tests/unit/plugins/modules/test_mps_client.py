# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json

import pytest
from ansible_collections.gpuops.remediation.plugins.modules import mps_client
from run_module import run_module


@pytest.fixture
def run(tmp_path):
    control = tmp_path / "control"

    def go(script, **params):
        control.write_text(f"#!/bin/sh\nread verb rest\n{script}\n")
        control.chmod(0o755)
        places = {"pipe_directory": str(tmp_path), "state_dir": str(tmp_path / "state"), "mps_control": str(control)}
        return run_module(mps_client.main, **{**places, **params})

    return go


def test_the_list_changes_nothing(run, tmp_path):
    script = "case $verb in get_server_list) echo 7 ;; get_server_status) echo ACTIVE ;; get_client_list) echo 1 ;; esac"
    result = run(script, state="listed")
    assert not result["changed"] and result["after"]["servers"] == [{"pid": 7, "status": "ACTIVE"}]
    [client] = result["after"]["clients"]
    assert (client["pid"], client["server"], client["terminated"], client["lingers"]) == (1, 7, False, False)
    assert not (tmp_path / "state/journal.jsonl").exists()


def test_no_daemon_is_an_error_of_its_own(run):
    result = run("echo Cannot find MPS control daemon process >&2; exit 1", state="recovered")
    assert (result["failed"], result["error_kind"]) == (True, "no_daemon")


def test_somebody_has_to_be_named(run):
    assert "pids" in run("true", state="terminated")["msg"]


def test_a_lost_lock_stops_it_before_anything_is_asked(run, tmp_path):
    (tmp_path / "state").mkdir()
    (tmp_path / "state/lock.json").write_text(json.dumps({"token": 9, "holder": "other", "boot_id": "x", "until": 0}))
    result = run(f"touch {tmp_path}/asked", state="recovered", lock_token=3, lock_holder="me")
    assert result["error_kind"] == "lock_lost" and not (tmp_path / "asked").exists()
