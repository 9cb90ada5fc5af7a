# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import copy
import csv
import json

import pytest
import yaml
from ansible_collections.gpuops.remediation.plugins.module_utils._xid import policy as xid_policy
from ansible_collections.gpuops.remediation.plugins.module_utils._xid.policy import PolicyInvalid, load_policy, read_policy
from gpu_evidence import FIXTURES, POLICY_FILE

RAW = yaml.safe_load(POLICY_FILE.read_text())
POLICY = load_policy(str(POLICY_FILE))
HEALTHY = {"xids": (), "later_xids": (), "recovery_action": "none", "kernel_log": True, "mig": False, "mps": False}


def table(name):
    with open(FIXTURES / name, newline="") as stream:
        return list(csv.DictReader(stream))


def rows(policy):
    yield from (policy.xids[code] for code in sorted(policy.xids))
    yield from (policy.unknown_xid, policy.sxid, *policy.recovery_actions.values(), *policy.states.values(), policy.repeats.row)


def decisions(policy):
    """Everything that the policy decides, in the form of decisions.csv."""
    return [
        {
            "key": row.key,
            "when": json.dumps(change.when, sort_keys=True) if change else "",
            "domain": variant.domain,
            "scope": variant.scope,
            "action": variant.action,
            "repair": variant.repair,
            "certain_on_fleet_evidence": str(variant.certain_on_fleet_evidence).lower(),
            "evict_blind": str(variant.evict_blind).lower(),
        }
        for row in rows(policy)
        for variant, change in zip(row.variants(), [None, *row.changes])
    ]


# ---------------------------------------------------------------- what is decided


def test_the_decisions_are_the_agreed_ones():
    """Whoever changes a decision changes decisions.csv with it, so that the change is seen in review."""
    assert decisions(POLICY) == table("decisions.csv")


DECISION = {"action": ("hold", "observe"), "repair": ("none", "replace"), "domain": ("thermal", "power"), "scope": ("job", "container")}
FLAGS = {"certain_on_fleet_evidence": (True, False), "evict_blind": (True, False)}


def places():
    """Every place of the policy file that decides something."""
    for number, entry in enumerate(RAW["xids"]):
        yield ("xids", number, "decision")
        yield from (("xids", number, "changes", change, "then") for change in range(len(entry.get("changes", ()))))
    yield from ((section, "decision") for section in ("unknown_xid", "sxid", "repeats"))
    yield from ((section, name, "decision") for section in ("recovery_actions", "states") for name in RAW[section])


def mutated(place, field, value):
    """The decisions with one field changed."""
    spot = RAW
    for step in place:
        spot = spot[step]
    before = dict(spot)
    spot[field] = value
    try:
        return decisions(read_policy(RAW)[0])
    finally:
        spot.clear()
        spot.update(before)


def test_a_mutation_of_any_row_breaks_the_table():
    expected = table("decisions.csv")
    for place in places():
        for field, choices in {**DECISION, **({} if place[-1] == "then" else FLAGS)}.items():
            # one of the two values is what stands there
            assert any(mutated(place, field, value) != expected for value in choices), (place, field)


def test_all_codes_are_decided_in_writing():
    assert sorted(POLICY.xids) == list(range(1, 174))
    for row in rows(POLICY):
        assert len(row.meaning) > 10 and len(row.rationale) > 10, row.key
        assert all(len(change.because) > 10 for change in row.changes), row.key


@pytest.mark.parametrize("code", [13, 31, 43, 45])
def test_the_applications_own(code):
    """S14: an application's fault never taints, whatever else is read from the GPU."""
    assert {(row.domain, row.scope, row.action) for row in POLICY.row(code).variants()} == {("application", "process", "none")}


def test_process_scope_never_quarantines():
    """S14."""
    for row in rows(POLICY):
        for variant in row.variants():
            if variant.scope in ("process", "container"):
                assert not variant.action.startswith("quarantine"), row.key


def test_no_fleet_certainty_where_one_job_shows_on_many_nodes():
    """S12: application, nvlink and fabric faults never fence on fleet evidence."""
    certain = {row.domain for row in rows(POLICY) if row.certain_on_fleet_evidence}
    assert certain.isdisjoint({"application", "nvlink", "fabric", "none", "unknown"})


def test_only_a_dead_gpu_is_evicted_blind():
    """S12."""
    assert [row.key for row in rows(POLICY) if row.evict_blind] == ["xid 79", "gpu_lost"]


def test_unknown_codes_are_held():
    row = POLICY.row(4711)
    assert (row.key, row.domain, row.action, row.certain_on_fleet_evidence) == ("xid 4711", "unknown", "hold", False)
    assert row.under({**HEALTHY, "severity": "fatal"}).action == "quarantine_gpu"


def test_162_is_good_news():
    assert (POLICY.row(162).domain, POLICY.row(162).action) == ("none", "none")


def test_an_unnamed_recovery_action_has_a_row():
    assert POLICY.recovery("unknown_9").key == "recovery action unknown"


@pytest.mark.parametrize(
    "code, facts, decision",
    [
        pytest.param(48, {"xids": {48}}, ("gpu", "quarantine_gpu", "reset_gpu"), id="48 alone"),
        pytest.param(48, {"xids": {48, 63}}, ("gpu", "quarantine_gpu", "reset_gpu"), id="48 with 63"),
        pytest.param(48, {"xids": {48, 64}}, ("gpu", "quarantine_gpu", "replace"), id="48 with 64"),
        pytest.param(
            48, {"xids": {48}, "row_remap_failure": True}, ("gpu", "quarantine_gpu", "replace"), id="48 and NVML reads a failed remap"
        ),
        pytest.param(48, {"xids": {48, 171, 63}}, ("gpu", "quarantine_gpu", "reset_gpu"), id="48, DRAM, remapped"),
        pytest.param(48, {"xids": {48, 171, 64}}, ("gpu", "quarantine_gpu", "replace"), id="48, DRAM, not remapped"),
        pytest.param(48, {"xids": {48, 172}}, ("gpu", "quarantine_gpu", "reset_gpu"), id="48, SRAM"),
        pytest.param(
            48, {"xids": {48, 172}, "sram_threshold_exceeded": True}, ("gpu", "quarantine_gpu", "replace"), id="48, SRAM worn out"
        ),
        pytest.param(48, {"xids": {48, 63, 94}}, ("process", "observe", "restart_app"), id="48 contained"),
        pytest.param(
            48,
            {"xids": {48, 63, 94}, "recovery_action": None},
            ("gpu", "quarantine_gpu", "reset_gpu"),
            id="48 contained, the driver not asked",
        ),
        pytest.param(48, {"xids": {48, 94, 95}}, ("gpu", "quarantine_gpu", "reset_gpu"), id="48 contained and not contained"),
        pytest.param(63, {"row_remap_pending": True}, ("gpu", "observe", "reset_gpu"), id="63 waits for a reset"),
        pytest.param(63, {"row_remap_pending": False}, ("gpu", "observe", "none"), id="63 in use"),
        pytest.param(64, {"row_remap_failure": None}, ("gpu", "quarantine_gpu", "reset_gpu"), id="64, NVML not read"),
        pytest.param(64, {"row_remap_failure": True}, ("gpu", "quarantine_gpu", "replace"), id="64 confirmed"),
        pytest.param(94, {}, ("process", "observe", "restart_app"), id="94"),
        pytest.param(94, {"mig": True}, ("mig_instance", "observe", "restart_app"), id="94 in an instance"),
        pytest.param(95, {}, ("gpu", "quarantine_gpu", "reset_gpu"), id="95"),
        pytest.param(74, {}, ("gpu", "observe", "none"), id="74, the driver content"),
        pytest.param(74, {"recovery_action": None}, ("gpu", "quarantine_gpu", "reset_gpu"), id="74, an old driver"),
        pytest.param(79, {}, ("gpu", "quarantine_gpu", "reboot_node"), id="79"),
        pytest.param(109, {}, ("gpu", "observe", "restart_app"), id="109, the driver content"),
        pytest.param(109, {"recovery_action": None}, ("gpu", "quarantine_gpu", "reset_gpu"), id="109, the driver not asked"),
        pytest.param(119, {}, ("gpu", "quarantine_gpu", "reset_gpu"), id="119, of which the driver says nothing"),
        pytest.param(120, {}, ("gpu", "quarantine_gpu", "reset_gpu"), id="120"),
        pytest.param(149, {"severity": "fatal"}, ("gpu", "quarantine_gpu", "reset_gpu"), id="149 fatal"),
        pytest.param(149, {"severity": "nonfatal"}, ("gpu", "observe", "none"), id="149 non-fatal"),
        pytest.param(149, {"severity": None}, ("gpu", "hold", "none"), id="149 without a word"),
        pytest.param(163, {"later_xids": {162}}, ("gpu", "none", "none"), id="163 recovered"),
        pytest.param(163, {"xids": {162, 163}}, ("gpu", "observe", "none"), id="163 after 162"),
    ],
)
def test_other_evidence_changes_a_row(code, facts, decision):
    row = POLICY.row(code).under({**HEALTHY, **facts})
    assert (row.scope, row.action, row.repair) == decision


# ---------------------------------------------------------------- what the loader refuses


def write(tmp_path, change):
    raw = copy.deepcopy(RAW)
    change(raw)
    path = tmp_path / "policy.yml"
    path.write_text(yaml.safe_dump(raw))
    return path


def entry(raw, code):
    return next(item for item in raw["xids"] if code in item["codes"])


@pytest.mark.parametrize(
    "change, words",
    [
        pytest.param(lambda raw: raw.update(severity=1), "'severity' was unexpected", id="unknown section"),
        pytest.param(lambda raw: entry(raw, 79).update(note="x"), "'note' was unexpected", id="unknown field"),
        pytest.param(lambda raw: entry(raw, 79)["decision"].update(action="reboot"), "'reboot' is not one of", id="unknown action"),
        pytest.param(lambda raw: entry(raw, 79)["decision"].pop("repair"), "'repair' is a required property", id="no repair"),
        pytest.param(lambda raw: entry(raw, 48)["changes"][0]["when"].update(moon=True), "'moon' was unexpected", id="unknown condition"),
        pytest.param(lambda raw: raw["xids"].remove(entry(raw, 79)), "no row for Xid 79", id="a code is missing"),
        pytest.param(lambda raw: entry(raw, 79)["codes"].append(80), "Xid 80 has two rows", id="a code twice"),
        pytest.param(
            lambda raw: entry(raw, 13)["decision"].update(action="quarantine_gpu"), "xid 13: quarantine_gpu at scope process", id="S14"
        ),
        pytest.param(
            lambda raw: entry(raw, 13)["decision"].update(action="quarantine_gpu", scope="gpu"),
            "xid 13: a quarantine for the application's fault",
            id="application",
        ),
        pytest.param(
            lambda raw: entry(raw, 74)["decision"].update(certain_on_fleet_evidence=True),
            "xid 74: the domain nvlink is never certain on fleet evidence",
            id="nvlink by fleet evidence",
        ),
        pytest.param(
            lambda raw: entry(raw, 74)["decision"].update(evict_blind=True),
            "xid 74: evict_blind without certain_on_fleet_evidence",
            id="blind",
        ),
        pytest.param(
            lambda raw: entry(raw, 48)["changes"][0]["then"].update(scope="process"),
            "xid 48: quarantine_gpu at scope process",
            id="a change counts too",
        ),
    ],
)
def test_refused(tmp_path, change, words):
    with pytest.raises(PolicyInvalid) as error:
        load_policy(str(write(tmp_path, change)), str(POLICY_FILE.with_name(xid_policy.SCHEMA_NAME)))
    assert words in str(error.value)
    assert error.value.failure()["error_kind"] == "policy_invalid"


@pytest.mark.parametrize("text", ["a: [", "\x00", b"\xff\xfe\xff"])
def test_not_yaml(tmp_path, text):
    path = tmp_path / "policy.yml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(PolicyInvalid, match="cannot parse"):
        load_policy(str(path))


def test_no_file(tmp_path):
    with pytest.raises(PolicyInvalid, match="cannot read"):
        load_policy(str(tmp_path / "none.yml"))


def test_no_schema_beside_it(tmp_path):
    with pytest.raises(PolicyInvalid, match=r"cannot read .*xid_policy\.schema\.json"):
        load_policy(str(write(tmp_path, lambda raw: None)))


@pytest.mark.parametrize(
    "code, severity, sxid, kept",
    [
        (79, None, False, True),
        (13, None, False, False),
        (145, "fatal", False, True),
        (145, "nonfatal", False, False),
        (145, None, False, False),
        (20034, "fatal", True, True),
        (20034, "nonfatal", True, False),
        (20034, None, True, True),
    ],
)
def test_what_one_line_keeps_from_service(code, severity, sxid, kept):
    """S17: the line's own word counts; a switch that does not say how bad it is needs a person first."""
    assert POLICY.keeps_from_service({"code": code, "severity": severity, "sxid": sxid}) is kept
