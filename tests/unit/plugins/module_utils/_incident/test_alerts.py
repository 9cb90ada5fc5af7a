# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json

import pytest
from alerts import recorded
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.alerts import (
    DEFAULT_LABELS,
    MAX_MESSAGE_BYTES,
    BadLabels,
    HeldAlert,
    fingerprint_of,
    judge,
    judge_all,
    label_map,
    normal_pci,
    parse_message,
)
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.errors import BadMessage
from hypothesis import given
from hypothesis import strategies as st

UUID = "GPU-5f0c1a52-6a8d-4f0e-9f0e-3c1d4e8a2b11"
CANARY = "{{ lookup('pipe', 'id') }}"


def raw(labels=None, annotations=None, **more):
    return {
        "status": "firing",
        "labels": {"alertname": "GpuXidFatal", "node": "gpu-1", **(labels or {})},
        "annotations": annotations or {},
        "startsAt": "2026-11-29T20:19:40.555Z",
        "endsAt": "0001-01-01T00:00:00Z",
        "fingerprint": "56483371e3f4f688",
        **more,
    }


def message(*alerts, **more):
    return json.dumps({"version": "4", "status": "firing", "alerts": list(alerts), **more}).encode()


@pytest.mark.parametrize(
    "name, truncated, expected",
    [
        ("firing-single", 0, [("gpu-1", "index:0", 31, "firing")]),
        ("firing-grouped-two-gpus", 0, [("gpu-0", "index:0", 79, "firing"), ("gpu-0", "index:1", 48, "firing")]),
        ("resolved-single", 0, [("gpu-1", "index:0", 31, "resolved")]),
        ("send_resolved-false-partial", 0, [("gpu-0", "index:1", 48, "firing")]),
        ("truncated-max_alerts-1", 1, [("gpu-0", "index:0", 79, "firing")]),
    ],
)
def test_recorded_messages(name, truncated, expected):
    parsed = parse_message(json.dumps(recorded(name)).encode())
    assert parsed.truncated == truncated
    alerts = [judged.alert for judged in judge_all(parsed)]
    assert [(alert.node, alert.gpu, alert.xid, alert.status) for alert in alerts] == expected


@pytest.mark.parametrize(
    "body, words",
    [
        pytest.param(b"", "not JSON", id="empty"),
        pytest.param(b"{", "not JSON", id="cut off"),
        pytest.param(b"\xff\xfe", "UnicodeDecodeError", id="not UTF-8"),
        pytest.param(b"[" * 200_000, "not JSON", id="nested without end"),
        pytest.param(b"[]", "no list 'alerts'", id="a list"),
        pytest.param(b'{"version": "4"}', "no list 'alerts'", id="no alerts"),
        pytest.param(b'{"version": "4", "alerts": {}}', "no list 'alerts'", id="alerts not a list"),
        pytest.param(b'{"version": "3", "alerts": []}', "version 4", id="another version"),
        pytest.param(b" " * (MAX_MESSAGE_BYTES + 1), "not read", id="too large"),
    ],
)
def test_a_message_that_cannot_be_read(body, words):
    with pytest.raises(BadMessage, match=words) as error:
        parse_message(body)
    assert error.value.kind == "bad_message"


@pytest.mark.parametrize(
    "alert, words",
    [
        pytest.param("text", "not an object", id="not an object"),
        pytest.param(raw(status="silenced"), "neither firing nor resolved", id="status"),
        pytest.param(raw(startsAt="yesterday"), "startsAt is not a time", id="startsAt"),
        pytest.param(raw(startsAt=None), "startsAt is not a time", id="no startsAt"),
        pytest.param(raw(startsAt="0001-01-01T00:00:00Z"), "startsAt is not a time", id="Go's zero time"),
        pytest.param(raw(startsAt="9999-12-31T23:59:59Z"), "startsAt is not a time", id="the end of time"),
        pytest.param(raw({"node": ""}), "no label names a node", id="empty node"),
        pytest.param({**raw(), "labels": None}, "no label names a node", id="no labels"),
        pytest.param({**raw(), "labels": ["node"]}, "labels are not an object", id="labels a list"),
        pytest.param(raw({"node": 7}), "labels is not text", id="label a number"),
        pytest.param(raw({"node": CANARY}), "label node is not a node name", id="node a template"),
        pytest.param(raw({"node": "gpu-1\n"}), "label node is not a node name", id="node with a newline"),
        pytest.param(raw({"node": 'gpu-1"; id'}), "label node is not a node name", id="node with a quote"),
        pytest.param(raw({"node": "a" * 254}), "label node is not a node name", id="node too long"),
        pytest.param(raw({"gpu": "0 or 1"}), "label gpu is not the index", id="gpu"),
        pytest.param(raw({"gpu": "٣"}), "label gpu is not the index", id="gpu a digit of another script"),
        pytest.param(raw({"UUID": "GPU-1"}), "label UUID is not the UUID", id="uuid"),
        pytest.param(raw({"pci_bus_id": "19:00"}), "label pci_bus_id is not a PCI", id="pci"),
        pytest.param(raw({"xid": "seventy-nine"}), "label xid is not an Xid", id="xid"),
        pytest.param(raw({}, {"xid": CANARY}), "label xid is not an Xid", id="xid a template in an annotation"),
        pytest.param(raw({"note": "x" * 1_000_000}), "longer than", id="1 MB label"),
        pytest.param(raw({}, {"summary": "x" * 1_000_000}), "longer than", id="1 MB annotation"),
        pytest.param(raw({}, {"summary": {"a": 1}}), "annotations is not text", id="annotation an object"),
    ],
)
def test_a_bad_alert_is_held_with_the_reason(alert, words):
    """S1, S2: the reason names what is wrong and quotes nothing; the good alert beside it goes on."""
    bad, good = judge_all(parse_message(message(alert, raw())))
    assert words in bad.reason and bad.alert is None
    assert "lookup" not in bad.reason and len(bad.reason) < 200
    assert good.alert.node == "gpu-1"


def test_nothing_of_an_alert_but_what_was_matched_leaves():
    """S1: a canary in every free field."""
    alert = judge(raw({"alertname": CANARY, "team": CANARY}, {"summary": CANARY}, generatorURL=CANARY, extra=CANARY), "00000000")
    assert "{{" not in json.dumps(alert.record())
    assert alert.record()["name"] is None


@pytest.mark.parametrize(
    "labels, gpu",
    [
        pytest.param({}, "-", id="node wide"),
        pytest.param({"gpu": "3"}, "index:3", id="index"),
        pytest.param({"gpu": "3", "pci_bus_id": "00000000:19:00.0"}, "pci:0000:19:00.0", id="pci before index"),
        pytest.param({"gpu": "3", "pci_bus_id": "0000:19:00", "UUID": UUID}, UUID, id="uuid before all"),
    ],
)
def test_how_the_gpu_is_named(labels, gpu):
    assert judge(raw(labels), "00000000").gpu == gpu


def test_the_label_map():
    labels = {"node": ["machine"], "xid": ["code"]}
    alert = judge(raw({"machine": "gpu-9", "code": "79"}), "00000000", labels)
    assert (alert.node, alert.xid, alert.gpu) == ("gpu-9", 79, "-")


def test_the_map_of_labels():
    assert label_map(None) == DEFAULT_LABELS
    assert label_map({"node": "machine", "xid": ["a", "b"]}) == {**DEFAULT_LABELS, "node": ["machine"], "xid": ["a", "b"]}
    with pytest.raises(BadLabels, match="has no index; it has node, gpu_uuid"):
        label_map({"index": ["gpu"]})


def test_our_label_comes_before_another_exporters():
    assert judge(raw({"Hostname": "gpu-2"}), "00000000").node == "gpu-1"
    assert judge({**raw(), "labels": {"Hostname": "gpu-2"}}, "00000000").node == "gpu-2"


def test_an_unusable_fingerprint_is_replaced_by_our_own():
    """Nothing lost: two alerts without fingerprints are still two."""
    one, other = raw(fingerprint="x y"), raw({"gpu": "1"}, fingerprint=None)
    assert fingerprint_of(raw()) == "56483371e3f4f688"
    assert fingerprint_of(one) == fingerprint_of(dict(one))
    assert len({fingerprint_of(one), fingerprint_of(other), fingerprint_of("text")}) == 3


@pytest.mark.parametrize(
    "given_, normal",
    [
        ("00000000:19:00.0", "0000:19:00.0"),
        ("0000:AF:00", "0000:af:00.0"),
        ("0001:06:00.0", "0001:06:00.0"),
        ("00010000:06:00.0", "10000:06:00.0"),
    ],
)
def test_pci_addresses_have_one_form(given_, normal):
    assert normal_pci(given_) == normal
    assert normal_pci(normal_pci(given_)) == normal


def test_no_pci_address():
    with pytest.raises(ValueError):
        normal_pci("0000:19")


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=20,
    )
)
def test_whatever_an_alert_is_it_is_usable_or_held(anything):
    """S2: never an exception that would take the other alerts along."""
    try:
        judge(anything, "00000000")
    except HeldAlert as held:
        assert str(held)
