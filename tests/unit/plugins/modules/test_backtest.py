# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import alerts
import pytest
from alerts import RECORDINGS
from ansible_collections.gpuops.remediation.plugins.modules import backtest
from gpu_evidence import BOOT_TIME, FIXTURES, POLICY_FILE, xid
from ledgers import NOON
from run_module import run_module

LOG = {"node": "gpu-1", "path": str(FIXTURES / "h200-580.kmsg"), "boot_time": BOOT_TIME.isoformat()}
# Every way in which Python makes, changes or removes a file; SQLite opens its own, and says so.
WATCHED = """
import json, os, sys, run_module
from ansible_collections.gpuops.remediation.plugins.modules import backtest

written = []
def watch(event, arguments):
    if event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        written.append(str(arguments[0]))
    elif event in ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.symlink", "os.link", "os.chmod", "socket.connect", "subprocess.Popen"):
        written.append(event)
    elif event == "sqlite3.connect" and arguments[0] != ":memory:":
        written.append(str(arguments[0]))
sys.dont_write_bytecode = True
sys.addaudithook(watch)
result = run_module.run_module(backtest.main, **json.loads(sys.argv[1]))
open("/proc/self/comm", "w").close()
print(json.dumps({"written": written, "result": result}))
"""


def run(**options):
    return run_module(backtest.main, policy_file=str(POLICY_FILE), **options)


def test_the_recorded_messages():
    result = run(messages=str(RECORDINGS))
    assert (result["changed"], result["totals"]["actions"], result["totals"]["ignored"]) == (
        False,
        {"none": 1, "quarantine_gpu": 2},
        {"resolved": 1},
    )
    assert [os.path.basename(one["path"]) for one in result["unread"]] == ["request-headers.json"]
    assert result["truncated_alerts"] == 1


def test_a_recorded_kernel_log():
    result = run(kernel_logs=[LOG])
    [incident] = result["incidents"]
    assert (incident["xids"], incident["action"], incident["time"]) == ([13, 31], "none", "2026-11-29T20:00:28.922Z")


def test_the_table():
    """A line an incident; text of a kernel log never steers the terminal."""
    head, line, *totals = run(kernel_logs=[LOG])["table"].splitlines()
    assert head.split() == ["TIME", "NODE", "GPU", "XID", "ACTION", "SCOPE", "CERTAINTY", "REPAIR", "FENCE", "BREAKER", "AGAIN", "WHY"]
    assert line.split()[:2] == ["2026-11-29T20:00:28.922Z", "gpu-1"]
    assert "1 incidents on 1 nodes: 1 none" in totals and "the breaker does not trip" in totals


def test_a_group_is_a_line_of_its_own(tmp_path):
    """By a label of the message as by the inventory, and as far apart as the option says."""
    message = alerts.recorded("firing-single")
    message["alerts"] = [
        alert
        for number, node in enumerate(("gpu-1", "gpu-2", "gpu-3"))
        for alert in alerts.rewritten(
            alerts.recorded("firing-single"),
            {"node": node, "xid": "74", "gpu": None, "shelf": "r12"},
            annotations={"xid": None},
            starts_at=NOON + timedelta(seconds=10 * number),
        )["alerts"]
    ]
    (tmp_path / "message.json").write_text(json.dumps(message))
    options = {"messages": str(tmp_path), "alert_labels": {"rack": ["shelf"]}}
    table = run(**options, correlation={"seconds": 30})["table"]
    assert "r12 (3 nodes)" in table and "1 of them of many nodes" in table
    assert run(**options)["totals"]["groups"] == 0


def test_kernel_logs_of_a_rack(tmp_path):
    """An NVLink's fault on all of them is one; a GPU that is lost beside it is not hidden in it."""
    logs = [{**LOG, "node": f"gpu-{number}", "path": str(tmp_path / str(number))} for number in range(4)]
    for log in logs:
        Path(log["path"]).write_text(xid(74) + "\n" + (xid(79) + "\n" if log["node"] == "gpu-3" else ""))
    inventory = {log["node"]: {"host": log["node"], "groups": {"rack": "r12"}} for log in logs}
    found = run(kernel_logs=logs, inventory=inventory)["incidents"]
    assert {(one["kind"], tuple(one["nodes"])) for one in found} == {("group", ("gpu-0", "gpu-1", "gpu-2")), ("fault", ("gpu-3",))}


def test_control_characters(tmp_path):
    path = tmp_path / "log"
    path.write_text(xid(13, pid=7, name="\x1b[2Jtrain") + "\n")
    assert "\x1b" not in run(kernel_logs=[{**LOG, "path": str(path)}])["table"]


def test_nothing_is_written():
    """No file, no process, no connection; the ledger is in memory."""
    for options in ({"messages": str(RECORDINGS)}, {"kernel_logs": [LOG]}):
        done = subprocess.run(
            [sys.executable, "-c", WATCHED, json.dumps({"policy_file": str(POLICY_FILE), **options})],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        answer = json.loads(done.stdout)
        assert answer["result"]["incidents"]
        assert answer["written"] == ["/proc/self/comm"], "the watch sees its own write, and nothing else"


@pytest.mark.parametrize(
    "options, words",
    [
        ({"messages": "/nowhere"}, "holds no message"),
        ({"messages": str(RECORDINGS / "request-headers.json")}, "holds no message"),
        ({"kernel_logs": [{**LOG, "path": "/nowhere"}]}, "cannot be read"),
        ({"kernel_logs": [{**LOG, "boot_time": "yesterday"}]}, "time zone"),
        ({"kernel_logs": [{**LOG, "boot_time": None}]}, "without a date"),
        ({}, "one of the following is required"),
    ],
)
def test_what_cannot_be_replayed_is_said(options, words):
    result = run(**options)
    assert result["failed"] and words in result["msg"]
