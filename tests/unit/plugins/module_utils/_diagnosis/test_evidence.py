# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from datetime import timezone

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._diagnosis.evidence import EvidenceInvalid, is_hang, read_evidence
from ansible_collections.gpuops.remediation.plugins.module_utils._diagnosis.verdict import diagnose, diagnose_all
from ansible_collections.gpuops.remediation.plugins.module_utils._xid.policy import load_policy
from gpu_evidence import BOOT_ID, BOOT_TIME, NOW, POLICY_FILE, alert, at, evidence, gpu, process, uuid, xid
from hypothesis import given, settings
from hypothesis import strategies as st

POLICY = load_policy(str(POLICY_FILE))


@pytest.mark.parametrize(
    "raw, words",
    [
        ([], "evidence has to be a dictionary, not list"),
        ({"node": "gpu-1"}, "node has to be a dictionary, not str"),
        ({"info": "x"}, "info has to be a dictionary, not str"),
        ({"info": {"gpus": {}}}, "info.gpus has to be a list, not dict"),
        ({"info": {"gpus": ["x"]}}, "info.gpus[0] has to be a dictionary, not str"),
        ({"info": {"gpus": [{"ecc": 3}]}}, "info.gpus[0].ecc has to be a dictionary, not int"),
        ({"info": {"xids": [None, 3]}}, "info.xids[1] has to be a dictionary, not int"),
        ({"alert": 3}, "alert has to be a dictionary, not int"),
        ({"missing": [3]}, "missing[0] has to be a dictionary, not int"),
    ],
)
def test_what_has_the_wrong_shape_is_named(raw, words):
    with pytest.raises(EvidenceInvalid) as error:
        read_evidence(raw)
    assert str(error.value) == words
    assert error.value.failure()["error_kind"] == "evidence_invalid"


def test_the_node_knows_its_boot_better_than_the_fleet():
    read = read_evidence(evidence(node={"name": "gpu-1", "boot_id": "old", "collected_at": at(0)}))
    assert (read.boot_id, read.boot_time, read.collected_at) == (BOOT_ID, BOOT_TIME, NOW)
    read = read_evidence({"node": {"boot_id": "old", "collected_at": at(5)}, "info": None})
    assert (read.silent, read.boot_id, read.collected_at.isoformat()) == (True, "old", at(5))


def test_labels_are_texts():
    read = read_evidence({"alert": {"xid": "79", "gpu": "3", "starts_at": "2026-11-29T20:00:00Z", "alertname": "A"}}).alert
    assert (read.code, read.target.index, read.name) == (79, 3, "A")
    assert read.starts_at.tzinfo == timezone.utc
    unusable = read_evidence({"alert": {"xid": "{{ 79 }}", "gpu": True, "starts_at": "soon"}}).alert
    assert (unusable.code, unusable.target.named, unusable.starts_at, unusable.name) == (None, False, None, "without a name")


def test_missing_and_hung_sources():
    case = evidence(missing=[{"source": "prometheus", "why": "timed out"}, {}])
    case["info"]["missing"] = [{"source": "kernel_log", "why": "EACCES"}]
    case["info"]["abandoned"] = [{"source": "nvml", "pid": 1, "since": at(0)}]
    read = read_evidence(case)
    assert read.missing == (("prometheus", "timed out"), ("?", "no reason given"), ("kernel_log", "EACCES"))
    assert (read.hung, read.nvml_hung, read.nvml_missing, read.has_kernel_log) == (("nvml", "prometheus"), True, False, False)


@pytest.mark.parametrize(
    "words, hang",
    [
        ("did not answer within 20 s", True),
        ("an earlier reader, pid 7, hangs since", True),
        ("No Permission", False),
        ("Unknown Error", False),
    ],
)
def test_is_hang(words, hang):
    assert is_hang(words) == hang


def test_half_a_history_is_left_out():
    read = read_evidence({"history": [{"gpu_uuid": uuid(0), "program": "a"}, {"gpu_uuid": uuid(0), "program": "b", "time": at(1)}]})
    assert [failure.program for failure in read.history] == ["b"]


def test_processes_without_a_pid_are_left_out():
    read = read_evidence(evidence(gpus=[gpu(0, processes=[{"pid": None}, process(7)])]))
    assert [one.pid for one in read.gpus[0].processes] == [7]


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=12)
    | st.sampled_from([at(1), uuid(0), "nvml", "fatal", "79"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "uuid",
                    "pci_bus_id",
                    "index",
                    "pid",
                    "time",
                    "source",
                    "why",
                    "code",
                    "ecc",
                    "gi",
                    "mig",
                    "pending",
                    "errors",
                    "processes",
                    "instances",
                ]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
)


@given(
    st.sampled_from(["gpus", "xids", "node", "missing", "abandoned", "kernel_log"]), st.lists(JSON, max_size=2) | JSON, st.integers(1, 200)
)
def test_any_json_is_judged_or_refused_in_words(part, value, code):
    case = evidence(xid(code, pid=7), alert=alert(code))
    case["info"][part] = value
    try:
        verdict, verdicts = diagnose(case, POLICY), diagnose_all(case, POLICY)
    except EvidenceInvalid:
        return
    assert all(one["reasons"] for one in [verdict, *verdicts])


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 173), st.integers(0, 3), st.integers(1, 50)), max_size=8), st.randoms())
def test_the_order_of_the_lines_does_not_matter(events, chance):
    """What is decided depends on what happened and when, not on the order in which it was read."""

    def decision(lines):
        return [
            (one["gpu_uuid"], one["domain"], one["action"], one["repair"], one["xids"])
            for one in diagnose_all(evidence(*lines, target=None), POLICY)
        ]

    lines = [xid(code, index=index, pid=code, name=f"p{code}", seconds=seconds) for code, index, seconds in events]
    first = decision(lines)
    chance.shuffle(lines)
    again = decision(lines)
    assert sorted(again, key=str) == sorted(first, key=str)
    assert [one[2:4] for one in again] == [one[2:4] for one in first]
