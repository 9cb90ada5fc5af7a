# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from datetime import timedelta

from ledgers import GPU, by_hand, diagnosed, opened


def test_what_is_going_on(ledger, clock):
    first = opened(ledger)
    diagnosed(ledger, first, serial="165")
    second = opened(ledger, by_hand(node="gpu-2", uid="uid-2"))
    ledger.close_incident(second, "no_action")
    clock.on(20)
    seen = ledger.overview()
    (row,) = seen["incidents"]
    assert (row["id"], row["node"], row["gpu"], row["serial"], row["state"]) == (first, "gpu-1", GPU, "165", "running")
    assert (row["age_seconds"], row["seconds_left"]) == (20, 700)
    assert row["next_command"] == "ansible-playbook gpuops.remediation.reconcile"
    assert (seen["mode"], seen["unfinished"], seen["overdue"], seen["waiting"]) == ("observe", [first], [], [])
    assert {one["id"] for one in ledger.overview(closed=True)["incidents"]} == {first, second}
    assert ledger.overview(node="gpu-2")["incidents"] == []
    assert [one["id"] for one in ledger.overview(node="gpu-2", closed=True)["incidents"]] == [second]


def test_the_story_of_an_incident(ledger, clock):
    incident_id = opened(ledger, by_hand(now=clock.now - timedelta(seconds=3)))
    ledger.start_stage(incident_id, "diagnose")
    clock.on(12)
    ledger.finish_stage(incident_id, "diagnose", "ok", {"verdict": {"action": "hold", "reasons": ["?"]}})
    ledger.applied(ledger.intend(incident_id, "t", None, 1).id, 1)
    clock.on(30)
    ledger.close_incident(incident_id)
    clock.on(3000)
    story = ledger.story(incident_id)
    assert [(one["stage"], one["seconds"]) for one in story["timeline"]] == [("detect", 3), ("diagnose", 12)]
    assert story["budget"] == {"seconds": 720, "spent_seconds": 45.0, "within": True}
    assert [one["target"] for one in story["changes"]] == ["t"]
    assert [one["topic"] for one in story["notifications"]] == ["held_for_human"]


def test_time_stands_still_while_one_waits_for_room(ledger, clock):
    opened(ledger, by_hand(node="gpu-0", uid="uid-0"))
    waits = ledger.open_incident(by_hand(now=clock.now), max_running=1).record["id"]
    clock.on(800)
    assert ledger.incident(waits)["seconds_left"] is None
    assert ledger.story(waits)["budget"] == {"seconds": 720, "spent_seconds": 0.0, "within": True}


def test_pruning_keeps_what_still_matters(ledger, clock):
    """S3, S6, S19: retention, but what is open stays, and so does each GPU's last release or a human's word on it."""
    stays, cancelled = opened(ledger, by_hand("1")), opened(ledger, by_hand("2"))
    ledger.close_incident(cancelled, "cancelled_by_human")
    clock.on(1)
    ids = []
    for _attempt in range(3):
        incident_id = opened(ledger)
        ledger.finish_stage(incident_id, "diagnose", "ok", {})
        change = ledger.intend(incident_id, "t", None, 1)
        ledger.disown(incident_id, "t")
        ledger.reverted(change.id)
        ledger.close_incident(incident_id, "contained")
        ledger.release_incident(incident_id)
        ids.append(incident_id)
        clock.on(60)
    ledger.hold_alert("aaaaaaaa", "why", 0)
    ledger.notifications_sent([one["id"] for one in ledger.claim_notifications()])
    ledger.notify("unsent", "x", {})
    assert ledger.prune(90) == 0
    clock.on(91 * 86400)
    assert ledger.prune(90) > 0
    assert {one["id"] for one in ledger.overview(closed=True)["incidents"]} == {stays, cancelled, ids[-1]}
    seen = ledger.overview()
    assert [one["key"] for one in seen["unsent"]] == ["unsent"]
    assert seen["held_alerts"] == []
    assert ledger.prune(90) == 0
