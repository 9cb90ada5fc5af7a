# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import functools
import json

import pytest
from alerts import recorded, rewritten
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.alerts import judge_all, parse_message
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.errors import BadMessage
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.parcels import parcels
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.store import Ledger
from hypothesis import given, settings
from ledgers import GPU, NOON
from messages import messages

INVENTORY = {"gpu-0": {"host": "h0", "uid": "uid-0", "groups": {"rack": "r1"}}, "gpu-1": {"host": "h1", "uid": "uid-1"}}
CANARY = "{{ lookup('pipe', 'id') }}"


def body(name="firing-single", labels=None, **more):
    return json.dumps(rewritten(recorded(name), labels or {}, starts_at=NOON, **more)).encode()


def read(ledger, content, **options):
    return ledger.open_from_file(content, "file:x", INVENTORY, **options)


def test_a_file(ledger):
    result = read(ledger, body("firing-grouped-two-gpus"))
    assert [(one["node"], one["host"], one["gpu"], one["alert"]["xid"]) for one in result["incidents"]] == [
        ("gpu-0", "h0", "index:0", 79),
        ("gpu-0", "h0", "index:1", 48),
    ]
    assert (result["held"], result["ignored"], result["truncated_alerts"]) == ([], [], 0)
    assert result["incidents"][0]["groups"] == {"rack": "r1"}
    again = read(ledger, body("firing-grouped-two-gpus"))
    assert [one["id"] for one in again["incidents"]] == [one["id"] for one in result["incidents"]]
    assert all(one["found"] for one in again["incidents"])


def test_each_alert_is_judged_alone(ledger):
    """S2"""
    message = json.loads(body("firing-grouped-two-gpus"))
    message["alerts"].insert(1, {**message["alerts"][0], "labels": {"alertname": "x"}, "fingerprint": "aaaaaaaa"})
    message["alerts"].insert(1, {**message["alerts"][0], "labels": {"node": "unknown-9"}, "fingerprint": "bbbbbbbb"})
    message["alerts"].append({**message["alerts"][0], "status": "resolved", "fingerprint": "cccccccc"})
    result = read(ledger, json.dumps(message).encode())
    assert len(result["incidents"]) == 2
    assert [(one["position"], one["reason"]) for one in result["held"]] == [
        (1, "its node is not in the inventory"),
        (2, "no label names a node; looked for node, Hostname"),
    ]
    assert [one["position"] for one in result["ignored"]] == [4]


def test_our_own_notifications_are_no_alerts(ledger):
    """An Alertmanager that routes everything back to us would otherwise open an incident for each incident that it is told of."""
    message = json.loads(body("firing-grouped-two-gpus"))
    for alert, labels in zip(message["alerts"], ({"node": "gpu-1", "topic": "contained"}, {"topic": "breaker_tripped"})):
        alert["labels"] = {"alertname": "GpuopsIncident", **labels}
    result = read(ledger, json.dumps(message).encode())
    assert [one["reason"] for one in result["ignored"]] == ["our own notification"] * 2
    assert (result["incidents"], result["held"], ledger.claim_notifications()) == ([], [], [])


def test_truncated_is_said(ledger):
    assert read(ledger, body("truncated-max_alerts-1"))["truncated_alerts"] == 1


def test_a_mixed_message_goes_by_each_alerts_own_status(ledger):
    message = json.loads(body("firing-grouped-two-gpus"))
    message["alerts"][0]["status"] = "resolved"
    result = read(ledger, json.dumps(message).encode())
    assert [one["gpu"] for one in result["incidents"]] == ["index:1"]


def test_two_alerts_of_one_fault_are_one_incident(ledger):
    """One crash is one incident."""
    message = json.loads(body("firing-grouped-two-gpus"))
    for alert in message["alerts"]:
        alert["labels"]["UUID"] = GPU
    assert len(read(ledger, json.dumps(message).encode())["incidents"]) == 1


def test_a_message_that_cannot_be_read_is_kept(ledger):
    """Nothing lost, a clear error."""
    with pytest.raises(BadMessage, match="not JSON"):
        read(ledger, b"{")
    assert ledger.overview()["unhandled"] == []


def test_templates_stay_in_the_inbox(ledger):
    """S1: nothing of the text comes back, wherever it stood."""
    labels = dict.fromkeys(("alertname", "severity", "team"), CANARY)
    result = read(ledger, body(labels=labels, annotations={"summary": CANARY, "xid": CANARY}))
    held = read(ledger, body(labels={"node": CANARY}))
    assert "lookup" not in json.dumps([result, held], default=str)
    assert [one["reason"] for one in held["held"]] == ["label node is not a node name"]


def test_inbox_ids(ledger, clock):
    """The event source commits first; the deadline counts from then."""
    ids = [ledger.receive(body(), "webhook"), ledger.receive(b"[]", "webhook"), ledger.receive(body("firing-grouped-two-gpus"), "webhook")]
    assert ledger.overview()["unhandled"] == ids
    clock.on(30)
    result = ledger.open_from_inbox(ids, INVENTORY)
    assert [one["node"] for one in result["incidents"]] == ["gpu-1", "gpu-0", "gpu-0"]
    assert result["incidents"][0]["received_at"] == "2026-11-29T12:00:00.000Z"
    assert len(result["held"]) == 1, "the unreadable message is named, the others go on"
    assert ledger.overview()["unhandled"] == []
    with pytest.raises(BadMessage, match="no message 99"):
        ledger.open_from_inbox([99], INVENTORY)


def test_what_another_run_has_decided_is_not_opened_again(ledger):
    """Its incident may be in the midst of a stage, and whoever opens it takes its lock over."""
    first, second = ledger.receive(body(), "webhook"), ledger.receive(body("firing-grouped-two-gpus"), "webhook")
    ledger.open_from_inbox([first], INVENTORY)
    result = ledger.open_from_inbox([first, second, second], INVENTORY)
    assert {one["node"] for one in result["incidents"]} == {"gpu-0"}
    assert result["ignored"] == [{"inbox_id": first, "reason": "another run has decided this message"}]


def test_capacity_and_labels(ledger):
    result = read(ledger, body("firing-grouped-two-gpus"), max_running=1, labels={"gpu_index": ["nothing"]})
    assert [one["gpu"] for one in result["incidents"]] == ["-"]
    assert read(ledger, body(), max_running=1)["incidents"][0]["state"] == "fenced_waiting"


def test_people_are_told_what_a_message_did_not_say(ledger):
    """Once a message."""
    with pytest.raises(BadMessage):
        read(ledger, b"")
    read(ledger, body("truncated-max_alerts-1"))
    told = [(one["topic"], one["payload"]["reason"]) for one in ledger.overview()["unsent"]]
    assert told[0][0] == "message_unreadable" and "not JSON" in told[0][1]
    assert told[1] == ("message_truncated", "Alertmanager left 1 alerts out of the message")


@functools.cache
def one_ledger():
    return Ledger.open("sqlite://")


@given(messages())
@settings(max_examples=60)
def test_every_alert_is_decided(content):
    """Whatever stands in it, each alert has an incident, is held, or is ignored for a reason, and no row is left."""
    ledger = one_ledger()
    found = parcels(json.dumps(content).encode())
    rows = ledger.keep([(parcel, "tests") for parcel in found])
    due = [parcel for parcel, row in zip(found, rows) if row.due]  # an earlier message may have brought the same
    result = ledger.open_from_inbox([row.inbox_id for row in rows if row.due], INVENTORY)
    said = {one["fingerprint"] for one in [*result["held"], *result["ignored"]]}
    opened = {one["node"] for one in result["incidents"]}
    assert all(
        judged.fingerprint in said or (judged.alert is not None and judged.alert.node in opened)
        for parcel in due
        for judged in judge_all(parse_message(parcel.body))
    )
    assert ledger.undecided() == []
