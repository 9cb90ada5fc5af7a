# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The whole loop on bare hosts: a real process, a real alert, the real playbooks."""

from __future__ import annotations

import contextlib
import http.server
import json
import sqlite3
import threading
from pathlib import Path

import pytest
from loop import Controller, alive

pytestmark = pytest.mark.timeout(900)
MIB = 1 << 20


@pytest.fixture
def controller(tmp_path):
    with Controller(tmp_path / "controller") as made:
        yield made


@contextlib.contextmanager
def alertmanager():
    """Keeps what is posted to its API; yields its URL and that."""
    posted = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            posted.append((self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", posted
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def due_now(controller):
    """The time after which what could not be sent is tried again has passed."""
    with contextlib.closing(sqlite3.connect(controller.directory / "ledger.db", isolation_level=None)) as ledger:
        ledger.execute("UPDATE outbox SET due_at = created_at")


def test_from_the_alert_to_the_release(controller, tmp_path):
    """The holder of a GPU is ended, people are told, every check is made before the GPU goes back; each run twice."""
    node = controller.node("bare-1", gpus=4)
    pid = node.start([3], "train", 40_000 * MIB)
    controller.mode("act")
    node.xid(3, 48)
    alert = str(controller.alert("bare-1", 3, 48))

    broken = ["sh", "-c", "cat >/dev/null; exit 1"]  # one that does not read would be a race with who writes to it
    with alertmanager() as (url, posted):
        run = controller.remediate(alert_file=alert, notify_command=broken, notify_alertmanager_url=url)

    assert run.ok, run.output
    [incident] = controller.incidents()
    assert (incident["state"], incident["gpu"], incident["domain"]) == ("contained", controller.uuid("bare-1", 3), "memory")
    assert incident["budget"]["within"] and incident["budget"]["seconds"] == 720
    assert not alive(pid)
    assert {entry["status"] for entry in controller.journal("bare-1")} == {"intended", "applied"}
    [unsent] = controller.ledger().overview()["unsent"]
    assert (unsent["topic"], unsent["attempts"], unsent["channels"]) == ("contained", 1, ["command"])
    assert "command: non-zero return code" in unsent["error"]
    assert [message["labels"]["topic"] for _path, [message] in posted] == ["contained"], "one that fails holds nobody back"

    due_now(controller)
    told = tmp_path / "told"
    tell = {"notify_command": ["tee", "-a", str(told)]}
    with alertmanager() as (url, posted):
        again = controller.remediate(alert_file=alert, notify_alertmanager_url=url, **tell)

    assert posted == [], "who was told is not told again"
    assert again.ok and again.changed("bare-1") == 0, again.output
    assert [one["id"] for one in controller.incidents()] == [incident["id"]]
    assert len(controller.incidents()[0]["changes"]) == len(incident["changes"])
    told_of = json.loads(told.read_text())
    assert (told_of["topic"], told_of["incident_id"], told_of["payload"]["node"]) == ("contained", incident["id"], "bare-1")

    status = controller.play("status")
    assert f"release -e gpuops_incident_id={incident['id']}" in status.output

    intruder = node.start([3], "intruder", MIB)
    refused = controller.play("release", incident_id=incident["id"], **tell)
    assert not refused.ok
    assert f"intruder (pid {intruder})" in refused.output and "asks for reset gpu, and no proof of it was found" in refused.output
    assert alive(intruder) and controller.incidents()[0]["state"] == "contained"

    node.exit(intruder)
    node.reset(3)
    with alertmanager() as (url, posted):
        for _run in range(2):
            released = controller.play("release", incident_id=incident["id"], notify_alertmanager_url=url, **tell)
            assert released.ok, released.output
        [story] = controller.incidents()
        assert story["state"] == "released" and {change["status"] for change in story["changes"]} == {"reverted"}
        assert {check["name"]: check["ok"] for check in story["release"]["checks"]} == {
            **dict.fromkeys(["nvml_answers", "recovery_action", "row_remap", "ecc", "kernel_log", "holders", "repaired"], True),
            "prometheus": None,
        }
        due_now(controller)
        idle = controller.play("reconcile", notify_alertmanager_url=url, **tell)

    assert idle.ok and idle.changed("localhost") == 0, idle.output
    assert "No open incident" in idle.output
    [(path, [message])] = posted  # once an incident and state, by each way
    assert path == "/api/v2/alerts" and message["labels"]["topic"] == "released"
    assert told.read_text().count('"topic"') == 2


def test_a_lost_gpu_until_the_node_was_rebooted(controller):
    """S3, S5, S17: another boot is the proof, also for the lock that the one before left; what was logged before it opens nothing again."""
    node = controller.node("bare-1", gpus=2)
    pid = node.start([1], "train", MIB)
    controller.ledger(write=True).set_mode("act", "tests", "the test needs it")
    node.xid(1, 79)
    node.lost(1)
    alert = str(controller.alert("bare-1", 1, 79))
    run = controller.remediate(alert_file=alert)
    assert run.ok, run.output
    [incident] = controller.incidents()
    assert (incident["state"], incident["verdict"]["repair"]) == ("contained", "reboot_node"), incident["reason"]
    assert not alive(pid)

    refused = controller.play("release", incident_id=incident["id"])
    assert not refused.ok and "is lost" in refused.output and "asks for reboot node, and no proof of it was found" in refused.output
    lock = Path(controller.host_variables["bare-1"]["gpuops_state_dir"]) / "lock.json"
    held = json.loads(lock.read_text())
    lock.write_text(json.dumps({**held, "holder": "a run that died with the node", "until": held["until"] + 1e9}))
    node.reboot()
    released = controller.play("release", incident_id=incident["id"])
    assert released.ok, released.output
    again = controller.remediate(alert_file=alert)
    assert again.ok, again.output
    [story] = controller.incidents()
    assert (story["state"], {change["status"] for change in story["changes"]}) == ("released", {"reverted"})
