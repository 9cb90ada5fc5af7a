# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import re
import sys

import pytest
from alerts import recorded, rewritten
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.alerts import GROUP_KINDS, MAX_DEPTH, judge_all, parse_message
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.errors import BadMessage
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.parcels import parcels
from hypothesis import example, given, settings
from hypothesis import strategies as st
from ledgers import NOON
from messages import bodies, messages, turned


def message(*nodes, starts_at=NOON, **more):
    one = rewritten(recorded("firing-single"), {}, starts_at=starts_at)
    alerts = [alert for node in nodes for alert in rewritten(recorded("firing-single"), {"node": node}, starts_at=starts_at)["alerts"]]
    return {**one, "alerts": alerts, **more}


def cut(content):
    return parcels(json.dumps(content).encode())


def test_one_node_is_kept_as_it_came():
    body = json.dumps(message("gpu-1", "gpu-1"), indent=3).encode()
    [parcel] = parcels(body)
    assert (parcel.node, parcel.body) == ("gpu-1", body)


def test_several_nodes_are_cut_apart():
    """Each part is a message of its own, and people hear once of what Alertmanager left out."""
    found = cut(message("gpu-1", "gpu-2", "gpu-1", truncatedAlerts=3))
    assert [parcel.node for parcel in found] == ["gpu-1", "gpu-2"]
    parts = [parse_message(parcel.body) for parcel in found]
    assert [(len(part.alerts), part.truncated) for part in parts] == [(2, 3), (1, 0)]
    assert {judged.alert.node for judged in judge_all(parts[0])} == {"gpu-1"}


def test_what_no_node_can_be_named_for_is_kept_too():
    """S2: the run that reads it holds it for people."""
    content = message("gpu-1", "gpu-2")
    content["alerts"][0]["labels"]["node"] = "{{ 7 }}"
    content["alerts"].append("not even an object")
    assert [parcel.node for parcel in cut(content)] == [None, "gpu-2"]


def test_a_delivery_is_known_again():
    """The same alerts in another order are the same delivery; another time, state or set of alerts is another one."""
    firing = message("gpu-1", "gpu-1")
    firing["alerts"][1] = {**firing["alerts"][1], "fingerprint": "0123456789abcdef"}
    [first] = cut(firing)
    turned = {**firing, "alerts": firing["alerts"][::-1], "receiver": "the other of a pair"}
    assert [parcel.digest for parcel in cut(turned)] == [first.digest]
    resolved = {**firing, "alerts": [{**alert, "status": "resolved"} for alert in firing["alerts"]]}
    later = message("gpu-1", "gpu-1", starts_at=NOON.replace(hour=13))
    fewer = {**firing, "alerts": firing["alerts"][:1]}
    assert len({first.digest, *(cut(other)[0].digest for other in (resolved, later, fewer))}) == 4


@pytest.mark.parametrize("body", [b"", b"\xff", b"[]", b'{"version": "4"}', b'{"version": "3", "alerts": []}', b"[" * 100_000])
def test_what_is_no_message(body):
    with pytest.raises(BadMessage):
        parcels(body)


def test_nothing_in_it():
    assert cut(message()) == []


def test_what_was_left_out_is_news():
    """People are told of it, so such a message is neither a repeat of a whole one nor nothing."""
    whole, cut_short = (cut(message("gpu-1", **more)) for more in ({}, {"truncatedAlerts": 3}))
    assert whole[0].digest != cut_short[0].digest
    [parcel] = cut(message(truncatedAlerts=3))
    assert (parcel.node, parcel.firing, parse_message(parcel.body).truncated) == (None, True, 3)


@pytest.mark.parametrize(
    ("statuses", "firing"),
    [
        (["firing"], {"gpu-1": True}),
        (["resolved"], {"gpu-1": False}),
        (["resolved", "firing"], {"gpu-1": True}),
        (["resolved", "?"], {"gpu-1": False, None: True}),
    ],
)
def test_each_alert_s_own_status_counts(statuses, firing):
    """Never the message's; what cannot be judged is not taken for good news."""
    for whole in ("firing", "resolved"):
        content = message(*["gpu-1"] * len(statuses), status=whole)
        for alert, status in zip(content["alerts"], statuses):
            alert["status"] = status
        assert {parcel.node: parcel.firing for parcel in cut(content)} == firing


def test_patient_is_what_has_nothing_urgent_in_it():
    """A node's parcel waits for others only if each of its alerts does; one that cannot be judged, or has ended, does not."""

    def patient(*alerts):
        [parcel] = parcels(json.dumps({"version": "4", "alerts": list(alerts)}).encode(), is_patient=lambda alert: alert.xid == 74)
        return parcel.patient

    link, lost = (message("gpu-1")["alerts"][0] | {"fingerprint": f * 16} for f in "ab")
    link, lost = ({**one, "annotations": {"xid": xid}} for one, xid in ((link, "74"), (lost, "79")))
    assert (patient(link), patient(lost), patient(link, lost), patient({**link, "status": "resolved"})) == (True, False, False, False)


@given(st.binary(max_size=200) | bodies())
@example(b'{"version": "4", "alerts": [' + b"9" * 5000 + b"]}")
@example(b'{"version": "4", "alerts": [], "truncatedAlerts": ' + b"9" * 4300 + b"}")
def test_any_bytes_are_a_message_or_none(body):
    """Never another exception: the endpoint would answer 500, and Alertmanager post it for ever."""
    try:
        found = parcels(body)
    except BadMessage:
        return
    assert all(re.fullmatch("[0-9a-f]{64}", parcel.digest) for parcel in found)


def contents(alerts):
    return sorted(json.dumps(alert, sort_keys=True) for alert in alerts)


@given(messages())
@settings(max_examples=200)
def test_every_alert_ends_in_exactly_one_parcel(content):
    found = cut(content)
    assert len({parcel.node for parcel in found}) == len(found)
    parts = [parse_message(parcel.body) for parcel in found]
    assert contents(alert for part in parts for alert in part.alerts) == contents(content["alerts"])
    for parcel, part in zip(found, parts):
        assert {judged.alert.node if judged.alert else None for judged in judge_all(part)} <= {parcel.node}
    whole = parse_message(json.dumps(content).encode())
    assert sum(part.truncated for part in parts) == whole.truncated


@given(messages(), st.randoms(use_true_random=False))
def test_the_order_of_alerts_and_keys_makes_no_other_delivery(content, random):
    """What was left out included: it belongs to the same part each time."""
    other = turned(content)
    random.shuffle(other["alerts"])
    assert {parcel.node: parcel.digest for parcel in cut(content)} == {parcel.node: parcel.digest for parcel in cut(other)}


BELIEVED = {
    "fingerprint": r"[0-9a-f]{8,64}",
    "status": "firing|resolved",
    "starts_at": r"2[01]\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z",
    "node": r"[A-Za-z0-9._-]{1,253}",
    "name": r"[A-Za-z0-9_.-]{1,128}|None",
    "gpu_uuid": r"(GPU|MIG)-[0-9a-fA-F-]{36}|None",
    "pci_bus_id": r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]|None",
    "gpu_index": r"\d{1,4}|None",
    "gi": r"\d{1,4}|None",
    "xid": r"\d{1,4}|None",
    "hint": "True|False",
    **dict.fromkeys(GROUP_KINDS, r"[A-Za-z0-9._:/-]{1,128}"),
}


@given(messages())
@settings(max_examples=200)
def test_what_is_believed_has_the_shape_of_what_it_names(content):
    """S1"""
    for judged in judge_all(parse_message(json.dumps(content).encode())):
        record = judged.alert.record() if judged.alert else {"groups": {}}
        record.update(record.pop("groups"))
        assert all(re.fullmatch(BELIEVED[name], str(value), re.ASCII) for name, value in record.items())


def from_below(frames, call):
    return call() if frames == 0 else from_below(frames - 1, call)


@pytest.mark.parametrize("nested", [MAX_DEPTH - 2, MAX_DEPTH - 1, 500, 900, 100_000])
def test_depth_is_judged_alike_by_every_caller(nested):
    """The run's stack is deeper than the event source's: what one of them takes, the other has to read."""
    body = b'{"version": "4", "alerts": [' + b"[" * nested + b"]" * nested + b"]}"
    for frames in (0, sys.getrecursionlimit() // 2):
        if nested + 2 <= MAX_DEPTH:
            assert len(from_below(frames, lambda: parcels(body))) == 1
        else:
            with pytest.raises(BadMessage):
                from_below(frames, lambda: parcels(body))
