# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.budget import Limits
from ledgers import GPU, NOON, alert, by_hand, diagnosed, opened, verdict, wanted


@pytest.mark.parametrize(
    "want, words",
    [
        pytest.param(wanted(alert(name="GpuXid", xid=79)), "alert GpuXid, Xid 79", id="an alert"),
        pytest.param(wanted(alert(name="GpuXid")), "alert GpuXid", id="one that tells of no Xid"),
        pytest.param(wanted(alert(name="GpuXid", xid=79, hint=True)), "alert GpuXid, Xid 79, over by then", id="a hint"),
        pytest.param(by_hand(), "asked for by name", id="a call"),
    ],
)
def test_detect_is_over_with_the_opening(ledger, clock, want, words):
    """It says what opened the incident; where nothing was weighed for a fence, nothing about that."""
    clock.on(7)
    detect = ledger.open_incident(want).record["stages"]["detect"]
    assert (detect["outcome"], detect["reason"], detect["seconds"], detect["data"]) == ("ok", words, 7, {})


def test_finished_stages_are_skipped_and_read_back(ledger):
    incident_id = opened(ledger)
    assert not ledger.start_stage(incident_id, "isolate")["skip"]
    assert ledger.finish_stage(incident_id, "isolate", "ok", {"killed": [7]})[0]
    again = ledger.start_stage(incident_id, "isolate")
    assert (again["skip"], again["outcome"], again["data"]) == (True, "ok", {"killed": [7]})
    assert not ledger.finish_stage(incident_id, "isolate", "ok", {"killed": [7]})[0]


def test_a_stage_that_was_begun_begins_again(ledger):
    incident_id = opened(ledger)
    ledger.start_stage(incident_id, "evict")
    again = ledger.start_stage(incident_id, "evict")
    assert not again["skip"]
    assert ledger.incident(incident_id)["stages"]["evict"]["attempts"] == 2


def test_time_runs_out(ledger, clock):
    """S16: the taint keeps its floor, the others are stored as timed out."""
    incident_id = opened(ledger)
    diagnosed(ledger, incident_id)
    clock.on(719)
    assert ledger.start_stage(incident_id, "isolate")["seconds"] == 1
    clock.on(100)
    assert ledger.start_stage(incident_id, "taint")["seconds"] == 30
    ledger.finish_stage(incident_id, "taint", "ok")
    late = ledger.start_stage(incident_id, "evict")
    assert (late["skip"], late["overdue"]) == (True, True)
    assert ledger.incident(incident_id)["stages"]["evict"]["outcome"] == "timed_out"
    assert ledger.overview()["overdue"] == [incident_id]


def test_the_alerts_word_stands_in_for_a_diagnosis_that_found_no_time(ledger, clock):
    """S16: the taint stage has its floor, and needs a verdict; what it says of the past keeps an old alert from being one (S3)."""
    released = opened(ledger, by_hand(GPU))
    diagnosed(ledger, released)
    ledger.close_incident(released, "contained")
    ledger.release_incident(released)
    incident_id = opened(ledger)
    clock.on(721)
    assert ledger.start_stage(incident_id, "diagnose")["overdue"]
    step = ledger.start_stage(incident_id, "taint")
    assert (step["skip"], step["seconds"], step["releases"]) == (False, 30, {GPU: "2026-11-29T12:00:00.000Z"})
    reason = "no time was left; the alert's word stands in"
    record = ledger.finish_stage(incident_id, "diagnose", "timed_out", {"verdict": verdict()}, reason)[1]
    assert (record["gpu"], record["verdict"]["action"]) == (GPU, "quarantine_gpu")
    ledger.applied(ledger.intend(incident_id, "t", None, 1).id, 1)
    ledger.finish_stage(incident_id, "taint", "ok")
    for stage in ("evict", "verify"):
        assert ledger.start_stage(incident_id, stage)["overdue"]
    ended = ledger.close_incident(incident_id)[1]
    assert (ended["state"], ended["reason"]) == ("quarantined_overdue", f"diagnose ran out of time: {reason}")


def test_limits(ledger):
    incident_id = opened(ledger)
    assert ledger.start_stage(incident_id, "evict", Limits.of({"evict_seconds": 7}))["seconds"] == 7


@pytest.mark.parametrize("mode, permitted", [("observe", []), ("fence", ["taint"]), ("act", ["taint", "node"])])
def test_what_the_mode_permits(ledger, mode, permitted):
    """S4"""
    ledger.set_mode(mode, "jane", "why")
    step = ledger.start_stage(opened(ledger), "taint")
    assert (step["mode"], step["permitted"]) == (mode, permitted)


def crash(ledger, gpu, program, pid):
    info = {
        "gpus": [{"uuid": gpu, "pci_bus_id": "0000:19:00.0", "processes": []}],
        "xids": [{"pci_bus_id": "0000:19:00.0", "code": 31, "pid": pid, "process_name": program, "time": "2026-11-29T12:00:00Z"}],
    }
    incident_id = opened(ledger, by_hand(gpu))
    verdict = {"gpu_uuid": gpu, "domain": "application", "scope": "process", "action": "none", "xids": [31]}
    for attempt in range(2):  # the second reading of the same kernel log tells nothing new
        ledger.finish_stage(incident_id, "diagnose", "ok", {"verdict": verdict, "evidence": {"info": info}, "attempt": attempt})
    ledger.close_incident(incident_id)


def test_the_history_of_a_day(ledger, clock):
    """S14: what failed, once each, for the next diagnosis of any GPU of the node."""
    crash(ledger, GPU, "train", 7)
    crash(ledger, GPU, "infer", 8)
    incident_id = opened(ledger)
    history = ledger.start_stage(incident_id, "diagnose")["history"]
    assert [(one["gpu_uuid"], one["code"], one["executable_or_image"]) for one in history] == [(GPU, 31, "train"), (GPU, 31, "infer")]
    assert ledger.start_stage(opened(ledger, by_hand(node="gpu-2", uid="uid-2")), "diagnose")["history"] == []
    clock.on(86401)
    assert ledger.start_stage(incident_id, "taint").get("history") is None
    assert ledger.start_stage(opened(ledger, by_hand("5")), "diagnose")["history"] == []


def test_when_the_gpu_was_released(ledger, clock):
    """S3"""
    incident_id = opened(ledger)
    assert ledger.start_stage(incident_id, "diagnose")["releases"] == {}
    diagnosed(ledger, incident_id, pci_bus_id="0000:19:00.0")
    ledger.close_incident(incident_id, "contained")
    clock.on(60)
    ledger.release_incident(incident_id)
    clock.on(60)
    at = "2026-11-29T12:01:00.000Z"
    assert ledger.start_stage(opened(ledger), "diagnose")["releases"] == {GPU: at, "pci:0000:19:00.0": at}
    assert ledger.start_stage(opened(ledger, by_hand(node="gpu-2", uid="uid-2")), "diagnose")["releases"] == {}


def test_a_humans_decision_settles_the_evidence(ledger, clock):
    """S6"""
    incident_id = opened(ledger, by_hand(GPU))
    clock.on(60)
    ledger.close_incident(incident_id, "cancelled_by_human", "untainted")
    assert ledger.start_stage(opened(ledger), "diagnose")["releases"] == {GPU: "2026-11-29T12:01:00.000Z"}


def test_evidence_is_kept_raw(ledger):
    """S18"""
    incident_id = opened(ledger)
    evidence = {"info": {"kernel_log": ["NVRM: Xid (PCI:0000:19:00): 48, ...", "{{ x }}"], "gpus": []}}
    ledger.finish_stage(incident_id, "diagnose", "ok", {"verdict": {"action": "none"}, "evidence": evidence})
    assert ledger.incident(incident_id)["stages"]["diagnose"]["data"]["evidence"] == evidence
    assert ledger.now() == NOON
