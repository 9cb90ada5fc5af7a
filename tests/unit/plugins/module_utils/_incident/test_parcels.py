# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json

import pytest
from alerts import recorded, rewritten
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.alerts import judge_all, parse_message
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.errors import BadMessage
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.parcels import parcels
from ledgers import NOON


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
