# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import itertools

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.keys import CLOSED_STATES, ENDED_OPEN_STATES
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.outcome import end
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.stages import LOOP, OUTCOMES

QUARANTINE = {"action": "quarantine_gpu", "reasons": ["row remapping failed"]}
NONE = {"action": "none", "reasons": ["Xid 13 is the application's"]}
HOLD = {"action": "hold", "reasons": ["three programs failed"]}
KILL = {"action": "kill", "reasons": ["a process"]}
MPS = {"action": "terminate_client", "gpu_uuid": "GPU-1", "suspects": [{"pid": 7, "name": "train"}, {"pid": 8}], "reasons": ["one client"]}
MIG = {"action": "close_instance", "gpu_uuid": "GPU-1", "gi": 3, "ci": None, "reasons": ["one instance"]}
NEW = {"action": "invent_something", "reasons": ["a later policy"]}


def stages(**differing):
    """All stages ended well but those given; a stage given as None was never begun."""
    ended = {name: {"state": "finished", "outcome": "ok"} for name in LOOP}
    for name, stage in differing.items():
        if stage is None:
            del ended[name]
        else:
            ended[name] = {"state": "finished", **stage}
    return ended


def failed(kind=None, reason=None):
    return {"outcome": "failed", "error_kind": kind, "reason": reason}


STANDS = {"changed": True, "standing": True}
LATE = {**STANDS, "overdue": True}
KEPT = {"outcome": "ok", "data": {"kept": [{"namespace": "ml", "name": "train-0", "why": "it has no controller"}]}}
STARTED = {"state": "started", "outcome": None}


@pytest.mark.parametrize(
    "verdict, ended, facts, state, words",
    [
        pytest.param(QUARANTINE, stages(), STANDS, "contained", "row remapping failed", id="all went well"),
        pytest.param(
            KILL, stages(taint={"outcome": "skipped"}, evict={"outcome": "skipped"}), {}, "contained", "a process", id="process scope"
        ),
        pytest.param(
            MPS, stages(), {}, "held_for_human", "terminate an MPS client on GPU-1: 7 (train), 8. one client", id="S10 by hand: MPS"
        ),
        pytest.param(MIG, stages(), {}, "held_for_human", "close GPU instance 3 of GPU-1. one instance", id="S10 by hand: MIG"),
        pytest.param(NEW, stages(), {}, "held_for_human", "invent_something", id="what this version does not know"),
        pytest.param(MPS, stages(isolate={"outcome": "due"}), {}, "held_for_human", "MPS client", id="by hand, in every mode"),
        pytest.param(NONE, stages(), {}, "no_action", "Xid 13", id="nothing to do"),
        pytest.param(NONE, stages(), {"changed": True}, "fence_lifted", "Xid 13", id="fence lifted"),
        pytest.param(NONE, stages(), STANDS, "held_for_human", "a change of ours stands", id="fence not lifted"),
        pytest.param(HOLD, stages(), {}, "held_for_human", "three programs failed", id="S14 hold"),
        pytest.param(None, stages(diagnose=failed()), {}, "held_for_human", "no verdict", id="S12 no verdict"),
        pytest.param(None, stages(diagnose={"outcome": "timed_out"}), LATE, "quarantined_overdue", "no verdict", id="S12 fence stays"),
        pytest.param(None, {}, {}, "held_for_human", "no verdict", id="S16 nothing at all"),
        pytest.param(None, stages(diagnose=failed()), STANDS, "held_for_human", "no verdict", id="S12 fence stays, in time"),
        pytest.param(None, {}, {"overdue": True}, "held_for_human", "no verdict", id="S12 nothing stands, too late"),
        pytest.param(
            QUARANTINE, stages(isolate={"outcome": "due"}, taint={"outcome": "due"}), {}, "no_action", "isolate, taint", id="S4 observe"
        ),
        pytest.param(QUARANTINE, stages(isolate={"outcome": "due"}), STANDS, "held_for_human", "forbidden by the mode", id="S4 fence"),
        pytest.param(QUARANTINE, stages(evict={"outcome": "due"}), STANDS, "held_for_human", "evict", id="S4 fence, evict due"),
        pytest.param(
            QUARANTINE,
            stages(isolate=failed("not_proven", "pid 7")),
            STANDS,
            "held_for_human",
            "isolate failed: pid 7",
            id="S10 not proven",
        ),
        pytest.param(QUARANTINE, stages(taint=failed("breaker_tripped")), {}, "held_for_human", "breaker_tripped", id="S8 breaker"),
        pytest.param(
            QUARANTINE, stages(taint=failed("human_override")), STANDS, "cancelled_by_human", "removed by somebody", id="S6 untainted"
        ),
        pytest.param(QUARANTINE, stages(evict=failed("node_recreated")), STANDS, "cancelled_by_human", "recreated", id="S6 recreated"),
        pytest.param(QUARANTINE, stages(taint=failed("node_gone")), {}, "cancelled_by_human", "taken out", id="S6 node gone"),
        pytest.param(None, stages(diagnose=failed("node_recreated")), {}, "cancelled_by_human", "recreated", id="S6 before the verdict"),
        pytest.param(QUARANTINE, stages(taint=failed("not_managed")), {}, "no_action", "opted out", id="S4 opted out"),
        pytest.param(
            QUARANTINE,
            stages(evict=failed("evict_incomplete", "1 pod")),
            STANDS,
            "quarantined_overdue",
            "1 pod",
            id="a pod that never ends",
        ),
        pytest.param(QUARANTINE, stages(evict=KEPT), STANDS, "held_for_human", "end these pods: ml/train-0", id="S11 pods stay"),
        pytest.param(QUARANTINE, stages(evict=KEPT, verify=failed()), STANDS, "held_for_human", "ml/train-0", id="S11 and hold the GPU"),
        pytest.param(QUARANTINE, stages(verify=KEPT), STANDS, "held_for_human", "ml/train-0", id="S11 a pod came since that stays"),
        pytest.param(
            QUARANTINE,
            stages(evict=KEPT, verify={"outcome": "ok", "data": {"kept": []}}),
            STANDS,
            "contained",
            "row",
            id="S11 and left since",
        ),
        pytest.param(
            QUARANTINE,
            stages(evict=KEPT, verify={**KEPT, **failed("evict_incomplete", "1 pod")}),
            STANDS,
            "quarantined_overdue",
            "1 pod",
            id="another came back",
        ),
        pytest.param(QUARANTINE, stages(verify=failed()), STANDS, "quarantined_overdue", "verify failed", id="a holder is left"),
        pytest.param(
            QUARANTINE, stages(verify=failed(), taint={"outcome": "skipped"}), {}, "quarantined_overdue", "verify", id="bare host"
        ),
        pytest.param(
            QUARANTINE, stages(isolate=failed(), verify=failed()), {}, "held_for_human", "isolate failed", id="bare, nothing done"
        ),
        pytest.param(
            QUARANTINE,
            stages(evict={"outcome": "timed_out"}, verify=None),
            LATE,
            "quarantined_overdue",
            "evict ran out",
            id="S16 time is over",
        ),
        pytest.param(QUARANTINE, stages(evict=STARTED, verify=None), LATE, "quarantined_overdue", "evict ran out", id="killed, overdue"),
        pytest.param(
            QUARANTINE, stages(evict=STARTED, verify=None), STANDS, "held_for_human", "has not finished", id="killed, closed early"
        ),
        pytest.param(
            QUARANTINE, stages(isolate=None, taint=None, evict=None, verify=None), {"overdue": True}, "held_for_human", "verify", id="never"
        ),
        pytest.param(QUARANTINE, stages(verify={"outcome": "skipped"}), STANDS, "held_for_human", "nothing was proven", id="not verified"),
    ],
)
def test_end_states(verdict, ended, facts, state, words):
    found = end(verdict, ended, **facts)
    assert found.state == state
    assert words in found.reason


def test_every_incident_ends_in_a_named_state():
    """S16: whatever the stages say; and what stands is never left in a closed state, unless a human took it."""
    verdicts = [None, QUARANTINE, NONE, HOLD, KILL, MPS, MIG, NEW, {}]
    for verdict, one, other, standing, overdue in itertools.product(verdicts, OUTCOMES, OUTCOMES, (True, False), (True, False)):
        ended = stages(isolate={"outcome": one}, verify={"outcome": other})
        state = end(verdict, ended, changed=standing, standing=standing, overdue=overdue).state
        assert state in ENDED_OPEN_STATES | CLOSED_STATES - {"released", "cancelled_by_human"}
        assert not (standing and state in CLOSED_STATES)
