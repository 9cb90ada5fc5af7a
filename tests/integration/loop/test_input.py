# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What Alertmanager, or whoever says to be it, may send: a clear error or a held alert, nothing executed, nothing lost."""

from __future__ import annotations

import datetime as dt
import json
import socket
import uuid
from pathlib import Path

import alerts
import pytest
from loop import Controller

pytestmark = pytest.mark.timeout(900)
MIB = 1 << 20
HOSTILE = {
    "quotes": "bare-1\"; 'touch x",
    "braces": "{{ lookup('pipe', 'id') }}{% raw %}",
    "newlines": "bare-1\n- hosts: all\r\n\x00\u2028",
    "a path": "../../etc/passwd",
    "a pattern": "bare-*",
    "a megabyte": "x" * (1 << 20),
}


@pytest.fixture
def controller(tmp_path):
    with Controller(tmp_path / "controller") as made:
        made.ledger(write=True).set_mode("act", "tests", "the test needs it")
        yield made


def alert(labels, **changed):
    """One alert of a recorded message; a label of None is taken out, `changed` are the alert's own fields."""
    message = alerts.rewritten(alerts.recorded("firing-single"), labels, annotations={"xid": None})
    return {**message["alerts"][0], **changed}


def message(controller, *members, **more):
    path = controller.directory / f"message-{len(list(controller.directory.glob('message-*')))}.json"
    path.write_text(json.dumps({**alerts.recorded("firing-single"), "alerts": members, **more}))
    return str(path)


def test_each_alert_is_judged_alone(controller):
    """S2: one good alert among bad ones; again, with an old delivery and a resolved one, and nothing more happens. No URL in it is asked."""
    node = controller.node("bare-1", gpus=4)
    holders = [node.start([gpu], f"work-{gpu}", MIB) for gpu in range(4)]
    node.xid(3, 48)
    lure = socket.create_server(("127.0.0.1", 0))
    url = "http://127.0.0.1:%d/" % lure.getsockname()[1]
    good = alert({"node": "bare-1", "gpu_uuid": controller.uuid("bare-1", 3), "gpu": None, "xid": "48"})
    good.update(generatorURL=url, annotations={"runbook_url": url, "prometheus_url": url})
    bad = [
        *(alert({"node": value, "gpu": "0", "xid": "48"}) for value in HOSTILE.values()),
        *(alert({"node": "bare-1", "gpu_uuid": value, "xid": "48"}) for value in HOSTILE.values()),
        *(alert({"node": "bare-1", "gpu": "0", "xid": value}) for value in HOSTILE.values()),
        alert({"node": None}),
        alert({"node": "nobody-knows-it", "xid": "48"}),
        alert({"node": "bare-1", "xid": "63"}, status="burning"),
        alert({"node": "bare-1", "xid": "79"}, startsAt="yesterday"),
        alert({"node": "bare-1", "xid": 48}),
        {**good, "labels": ["node", "bare-1"], "fingerprint": "0" * 16},
        "bare-1",
        None,
    ]
    moved = alert({"node": "bare-1", "gpu": "77", "xid": "48"})  # the node has its Xid, on another GPU
    nowhere = alert({"node": "bare-1", "gpu_uuid": f"GPU-{uuid.uuid4()}", "xid": "48"})

    sent = message(controller, *bad[:9], good, moved, nowhere, *bad[9:], truncatedAlerts=3, externalURL=url)
    run = controller.remediate(alert_file=sent)

    assert run.ok, run.output
    state = {one["gpu"]: one for one in controller.incidents()}
    assert {gpu: one["state"] for gpu, one in state.items()} == {
        controller.uuid("bare-1", 3): "contained",
        "index:77": "no_action",
        nowhere["labels"]["gpu_uuid"]: "held_for_human",
    }
    assert state["index:77"]["verdict"]["merged_into"] == state[controller.uuid("bare-1", 3)]["id"]
    assert [Path(f"/proc/{pid}").exists() for pid in holders] == [True, True, True, False]
    overview = controller.ledger().overview()
    assert len(overview["held_alerts"]) == len({json.dumps(one) for one in bad})
    told = sorted(one["topic"] for one in overview["unsent"])
    assert told == ["alert_held"] * len(overview["held_alerts"]) + ["contained", "held_for_human", "message_truncated", "no_action"]
    assert "touch x" not in run.output and "lookup(" not in run.output and "hosts: all" not in run.output

    earlier = alert({"node": "bare-1", "gpu_uuid": controller.uuid("bare-1", 3), "gpu": None, "xid": "48"})
    earlier["startsAt"] = (dt.datetime.now(dt.timezone.utc) - dt.timedelta(hours=1)).isoformat()
    again = controller.remediate(alert_file=message(controller, {**good, "status": "resolved"}, earlier, *bad))

    assert again.ok, again.output
    with lure, pytest.raises(BlockingIOError):
        lure.setblocking(False)
        lure.accept()
    assert {one["gpu"]: one["timeline"] for one in controller.incidents()} == {gpu: one["timeline"] for gpu, one in state.items()}
    assert controller.ledger().overview()["unsent"] == overview["unsent"]


def test_what_cannot_be_read(controller):
    """A clear error, and the message stays in the inbox; reconcile reads what a dead run left there, whatever lies beside it."""
    node = controller.node("bare-1", gpus=2)
    pid = node.start([1], "train", MIB)
    node.xid(1, 48)
    for text, words in [
        ("", "the message is not JSON"),
        ('{"version": "4", "alerts": [', "the message is not JSON"),
        ('{"version": "4", "alerts": {}}', "has no list"),
    ]:
        path = controller.directory / "bad.json"
        path.write_text(text)
        run = controller.remediate(alert_file=str(path))
        assert not run.ok and words in run.output and "Traceback" not in run.output, run.output
    missing = controller.remediate(alert_file="/nowhere/alert.json")
    assert not missing.ok and "alert_file /nowhere/alert.json cannot be read: No such file or directory" in missing.output
    assert [one["topic"] for one in controller.ledger().overview()["unsent"]] == ["message_unreadable"] * 3

    ledger = controller.ledger(write=True)
    ledger.receive(b"\xff\xfe", "test")
    ledger.receive(controller.alert("bare-1", 1, 48).read_bytes(), "test")
    run = controller.play("reconcile")

    assert run.ok, run.output
    assert [one["state"] for one in controller.incidents()] == ["contained"]
    assert not Path(f"/proc/{pid}").exists()
    assert controller.ledger().overview()["unhandled"] == []


@pytest.mark.parametrize("playbook", ["remediate", "reconcile", "release", "mode", "status"])
def test_a_limit_is_refused(controller, playbook):
    """It would leave the controller's plays out, or the nodes': the run would do half of its work, or nothing, and say nothing."""
    for name in ("bare-1", "bare-2"):
        controller.node(name, gpus=1)
    for limit in ("bare-1", "bare-1,localhost", "all"):
        run = controller.play(playbook, "--limit", limit, mode="observe", who="tests", why="none", incident_id="none")
        assert not run.ok and "leave out --limit" in run.output, run.output
    assert controller.ledger().mode() == "act"
