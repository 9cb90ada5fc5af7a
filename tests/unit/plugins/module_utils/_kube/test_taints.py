# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.taints import (
    Node,
    Want,
    parse_node,
    part_of,
    patch_of,
    plan,
    release_want,
    wanted,
)
from hypothesis import given
from hypothesis import strategies as st

OURS = {"key": "gpu.unhealthy", "value": "true", "effect": "NoSchedule"}
SPOT = "gpu.unhealthy:NoSchedule"
THEIRS = {"key": "maintenance", "effect": "NoExecute", "timeAdded": "2026-01-02T03:04:05Z"}
FOREIGN = {"key": "gpu.unhealthy", "value": "rack-work", "effect": "NoSchedule", "timeAdded": "2026-01-02T03:04:05Z"}


def node(*taints, incidents=(), **rest):
    return Node("gpu-1", "u1", "7", tuple(taints), tuple(incidents), **rest)


PRESENT = Want({SPOT: OURS}, {"a": True})


@pytest.mark.parametrize(
    "have, want, taints, incidents",
    [
        pytest.param(node(), PRESENT, [OURS], ["a"], id="first"),
        pytest.param(node(THEIRS), PRESENT, [THEIRS, OURS], ["a"], id="S7: others stay, in their order"),
        pytest.param(node(OURS, incidents=["b"]), PRESENT, [OURS], ["b", "a"], id="a second incident joins"),
        pytest.param(node(OURS, incidents=["a"]), PRESENT, None, None, id="nothing to do"),
        pytest.param(node({**OURS, "timeAdded": "t"}, incidents=["a"]), PRESENT, None, None, id="timeAdded alone is no difference"),
        pytest.param(node(FOREIGN, THEIRS), PRESENT, [OURS, THEIRS], ["a"], id="another value at our spot is replaced in place"),
        pytest.param(
            node({**OURS, "effect": "NoExecute"}), PRESENT, [{**OURS, "effect": "NoExecute"}, OURS], ["a"], id="effects are apart"
        ),
        pytest.param(node(OURS, THEIRS), Want({SPOT: None}), [THEIRS], [], id="absent"),
        pytest.param(node(THEIRS), Want({SPOT: None}), None, None, id="absent, not there"),
        pytest.param(node(OURS, incidents=["a", "b"]), Want({}, {"a": False}), [OURS], ["b"], id="only the annotation shrinks"),
    ],
)
def test_plan(have, want, taints, incidents):
    steps = plan(have, want)
    if taints is None:
        assert steps == []
        return
    after = wanted(have, want)
    assert [dict(taint) for taint in after.taints] == taints
    assert list(after.incidents) == incidents
    assert [(step.action, step.target) for step in steps] == [("patch", "node/gpu-1")]
    assert plan(after, want) == []


TAINTS = st.lists(
    st.fixed_dictionaries(
        {"key": st.sampled_from(["gpu.unhealthy", "a", "b"]), "effect": st.sampled_from(["NoSchedule", "NoExecute"])},
        optional={"value": st.sampled_from(["", "true", "x"]), "timeAdded": st.just("2026-01-02T03:04:05Z")},
    ),
    unique_by=lambda taint: (taint["key"], taint["effect"]),
)


@given(TAINTS, st.booleans())
def test_taint_and_release_give_back_what_was_there(taints, unschedulable):
    """S7, S9: whatever stood on the node, release leaves exactly that."""
    have = node(*taints, unschedulable=unschedulable)
    parts = {"taint/" + SPOT: OURS, "cordon": True}
    changes = {part: (part_of(have, part), value) for part, value in parts.items()}
    during = wanted(have, Want({SPOT: OURS}, {"a": True}, True))
    assert [taint for taint in during.taints if taint["key"] != "gpu.unhealthy"] == [t for t in taints if t["key"] != "gpu.unhealthy"]
    assert wanted(during, release_want(during, "a", changes)) == have


@pytest.mark.parametrize(
    "have, before, taints",
    [
        pytest.param(node(OURS, incidents=["a"]), None, [], id="ours goes"),
        pytest.param(node(OURS, incidents=["a"]), FOREIGN, [FOREIGN], id="S9: what was there before comes back, with its timeAdded"),
        pytest.param(node(FOREIGN, incidents=["a"]), None, [FOREIGN], id="S6: what somebody put in its place stays"),
        pytest.param(node(incidents=["a"]), FOREIGN, [], id="S6: what somebody removed is not put back"),
    ],
)
def test_release(have, before, taints):
    after = wanted(have, release_want(have, "a", {"taint/" + SPOT: (before, OURS)}))
    assert [dict(taint) for taint in after.taints] == taints
    assert after.incidents == ()


@pytest.mark.parametrize("before, now, after", [(False, True, False), (True, True, True), (False, False, False)])
def test_release_of_a_cordon(before, now, after):
    """S6: an admin's cordon which was there before ours stays; one that he lifted is not touched."""
    have = node(unschedulable=now)
    assert wanted(have, release_want(have, "a", {"cordon": (before, True)})).unschedulable is after


def test_patch_names_the_version_and_only_what_differs():
    have = node(THEIRS, incidents=["b"])
    assert patch_of(have, wanted(have, PRESENT)) == {
        "metadata": {"resourceVersion": "7", "uid": "u1", "annotations": {"gpuops.remediation/incidents": '["b", "a"]'}},
        "spec": {"taints": [THEIRS, OURS]},
    }
    alone = node(OURS, incidents=["a"], unschedulable=True)
    assert patch_of(alone, wanted(alone, Want({SPOT: None}, {"a": False}, False))) == {
        "metadata": {"resourceVersion": "7", "uid": "u1", "annotations": {"gpuops.remediation/incidents": None}},
        "spec": {"taints": [], "unschedulable": None},
    }


@pytest.mark.parametrize("text, incidents", [(None, ()), ('["a"]', ("a",)), ("{broken", ()), ('{"a": 1}', ()), ("[1]", ("1",))])
def test_parse(text, incidents):
    raw = {
        "metadata": {"name": "gpu-1", "uid": "u1", "resourceVersion": "7", "labels": {"gpuops.remediation/managed": "false"}},
        "spec": {"taints": [THEIRS], "unschedulable": True},
        "status": {"conditions": [{"type": "DiskPressure", "status": "False"}, {"type": "Ready", "status": "Unknown"}]},
    }
    if text is not None:
        raw["metadata"]["annotations"] = {"gpuops.remediation/incidents": text}
    assert parse_node(json.loads(json.dumps(raw))) == node(THEIRS, incidents=incidents, unschedulable=True, managed=False, ready=False)
