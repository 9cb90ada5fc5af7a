# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import os
import socket

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._node import journal as module
from ansible_collections.gpuops.remediation.plugins.module_utils._node.journal import Journal
from ansible_collections.gpuops.remediation.plugins.module_utils._node.statedir import StateDir, StateDirError


@pytest.fixture
def journal(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_SYSLOG", str(tmp_path / "no-syslog"))
    return Journal(StateDir(str(tmp_path)), "boot-1", "run-1", "row remap failure", "inc-1")


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_written_ahead_and_after(journal, tmp_path):
    journal.intended("kill", "/a.service", {"processes": [1]}, {"processes": []})
    journal.applied("kill", "/a.service", {"processes": [1]}, {"processes": []})
    ahead, after = lines(tmp_path / "journal.jsonl")
    assert ahead.pop("time") <= after.pop("time")
    assert ahead == {
        "boot_id": "boot-1",
        "incident_id": "inc-1",
        "action": "kill",
        "target": "/a.service",
        "before": {"processes": [1]},
        "after": {"processes": []},
        "status": "intended",
        "by": "run-1",
        "why": "row remap failure",
    }
    assert after == {**ahead, "status": "applied"}
    assert oct((tmp_path / "journal.jsonl").stat().st_mode & 0o777) == "0o600"


def test_s19_rotation_keeps_a_few(journal, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_LARGEST_BYTES", 300)
    for number in range(12):
        journal.intended("kill", str(number), None, None)
    names = sorted(name for name in os.listdir(tmp_path) if name.startswith("journal"))
    assert names == ["journal.jsonl", *(f"journal.jsonl.{number}" for number in range(1, 5))]
    newest = [line["target"] for name in ("journal.jsonl.1", "journal.jsonl") for line in lines(tmp_path / name)]
    assert newest[-1] == "11" and newest == sorted(newest, key=int)


def test_what_cannot_be_written_down_is_an_error(journal, tmp_path):
    (tmp_path / "journal.jsonl").mkdir()
    with pytest.raises(StateDirError, match="cannot write"):
        journal.intended("kill", "/a.service", None, None)


def test_the_system_log_is_told_and_never_waited_for(journal, tmp_path):
    log = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    log.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    log.bind(str(tmp_path / "no-syslog"))
    for _attempt in range(600):  # more than it takes while nobody reads
        module._tell_system("{}")
    journal.intended("kill", "/a.service", None, None)
    assert log.recv(1000).startswith(f"<29>gpuops[{os.getpid()}]: {{".encode())
    log.close()


@pytest.mark.parametrize(("holder", "by"), [("run-1", "run-1"), (None, "operator, by hand")])
def test_by_whom(tmp_path, monkeypatch, holder, by):
    class Node:
        state = StateDir(str(tmp_path))

        class proc:
            @staticmethod
            def boot_id():
                return "boot-1"

    monkeypatch.setenv("SUDO_USER", "operator")
    assert Journal.from_params(Node, {"lock_holder": holder, "why": "", "incident_id": None}).by == by
