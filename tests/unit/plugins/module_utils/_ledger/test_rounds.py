# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which episodes an incident that has ended stands for, and what of it outlives another round."""

from __future__ import annotations

from datetime import timedelta

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.requests import from_group
from ledgers import GPU, NOON, OTHER_GPU, alert, by_hand, diagnosed, opened, verdict, wanted

TAINT = "node/gpu-1/taint/gpu.unhealthy:NoSchedule"
LATER = NOON + timedelta(hours=1)
SILENT = {"gpu_uuid": GPU, "domain": "unknown", "action": "hold", "certainty": "none", "reasons": ["The node does not answer."]}
WELL = {"gpu_uuid": GPU, "domain": "none", "scope": "gpu", "action": "none", "repair": "none", "certainty": "certain", "reasons": ["well"]}


def tainted(ledger, incident_id):
    ledger.applied(ledger.intend(incident_id, TAINT, None, "x").id, "x")


def owners(ledger):
    return ledger.open_change(TAINT).owners


def contained(ledger, want, **more):
    """An incident whose quarantine stands and was proven."""
    incident_id = opened(ledger, want)
    diagnosed(ledger, incident_id, repair="reset_gpu", certainty="certain", **more)
    tainted(ledger, incident_id)
    for stage in ("isolate", "taint", "evict", "verify"):
        ledger.finish_stage(incident_id, stage, "ok", {"holders": []})
    assert ledger.close_incident(incident_id)[1]["state"] == "contained"
    return incident_id


# Held before anybody looked


def nobody_looked(ledger, incident_id):
    ledger.close_incident(incident_id, "held_for_human", "2 nodes are silent at once")


def silent(ledger, incident_id):
    ledger.finish_stage(incident_id, "diagnose", "ok", {"verdict": SILENT})
    ledger.close_incident(incident_id)


def no_verdict(ledger, incident_id):
    ledger.finish_stage(incident_id, "diagnose", "failed", reason="a task failed", error_kind="error")
    ledger.close_incident(incident_id)


def silent_before_it_was_isolated(ledger, incident_id):
    diagnosed(ledger, incident_id)
    ledger.finish_stage(incident_id, "isolate", "failed", reason="the node does not answer", error_kind="node_silent")
    ledger.close_incident(incident_id)


def pods_kept_on_the_alerts_word(ledger, incident_id):
    evidence = [{"source": "alert", "fact": "The alert reports Xid 48."}]
    ledger.finish_stage(incident_id, "diagnose", "ok", {"verdict": verdict(certainty="certain", evidence=evidence)})
    tainted(ledger, incident_id)
    for stage in ("isolate", "taint", "verify"):
        ledger.finish_stage(incident_id, stage, "ok")
    ledger.finish_stage(incident_id, "evict", "ok", {"kept": [{"namespace": "ml", "name": "train-0"}]})
    ledger.close_incident(incident_id)


UNSEEN = [pods_kept_on_the_alerts_word, nobody_looked, silent, no_verdict, silent_before_it_was_isolated]


@pytest.mark.parametrize("hold", UNSEEN)
@pytest.mark.parametrize(
    "first, again",
    [
        pytest.param(wanted(alert(gpu_uuid=GPU)), wanted(alert(starts=LATER, gpu_uuid=GPU), received=LATER), id="the next episode"),
        pytest.param(wanted(alert(gpu_uuid=GPU)), by_hand(GPU), id="an operator, after an alert"),
        pytest.param(by_hand(GPU), by_hand(GPU), id="an operator, again"),
        pytest.param(by_hand(), by_hand(now=LATER), id="an operator, the whole node"),
    ],
)
def test_what_nobody_saw_is_diagnosed_with_the_next_episode(ledger, clock, hold, first, again):
    """S12: it must not swallow what comes after it; a new round has a budget of its own."""
    incident_id = opened(ledger, first)
    hold(ledger, incident_id)
    assert ledger.incident(incident_id)["state"] == "held_for_human"
    clock.on(3600)
    record = ledger.open_incident(again).record
    if again.gpu == "-" != ledger.incident(incident_id)["gpu"]:
        incident_id = record["id"]  # a verdict has named its GPU, so the whole node is looked at by another
    found = (record["id"], record["state"], record["resume"], list(record["stages"]), record["seconds_left"])
    assert found == (incident_id, "running", "", ["detect"], 720)
    assert record["verdict"] is None or record["verdict"]["action"] == "hold"
    assert not ledger.start_stage(record["id"], "diagnose")["skip"]


def test_the_next_episode_is_the_evidence_of_its_round(ledger, clock):
    """S3: the alert of before the node's reboot would count no more."""
    incident_id = opened(ledger, wanted(alert(gpu_uuid=GPU)))
    nobody_looked(ledger, incident_id)
    clock.on(3600)
    record = ledger.open_incident(wanted(alert(starts=LATER, gpu_uuid=GPU, xid=79), received=clock())).record
    assert (record["id"], record["alert"]["xid"], record["alert"]["starts_at"]) == (incident_id, 79, record["starts_at"])
    assert record["starts_at"] == record["received_at"] == "2026-11-29T13:00:00.000Z"
    ledger.close_incident(incident_id, "held_for_human")
    assert ledger.open_incident(by_hand(GPU)).record["alert"] == record["alert"], "an operator brings no other"


@pytest.mark.parametrize("hold", UNSEEN)
def test_the_same_episode_again_waits_for_the_human_who_was_told(ledger, clock, hold):
    """S16: one notification, however often the message is delivered."""
    incident_id = opened(ledger, wanted(alert(gpu_uuid=GPU)))
    hold(ledger, incident_id)
    clock.on(300)
    record = ledger.open_incident(wanted(alert(gpu_uuid=GPU), received=clock())).record
    assert (record["id"], record["resume"], record["round"]) == (incident_id, "verify", 1)
    assert ledger.overview()["due_again"] == [], "nor does reconcile repeat it"


def test_what_was_seen_and_held_waits_for_its_human(ledger):
    incident_id = opened(ledger, wanted(alert(gpu_uuid=GPU)))
    diagnosed(ledger, incident_id, action="hold", certainty="likely")
    ledger.close_incident(incident_id)
    for again in (by_hand(GPU), wanted(alert(starts=LATER, gpu_uuid=GPU), received=LATER)):
        assert ledger.open_incident(again).record["resume"] == "verify"


def test_other_silent_nodes_are_another_group(ledger):
    """S12: told of again, with their names."""

    def group(*nodes):
        return ledger.open_incident(from_group("controller", "c1", nodes, "unknown", NOON)).record

    first = group("gpu-1", "gpu-2")
    ledger.close_incident(first["id"])
    assert group("gpu-2", "gpu-1")["state"] == "held_for_human"
    again = group("gpu-3", "gpu-4")
    assert (again["id"], again["state"], again["nodes"]) == (first["id"], "running", ["gpu-3", "gpu-4"])
    ledger.close_incident(first["id"])
    assert [one["topic"] for one in ledger.claim_notifications()] == ["held_for_human"] * 2


# Groups


def test_a_group_that_was_left_open_is_ended_by_whoever_takes_it_up(ledger):
    """S16: it has no node whose stages would end it."""
    group = opened(ledger, from_group("controller", "c1", ["gpu-1", "gpu-2"], "unknown", NOON))
    assert ledger.overview()["unfinished"] == [group]
    record = ledger.reopen(group).record
    assert (record["state"], record["open"]) == ("held_for_human", True)
    assert record["reason"] == "2 nodes are silent at once (gpu-1, gpu-2): look at the controller first"
    assert ledger.overview()["unfinished"] == []
    assert ledger.reopen(group, anew=True).record["state"] == "held_for_human"
    assert ledger.close_incident(group)[0] is False


# The whole node


WHOLE = [
    pytest.param(by_hand(), by_hand(now=LATER), id="an operator"),
    pytest.param(wanted(alert()), wanted(alert(), received=LATER), id="an alert that goes on"),
    pytest.param(wanted(alert()), wanted(alert(starts=LATER), received=LATER), id="the alert's next episode"),
    pytest.param(by_hand("3"), by_hand("3", now=LATER), id="an index, which may be another GPU by now"),
    pytest.param(wanted(alert(gpu_index=3)), wanted(alert(starts=LATER, gpu_index=3), received=LATER), id="an alert's index"),
]


@pytest.mark.parametrize("first, again", WHOLE)
def test_a_newly_sick_gpu_is_looked_for(ledger, clock, first, again):
    """The contained incident keeps what it has and is verified; the node is diagnosed anew, and its new fault has an incident of its own."""
    old = contained(ledger, first)
    before = ledger.incident(old)
    clock.on(3600)
    opening = ledger.open_incident(again)
    new = opening.record
    assert (opening.how, new["state"], new["gpu"], new["seconds_left"] > 600) == ("opened", "running", again.gpu, True)
    assert [(one["id"], one["resume"], one["found"]) for one in opening.beside] == [(old, "verify", True)]
    record = diagnosed(ledger, new["id"], gpu_uuid=OTHER_GPU)
    tainted(ledger, new["id"])
    assert (record["gpu"], record["state"]) == (OTHER_GPU, "running")
    assert {**ledger.incident(old), "seconds_left": 0} == {**before, "seconds_left": 0}
    assert owners(ledger) == sorted([old, new["id"]])


@pytest.mark.parametrize("first, again", WHOLE)
def test_the_same_gpu_again_stays_with_its_incident(ledger, clock, first, again):
    old = contained(ledger, first)
    clock.on(3600)
    new = ledger.open_incident(again).record["id"]
    merged = diagnosed(ledger, new)["verdict"]
    assert (merged["merged_into"], merged.get("further", [])) == (old, [GPU] if again.gpu == "-" else [])
    ledger.finish_stage(new, "verify", "skipped")
    assert ledger.close_incident(new)[1]["state"] == "no_action"
    assert (ledger.incident(old)["state"], owners(ledger)) == ("contained", [old])
    repeat = ledger.open_incident(again)
    assert repeat.how != "ignored", "the alert belongs to the incident that stands for its fault"


def test_every_incident_of_the_node_that_has_ended_is_looked_at(ledger):
    """Also those that were opened by name."""
    ids = [contained(ledger, by_hand(gpu), gpu_uuid=gpu) for gpu in (GPU, OTHER_GPU)]
    contained(ledger, by_hand(GPU, node="gpu-2", uid="uid-2"))
    held = opened(ledger, by_hand("7"))
    nobody_looked(ledger, held)
    assert {one["id"] for one in ledger.open_incident(by_hand()).beside} == set(ids), "what nobody saw is found by the diagnosis"


def test_a_whole_run_that_was_killed_is_resumed(ledger):
    contained(ledger, by_hand())
    second = ledger.open_incident(by_hand()).record["id"]
    opening = ledger.open_incident(by_hand())
    assert (opening.how, opening.record["id"], len(opening.beside)) == ("found", second, 1)
    diagnosed(ledger, second, gpu_uuid=OTHER_GPU)
    assert ledger.open_incident(by_hand()).record["id"] == second


def test_a_merged_incident_waits_for_the_other_gpus(ledger):
    """Killed before their incidents were opened, it is taken up by reconcile; ended, it would be forgotten with them."""
    contained(ledger, by_hand())
    second = ledger.open_incident(by_hand()).record["id"]
    record = diagnosed(ledger, second, further=[OTHER_GPU])
    assert (record["state"], record["verdict"]["action"], record["verdict"]["further"]) == ("running", "none", [GPU, OTHER_GPU])
    ledger.finish_stage(second, "verify", "skipped")
    assert ledger.close_incident(second)[1]["state"] == "no_action"


def test_an_opted_out_node_is_left_alone_as_a_whole(ledger):
    """S4"""
    old = contained(ledger, by_hand())
    opening = ledger.open_incident(by_hand(managed=False))
    assert (opening.record["state"], [one["state"] for one in opening.beside]) == ("no_action", ["held_for_human"])
    assert ledger.incident(old)["reason"] == "the node is opted out"


# What stands outlives another round


@pytest.mark.parametrize(
    "new",
    [WELL, {**WELL, "action": "observe"}, SILENT, {**verdict(), "action": "kill", "domain": "application"}, None],
    ids=["none", "observe", "silence", "kill", "no verdict"],
)
def test_another_round_lifts_no_quarantine(ledger, new):
    """S17: only a release, after its checks, which go by the verdict that asked for it and by the evidence of then."""
    evidence = {"info": {"node": {"boot_id": "then"}}}
    incident_id = opened(ledger, by_hand(GPU))
    first = {**verdict(), "repair": "reset_gpu", "certainty": "certain"}
    ledger.finish_stage(incident_id, "diagnose", "ok", {"verdict": first, "evidence": evidence})
    tainted(ledger, incident_id)
    for stage in ("isolate", "taint", "evict", "verify"):
        ledger.finish_stage(incident_id, stage, "ok")
    ledger.close_incident(incident_id)

    for _again in range(2):
        assert ledger.reopen(incident_id, anew=True).record["state"] == "running"
        fresh = {"info": {"node": {"boot_id": "now"}}}
        end = ("ok", {"verdict": new, "evidence": fresh}) if new else ("failed", {})
        record = ledger.finish_stage(incident_id, "diagnose", *end)[1]
        assert (record["verdict"]["action"], record["verdict"]["repair"]) == ("hold", "reset_gpu")
        assert (record["gpu"], record["domain"], record["scope"]) == (GPU, "memory", "gpu")
        data = record["stages"]["diagnose"]["data"]
        if new:
            assert (data["evidence"], data["anew"]) == (evidence, {"verdict": new, "evidence": fresh})
        state, reason = (ledger.close_incident(incident_id)[1][name] for name in ("state", "reason"))
        assert state == "held_for_human"
        assert "release.yml" in reason and (not new or new["reasons"][0] in reason)
        assert ledger.story(incident_id)["next_command"].startswith("ansible-playbook gpuops.remediation.release")
        assert owners(ledger) == [incident_id]


def test_another_round_may_confirm_the_quarantine(ledger):
    incident_id = contained(ledger, by_hand(GPU))
    ledger.reopen(incident_id, anew=True)
    assert diagnosed(ledger, incident_id, repair="replace")["verdict"] == {**verdict(), "repair": "replace"}


def test_a_quarantine_is_not_handed_to_another_incident(ledger):
    """S17"""
    first = contained(ledger, by_hand(GPU))
    other = opened(ledger, wanted(alert(gpu_uuid=GPU, fingerprint="bbbbbbbb")))
    diagnosed(ledger, other, domain="bus")
    ledger.reopen(first, anew=True)
    record = diagnosed(ledger, first, domain="bus")
    assert record["verdict"]["action"] == "hold"
    assert other in record["verdict"]["reasons"][0]
    assert owners(ledger) == [first]


def test_a_mere_fence_is_lifted(ledger):
    """S12: it was never confirmed."""
    incident_id = opened(ledger, wanted(alert(gpu_uuid=GPU)))
    tainted(ledger, incident_id)
    nobody_looked(ledger, incident_id)
    ledger.open_incident(by_hand(GPU))
    record = ledger.finish_stage(incident_id, "diagnose", "ok", {"verdict": WELL})[1]
    assert record["verdict"] == WELL


# Repeats of what was contained


@pytest.mark.parametrize(
    "outcome, kind, data, state",
    [
        ("failed", "node_silent", {}, "contained"),
        ("failed", "api_unavailable", {}, "contained"),
        ("failed", "error", {}, "contained"),
        ("timed_out", None, {}, "contained"),
        pytest.param("failed", "still_held", {"left": []}, "contained", id="nobody could say"),
        pytest.param("failed", "still_held", {"left": [{"pid": 7}]}, "quarantined_overdue", id="a holder"),
        pytest.param("failed", "evict_incomplete", {"left": [{"name": "train-0"}]}, "quarantined_overdue", id="a pod"),
        pytest.param("failed", "incident_ended", {}, "quarantined_overdue", id="the taint would have to be written"),
        ("failed", "human_override", {}, "cancelled_by_human"),
        ("failed", "node_recreated", {}, "cancelled_by_human"),
    ],
)
def test_what_was_proven_stays_until_the_contrary_is_seen(ledger, outcome, kind, data, state):
    """A node that is off while it waits for its repair proves nothing against its containment; people are told, once."""
    incident_id = contained(ledger, by_hand(GPU))
    why = ledger.incident(incident_id)["reason"]
    for _repeat in range(2):
        ledger.start_stage(incident_id, "verify")
        ledger.finish_stage(incident_id, "verify", outcome, data, "it is off", kind)
        record = ledger.close_incident(incident_id)[1]
        assert record["state"] == state
    assert "it is off" in record["reason"]
    told = [one["topic"] for one in ledger.claim_notifications()]
    assert told == ["contained", state]
    if state != "contained":
        return
    assert why in record["reason"]
    assert record["stages"]["verify"]["data"]["proven"]["data"] == {"holders": []}
    ledger.start_stage(incident_id, "verify")
    ledger.finish_stage(incident_id, "verify", "ok", {"holders": []})
    assert ledger.close_incident(incident_id)[1]["reason"] == why
