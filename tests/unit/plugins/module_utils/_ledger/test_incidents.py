# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.errors import (
    BreakerTripped,
    ChangesLeft,
    IncidentCancelled,
    IncidentEnded,
    ModeForbids,
    UnknownIncident,
)
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.requests import from_group
from ledgers import GPU, NOON, OTHER_GPU, alert, by_hand, diagnosed, opened, wanted

LATER = NOON + timedelta(minutes=5)


def how(ledger, want, **options):
    opening = ledger.open_incident(want, **options)
    return opening.how, opening.record["id"] if opening.record else opening.reason


def contained(ledger, incident_id):
    for stage in ("isolate", "taint", "evict", "verify"):
        ledger.finish_stage(incident_id, stage, "ok")
    return ledger.close_incident(incident_id)[1]


# At most one open incident a fault


def test_asking_again_finds_it(ledger):
    first = opened(ledger)
    assert how(ledger, by_hand()) == ("found", first)
    assert ledger.incident(first)["found"]


def test_a_repeat_of_an_alert_finds_its_incident(ledger):
    first = opened(ledger, wanted(alert()))
    assert how(ledger, wanted(alert(), received=LATER)) == ("found", first)
    diagnosed(ledger, first)
    assert how(ledger, wanted(alert(), received=LATER)) == ("found", first), "also after the diagnosis gave it another key"


def test_a_new_episode_of_the_alert_finds_the_open_incident(ledger):
    first = opened(ledger, wanted(alert()))
    diagnosed(ledger, first)
    assert how(ledger, wanted(alert(starts=LATER), received=LATER)) == ("found", first)


def test_a_second_alert_joins_until_the_diagnosis(ledger):
    """One crash is one incident; a second fault is not swallowed by the first."""
    first = opened(ledger, wanted(alert(gpu_uuid=GPU, xid=48)))
    assert how(ledger, wanted(alert(gpu_uuid=GPU, xid=63, fingerprint="aaaaaaaa"))) == ("found", first)
    diagnosed(ledger, first)
    second = opened(ledger, wanted(alert(gpu_uuid=GPU, xid=79, fingerprint="bbbbbbbb")))
    assert second != first


def test_other_gpus_and_nodes_are_other_faults(ledger):
    ids = {opened(ledger, by_hand(gpu)) for gpu in (None, "0", "1", GPU, OTHER_GPU)}
    ids.add(opened(ledger, by_hand(node="gpu-2", uid="uid-2")))
    assert len(ids) == 6


def test_an_operator_finds_what_is_open_for_the_gpu(ledger):
    """A run without a GPU is resumed by the same command, though the diagnosis has named the GPU since."""
    first = opened(ledger)
    diagnosed(ledger, first)
    assert how(ledger, by_hand()) == ("found", first)
    assert how(ledger, by_hand(GPU)) == ("found", first)


def test_a_diagnosis_finds_the_other_incident_of_the_fault(ledger):
    """Two reports of one fault: the later ends, naming the earlier, and is told of once."""
    first, second = opened(ledger, by_hand(GPU)), opened(ledger, by_hand("3"))
    diagnosed(ledger, first)
    merged = diagnosed(ledger, second)
    assert (merged["state"], merged["verdict"]["action"], merged["verdict"]["merged_into"]) == ("no_action", "none", first)
    assert first in merged["reason"]
    assert ledger.incident(first)["state"] == "running"


def test_a_fence_of_the_later_incident_is_left_to_its_closing(ledger):
    ledger.set_mode("act", "jane", "why")
    first, second = opened(ledger, by_hand(GPU)), opened(ledger, by_hand("3"))
    diagnosed(ledger, first)
    fence = ledger.intend(second, "node/gpu-1/taint/x", None, "x")
    ledger.applied(fence.id, "x")
    assert diagnosed(ledger, second)["state"] == "running"
    ledger.disown(second, fence.target)
    ledger.reverted(fence.id)
    assert ledger.close_incident(second)[1]["state"] == "fence_lifted"


@pytest.mark.parametrize(
    "action, held_state, newer_state", [("quarantine_gpu", "no_action", "running"), ("hold", "held_for_human", "no_action")]
)
def test_an_idle_incident_does_not_swallow_a_fault_that_is_certain(ledger, action, held_state, newer_state):
    first = opened(ledger, by_hand(GPU))
    diagnosed(ledger, first, action="hold")
    ledger.close_incident(first)
    second = opened(ledger, by_hand("3"))
    diagnosed(ledger, second, action=action)
    assert (ledger.incident(first)["state"], ledger.incident(second)["state"]) == (held_state, newer_state)


def test_a_diagnosis_gives_the_true_identity(ledger):
    incident_id = opened(ledger, by_hand("3"))
    ledger.start_stage(incident_id, "diagnose")
    evidence = {"info": {"gpus": [{"uuid": GPU, "slot": 4}]}}
    verdict = {"gpu_uuid": GPU, "pci_bus_id": "0000:19:00.0", "serial": "165", "domain": "memory", "scope": "gpu"}
    record = ledger.finish_stage(incident_id, "diagnose", "ok", {"verdict": verdict, "evidence": evidence})[1]
    known = (record["gpu"], record["pci_bus_id"], record["serial"], record["slot"], record["domain"], record["scope"])
    assert known == (GPU, "0000:19:00.0", "165", "4", "memory", "gpu")


def test_a_group_is_one_incident(ledger):
    """S12: several silent nodes are the controller's fault until shown otherwise."""
    first = opened(ledger, from_group("controller", "c1", ["gpu-1", "gpu-2"], "unknown", NOON))
    assert how(ledger, from_group("controller", "c1", ["gpu-1", "gpu-3"], "unknown", NOON)) == ("found", first)
    record = ledger.incident(first)
    assert (record["kind"], record["scope"], record["nodes"]) == ("group", "job", ["gpu-1", "gpu-3"])
    assert opened(ledger) != first


# Alerts


def test_what_opens_nothing(ledger):
    assert how(ledger, wanted(alert(status="resolved"))) == ("ignored", "resolved: it opens nothing and releases nothing")
    assert ledger.overview()["incidents"] == []


def test_resolved_leaves_its_incident_alone(ledger):
    first = opened(ledger, wanted(alert()))
    before = ledger.incident(first)
    ledger.open_incident(wanted(alert(status="resolved"), received=LATER))
    assert ledger.incident(first) == before


def test_an_older_delivery_is_ignored(ledger):
    opened(ledger, wanted(alert(starts=LATER), received=LATER))
    assert how(ledger, wanted(alert(starts=NOON), received=LATER)) == ("ignored", "older than the newest delivery of this alert")


def test_an_alert_of_the_future_silences_nothing(ledger):
    """A clock that went wrong once."""
    first = opened(ledger, wanted(alert(starts=NOON + timedelta(days=900))))
    assert how(ledger, wanted(alert(starts=NOON))) == ("found", first)


def test_firing_after_its_own_resolved_still_counts(ledger):
    """Deliveries overtake each other, and dead exporters say resolved: a hint to look is not lost."""
    ledger.open_incident(wanted(alert(status="resolved")))
    assert how(ledger, wanted(alert()))[0] == "opened"


def test_the_same_evidence_does_not_open_again(ledger):
    """S6"""
    first = opened(ledger, wanted(alert()))
    ledger.close_incident(first, "cancelled_by_human", "untainted")
    assert how(ledger, wanted(alert(), received=LATER)) == (
        "ignored",
        f"incident {first} of the same evidence has ended in cancelled_by_human",
    )
    assert how(ledger, wanted(alert(starts=LATER), received=LATER))[0] == "opened"


def test_evidence_before_the_release_counts_no_more(ledger, clock):
    """S3"""
    first = opened(ledger, wanted(alert(gpu_uuid=GPU)))
    diagnosed(ledger, first, pci_bus_id="0000:19:00.0")
    contained(ledger, first)
    clock.on(3600)
    ledger.release_incident(first)
    for address, answer in (("0000:19:00.0", "ignored"), ("0000:20:00.0", "opened")):
        lost = alert(starts=NOON + timedelta(minutes=30), pci_bus_id=address, fingerprint="aaaa" + address[5:7] + "00")
        assert how(ledger, wanted(lost, received=clock()))[0] == answer, "a lost GPU is known by its address only"
    other = alert(starts=NOON + timedelta(minutes=30), gpu_uuid=GPU, fingerprint="cccccccc")
    assert how(ledger, wanted(other, received=clock()))[1].startswith("older than the last word on the GPU")
    pci = alert(starts=NOON + timedelta(minutes=30), gpu_uuid=OTHER_GPU, fingerprint="dddddddd")
    assert how(ledger, wanted(pci, received=clock()))[0] == "opened"
    new = alert(starts=NOON + timedelta(minutes=61), gpu_uuid=GPU, fingerprint="eeeeeeee")
    assert how(ledger, wanted(new, received=clock()))[0] == "opened"


def test_the_deadline_is_stored_once(ledger, clock):
    first = opened(ledger, wanted(alert(starts=NOON - timedelta(seconds=60))))
    due = ledger.incident(first)["deadline_at"]
    clock.on(300)
    ledger.open_incident(wanted(alert(starts=clock()), received=clock()))
    assert ledger.incident(first)["deadline_at"] == due == "2026-11-29T12:11:00.000Z"
    assert ledger.incident(first)["seconds_left"] == 360


def test_a_late_alert_says_so(ledger):
    record = ledger.incident(opened(ledger, wanted(alert(starts=NOON - timedelta(seconds=600)))))
    assert (record["detected_late_seconds"], record["deadline_at"]) == (600, "2026-11-29T12:10:30.000Z")


def test_held_alerts_are_told_once(ledger):
    """S2"""
    for _attempt in range(3):
        ledger.hold_alert("aaaaaaaa", "no label names a node", 0)
    assert [one["topic"] for one in ledger.claim_notifications()] == ["alert_held"]
    assert [one["reason"] for one in ledger.overview()["held_alerts"]] == ["no label names a node"]


# Nodes that are not ours to touch


def test_an_opted_out_node(ledger):
    """S4"""
    opening = ledger.open_incident(by_hand(managed=False))
    assert (opening.record["state"], opening.record["reason"]) == ("no_action", "the node is opted out")


def test_opting_out_ends_an_open_incident(ledger):
    """S4"""
    plain, changed = opened(ledger), opened(ledger, by_hand("1"))
    ledger.intend(changed, "t", None, 1)
    assert ledger.open_incident(by_hand(managed=False)).record["state"] == "no_action"
    assert ledger.open_incident(by_hand("1", managed=False)).record["state"] == "held_for_human"
    assert ledger.incident(plain)["open"] is False


@pytest.mark.parametrize("anew", [False, True])
def test_an_opted_out_node_is_not_taken_up_again(ledger, anew):
    """S4: a run that was killed, then somebody who wants the node left alone, then reconcile."""
    out = {"gpu-1": {"uid": "uid-1", "managed": False}}
    running, held = opened(ledger), opened(ledger, by_hand("1"))
    ledger.close_incident(held, "held_for_human")
    assert ledger.reopen(running, anew=anew, inventory=out).record["state"] == "no_action"
    assert ledger.reopen(held, anew=anew, inventory=out).record["state"] == "held_for_human"
    assert ledger.reopen(held, anew=anew, inventory={"gpu-1": {"uid": "uid-1"}}).record["state"] == (
        "running" if anew else "held_for_human"
    )


def test_a_recreated_node_is_not_taken_up_again(ledger):
    """S6"""
    incident_id = opened(ledger)
    assert ledger.reopen(incident_id, inventory={"gpu-1": {"uid": "uid-1"}, "gpu-2": {"uid": "uid-9"}}).record["state"] == "running"
    assert ledger.reopen(incident_id, anew=True, inventory={"gpu-1": {"uid": "uid-9"}}).record["state"] == "cancelled_by_human"


def test_a_recreated_node(ledger):
    """S6: another UID under the same name."""
    old = opened(ledger)
    new = opened(ledger, by_hand(uid="uid-9"))
    assert ledger.incident(old)["state"] == "cancelled_by_human"
    assert ledger.incident(new)["state"] == "running"


def test_a_node_without_a_uid_is_not_a_recreated_one(ledger):
    first = opened(ledger)
    opened(ledger, by_hand(uid="gpu-1"))
    assert ledger.incident(first)["state"] == "running"


# Authorization


@pytest.mark.parametrize(
    "mode, allowed",
    [("observe", set()), ("fence", {"taint", "release"}), ("act", {"taint", "node", "release"})],
)
def test_the_mode_is_asked_before_every_write(ledger, mode, allowed):
    """S4"""
    ledger.set_mode(mode, "jane", "why")
    incident_id = opened(ledger)
    for write in ("taint", "node", "release"):
        if write in allowed:
            ledger.authorize(incident_id, write)
        else:
            with pytest.raises(ModeForbids, match=f"mode {mode} does not allow this") as error:
                ledger.authorize(incident_id, write)
            assert error.value.kind == "mode_forbids"


def test_an_ended_incident_only_releases(ledger):
    ledger.set_mode("act", "jane", "why")
    incident_id = opened(ledger)
    ledger.close_incident(incident_id, "contained")
    ledger.authorize(incident_id, "release")
    with pytest.raises(IncidentEnded):
        ledger.authorize(incident_id, "taint")


@pytest.mark.parametrize("state, error", [("cancelled_by_human", IncidentCancelled), ("no_action", IncidentEnded)])
@pytest.mark.parametrize("write", ["taint", "node", "release"])
def test_a_closed_incident_changes_nothing(ledger, state, error, write):
    """S6"""
    ledger.set_mode("act", "jane", "why")
    incident_id = opened(ledger)
    ledger.close_incident(incident_id, state)
    with pytest.raises(error):
        ledger.authorize(incident_id, write)


def test_only_the_name_of_a_cancelled_incident_is_forgotten(ledger):
    """S6: what a human took over is not touched; that we named the incident there is our own."""
    ledger.set_mode("fence", "jane", "why")
    open_one, cancelled, released = opened(ledger), opened(ledger, by_hand("1")), opened(ledger, by_hand("2"))
    ledger.close_incident(cancelled, "cancelled_by_human")
    ledger.release_incident(released)
    ledger.authorize(cancelled, "forget")
    for incident_id, error in ((open_one, ChangesLeft), (released, IncidentEnded)):
        with pytest.raises(error):
            ledger.authorize(incident_id, "forget")
    assert ledger.overview()["cancelled"] == [cancelled]
    ledger.set_mode("observe", "jane", "why")
    with pytest.raises(ModeForbids):
        ledger.authorize(cancelled, "forget")


def test_no_such_incident(ledger):
    with pytest.raises(UnknownIncident):
        ledger.authorize("x", "taint")
    with pytest.raises(UnknownIncident):
        ledger.incident("x")


# Ending


def test_one_notification_an_incident_and_state(ledger):
    """S16"""
    incident_id = opened(ledger)
    diagnosed(ledger, incident_id)
    assert contained(ledger, incident_id)["state"] == "contained"
    assert ledger.close_incident(incident_id)[0] is False
    (told,) = ledger.claim_notifications()
    assert told["topic"] == "contained"
    assert told["payload"]["where"] == f"gpu-1, GPU {GPU}"
    assert told["payload"]["next_command"].endswith(incident_id)


def test_an_overdue_incident_may_still_be_contained(ledger, clock):
    """The pod that would not end has ended after all; nothing was done behind anybody's back, so people are told."""
    incident_id = opened(ledger, by_hand(GPU))
    diagnosed(ledger, incident_id)
    for stage, end in (("isolate", "ok"), ("taint", "ok"), ("evict", "ok"), ("verify", "failed")):
        ledger.finish_stage(incident_id, stage, end)
    assert ledger.close_incident(incident_id)[1]["state"] == "quarantined_overdue"
    clock.on(3000)
    opening = ledger.open_incident(by_hand(GPU))
    assert (opening.how, opening.record["resume"]) == ("found", "verify")
    assert ledger.start_stage(incident_id, "evict")["skip"]
    assert ledger.start_stage(incident_id, "verify")["seconds"] == 60
    ledger.finish_stage(incident_id, "verify", "ok")
    assert ledger.close_incident(incident_id)[1]["state"] == "contained"
    assert [one["topic"] for one in ledger.claim_notifications()] == ["quarantined_overdue", "contained"]


def test_nothing_closes_while_a_change_stands(ledger):
    incident_id = opened(ledger)
    ledger.intend(incident_id, "t", None, 1)
    with pytest.raises(ChangesLeft):
        ledger.close_incident(incident_id, "no_action")
    ledger.close_incident(incident_id, "held_for_human")
    with pytest.raises(ChangesLeft):
        ledger.release_incident(incident_id)


def test_who_is_held_before_a_verdict_says_which_fence_stands(ledger):
    """S12: silence lifts nothing, so people are told that it is there and what decides about it."""
    fenced, plain = opened(ledger), opened(ledger, by_hand("1"))
    ledger.intend(fenced, "node/gpu-1/taint/x:NoSchedule", None, 1)
    silent = ["held_for_human", "2 nodes are silent at once"]
    record = ledger.close_incident(fenced, *silent)[1]
    assert record["reason"] == "2 nodes are silent at once; node/gpu-1/taint/x:NoSchedule stands until a diagnosis confirms or lifts it"
    assert not ledger.close_incident(fenced, *silent)[0]
    assert "gpuops_anew=true" in ledger.story(fenced)["next_command"]
    assert ledger.close_incident(plain, *silent)[1]["reason"] == "2 nodes are silent at once"


def test_release_keeps_what_was_read(ledger):
    """S17"""
    incident_id = opened(ledger)
    ledger.close_incident(incident_id, "contained")
    changed, record = ledger.release_incident(incident_id, {"nvml": "answers"})
    assert (changed, record["state"], record["release"]) == (True, "released", {"nvml": "answers"})
    assert ledger.release_incident(incident_id)[0] is False
    assert opened(ledger) != incident_id


# Another round


def hold_by_breaker(ledger, incident_id):
    diagnosed(ledger, incident_id)
    ledger.finish_stage(incident_id, "taint", "failed", error_kind="breaker_tripped")
    assert ledger.close_incident(incident_id)[1]["state"] == "held_for_human"


def trip(ledger):
    for node in "abcd":
        with suppress(BreakerTripped):
            ledger.take_slot("i", node)


def test_what_the_breaker_held_is_diagnosed_anew_after_the_reset(ledger, clock):
    """S8: never replayed."""
    incident_id = opened(ledger, wanted(alert()))
    trip(ledger)
    hold_by_breaker(ledger, incident_id)
    assert ledger.open_incident(wanted(alert())).record["state"] == "held_for_human"
    assert ledger.overview()["due_again"] == []
    clock.on(86400)
    ledger.configure(None, None, True, "jane", "why")
    assert ledger.overview()["due_again"] == [incident_id]
    assert ledger.reopen(incident_id).record["round"] == 1, "only who asks for it, or the alert itself"
    record = ledger.reopen(incident_id, anew=True, only_due=True).record
    assert (record["state"], record["round"], list(record["stages"]), record["verdict"]) == ("running", 2, ["detect"], None)
    assert record["deadline_at"] == "2026-11-30T12:12:00.000Z"
    second = ledger.reopen(incident_id, anew=True, only_due=True)
    assert (second.how, ledger.incident(incident_id)["round"]) == ("ignored", 2), "another reconcile of the same time"
    assert not ledger.start_stage(incident_id, "diagnose")["skip"]
    assert {stage["round"] for stage in ledger.story(incident_id)["timeline"]} == {1, 2}
    hold_by_breaker(ledger, incident_id)
    assert [one["topic"] for one in ledger.claim_notifications()].count("held_for_human") == 2, "a new round is told of again"


def test_what_the_mode_held_is_due_again_when_it_allows_more(ledger):
    """S4"""
    ledger.set_mode("fence", "jane", "why")
    incident_id = opened(ledger, by_hand(GPU))
    diagnosed(ledger, incident_id)
    ledger.intend(incident_id, "t", None, 1)
    ledger.finish_stage(incident_id, "evict", "failed", error_kind="mode_forbids")
    record = ledger.close_incident(incident_id)[1]
    assert (record["state"], record["stages"]["evict"]["outcome"]) == ("held_for_human", "due")
    assert ledger.open_incident(by_hand(GPU)).record["round"] == 1
    ledger.set_mode("act", "jane", "why")
    assert ledger.open_incident(by_hand(GPU)).record["round"] == 2


def test_what_a_mode_forbade_on_the_way_is_due_again(ledger):
    """S4: opened in mode act, which somebody took back before the taint, and gave again."""
    ledger.set_mode("act", "jane", "why")
    incident_id = opened(ledger)
    diagnosed(ledger, incident_id)
    ledger.intend(incident_id, "t", None, 1)
    ledger.set_mode("observe", "jane", "why")
    ledger.finish_stage(incident_id, "taint", "failed", error_kind="mode_forbids")
    assert ledger.close_incident(incident_id)[1]["state"] == "held_for_human"
    assert ledger.overview()["due_again"] == []
    ledger.set_mode("act", "jane", "why")
    assert ledger.overview()["due_again"] == [incident_id]


def test_what_was_only_observed_opens_anew_when_the_mode_allows_more(ledger):
    """S4: the alert still fires."""
    first = opened(ledger, wanted(alert()))
    diagnosed(ledger, first)
    ledger.finish_stage(first, "taint", "due")
    assert ledger.close_incident(first)[1]["state"] == "no_action"
    assert how(ledger, wanted(alert(), received=LATER))[0] == "ignored"
    ledger.set_mode("act", "jane", "why")
    assert how(ledger, wanted(alert(), received=LATER))[0] == "opened"


def test_an_operator_asks_for_another_round(ledger):
    incident_id = opened(ledger)
    ledger.close_incident(incident_id, "held_for_human")
    assert ledger.open_incident(by_hand(), anew=True).record["state"] == "running"
    ledger.close_incident(incident_id, "no_action")
    assert ledger.reopen(incident_id, anew=True).record["state"] == "no_action", "what is closed stays closed"


# Waiting


def test_over_capacity_incidents_wait_fenced(ledger, clock):
    first = opened(ledger)
    second = ledger.open_incident(by_hand(node="gpu-2", uid="uid-2"), max_running=1).record
    clock.on(1)
    assert second["state"] == "fenced_waiting"
    third = ledger.open_incident(by_hand(node="gpu-3", uid="uid-3", now=clock.now), max_running=1).record
    assert ledger.overview()["waiting"] == [second["id"], third["id"]], "the oldest first"
    (page,) = ledger.claim_notifications()
    assert (page["topic"], page["payload"]["nodes"]) == ("fenced_waiting", ["gpu-2", "gpu-3"]), "one summary for all"
    clock.on(500)
    assert ledger.start_stage(second["id"], "detect")["incident"]["state"] == "fenced_waiting"
    step = ledger.start_stage(second["id"], "diagnose")
    assert (step["incident"]["state"], step["seconds"], step["incident"]["seconds_left"]) == ("running", 180, 630)
    assert ledger.incident(first)["seconds_left"] == 219
