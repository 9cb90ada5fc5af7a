# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Expressions of the role `incident` that decide who is touched."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
import yaml
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.keys import ENDED_OPEN_STATES as ENDED
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.times import iso
from expressions import evaluated

ROLE = Path(__file__).resolve().parents[3] / "roles/incident"
TASKS = ROLE / "tasks"
VARS = yaml.safe_load((ROLE / "vars/main.yml").read_text())
QUARANTINES = VARS["incident_quarantines"]


def value(name, **given):
    """A variable of the role, from those that it is made of."""
    return evaluated(VARS[name], incident_quarantines=QUARANTINES, **given)


def kubernetes(stage):
    """The tasks of a stage on Kubernetes."""
    return yaml.safe_load((TASKS / "orchestrator/kubernetes" / f"{stage}.yml").read_text())


@pytest.mark.parametrize(
    "action, scope, pods",
    [
        ("quarantine_node", "node", "node"),
        ("quarantine_gpu", "gpu", "gpu"),
        pytest.param("quarantine_gpu", "node", "gpu", id="S11: an alert that does not say which GPU"),
    ],
)
def test_whose_pods_are_evicted(action, scope, pods):
    assert value("incident_drained", incident_verdict={"action": action, "scope": scope}) == pods


def test_reconcile_touches_no_node_for_what_has_ended_meanwhile():
    """S4, S6: a node that was opted out, or was made again, has its incident ended by being looked for."""
    keeping = yaml.safe_load((TASKS / "open_unfinished.yml").read_text())[-1]["ansible.builtin.set_fact"]["incident_opened"]
    answers = [
        {"incidents": [{"id": "a", "open": False}, {"id": "b", "open": True}]},
        {"skipped": True},
        {"incidents": [{"id": "b", "open": True}]},
    ]
    assert [one["id"] for one in evaluated(keeping, incident_answer={"results": answers})] == ["b"]


@pytest.mark.parametrize("most, last", [(1, 8), (2, 16), (9, 20), pytest.param(0, 20, id="no limit")])
def test_reconcile_asks_room_for_the_oldest_and_not_for_all_of_a_storm(most, last):
    """Each node with all of its incidents, since whoever looks after what is overdue has to get to its end."""
    waiting = [f"{node}-{number}" for number in (1, 2) for node in range(1, 21)]
    now = {"incidents": [{"id": one, "node": one.partition("-")[0]} for one in [*reversed(waiting), "3-0"]], "waiting": waiting}
    parts = {"incident_waiting": value("incident_waiting", incident_now=now)}
    parts["incident_next_nodes"] = value("incident_next_nodes", incident_max_running=most, **parts)
    assert value("incident_next", **parts) == [one for one in waiting if int(one.partition("-")[0]) <= last]


@pytest.mark.parametrize("reconcile, spent, may", [(True, 0, True), (True, 239, True), (True, 241, False), (False, 600, True)])
def test_a_reconcile_that_has_been_at_work_for_long_begins_nothing(reconcile, spent, may):
    """The next one does, which cannot start before, and looks first at what is over time."""
    given = {"incident_reconcile": reconcile, "incident_began_at": str(BEGAN.timestamp()), "now": lambda: BEGAN + timedelta(seconds=spent)}
    assert value("incident_may_begin", **given) is may


def test_nobody_waits_for_a_node_that_its_own_run_has_not_begun():
    """Whoever waits keeps a fork: what runs already has to have the first ones."""
    work = [
        ("a", "fenced_waiting", 4),
        ("b", "contained", 1),
        ("b", "running", 5),
        ("c", "fenced_waiting", 3),
        ("d", "running", 2),
        (None, "held_for_human", 0),
    ]
    ordered = by_host([(host, state, second, "x") for host, state, second in work])
    assert [(host, len(incidents)) for host, incidents in ordered] == [("d", 1), ("b", 2), ("c", 1), ("a", 1)]


def test_nobody_waits_for_a_node_that_is_behind_it_in_the_play():
    """The ledger gives room by when the time stood still, then by the id; what has ended on a node has no part in it."""
    work = [
        ("a", "fenced_waiting", 3, "2"),
        ("b", "fenced_waiting", 3, "1"),
        ("c", "contained", 1, "3"),
        ("c", "fenced_waiting", 4, "5"),
        ("c", "fenced_waiting", 5, "4"),
        ("d", "fenced_waiting", 2, "6"),
    ]
    assert [(host, "".join(one["id"] for one in incidents)) for host, incidents in by_host(work)] == [
        ("d", "6"),
        ("b", "1"),
        ("a", "2"),
        ("c", "543"),
    ]


def by_host(work):
    opened = [
        {"host": host, "state": state, "clock_at": f"2026-01-01T00:00:0{second}.000Z", "id": name, "resume": "verify" * (state in ENDED)}
        for host, state, second, name in work
    ]
    parts = {name: value(name, incident_opened=opened) for name in ("incident_host_groups", "incident_running_hosts")}
    return value("incident_by_host", **parts)


@pytest.mark.parametrize(
    "states, begun, left, leaves",
    [
        (["fenced_waiting"], [], [], True),
        (["fenced_waiting"], [0], [0], False),
        pytest.param(["fenced_waiting", "fenced_waiting"], [1], [1], False, id="another run has taken up the first"),
        pytest.param(["running", "fenced_waiting"], [], [0], False, id="S16: one is over time, so that the node has no room for it"),
        pytest.param(["contained", "fenced_waiting"], [], [0], True, id="to look again has time, and would take room from who waits"),
        (["contained", "fenced_waiting"], [1], [0, 1], False),
    ],
)
def test_who_goes_on_once_it_has_asked_for_room(states, begun, left, leaves):
    """What another run has begun, or ended, while this one waited would be locked for nothing, beside all that the ledger counts."""
    work = [{"id": number, "state": state} for number, state in enumerate(states)]
    known = {"incident_begun_ids": value("incident_begun_ids", incident_beginning={"incident_ids": begun})}
    known["incident_waiting_ids"] = value("incident_waiting_ids", incident_work=work)
    *_asking, going_on, leaving = yaml.safe_load((TASKS / "room_or_leave.yml").read_text())
    work = evaluated(going_on["ansible.builtin.set_fact"]["incident_work"], incident_work=work, **known)
    assert [one["id"] for one in work] == left
    assert evaluated("{{ %s }}" % leaving["when"], incident_work=work, **known) is leaves


def test_who_may_ask_no_more_has_begun_nothing():
    assert value("incident_begun_ids", incident_beginning={"skipped": True}) == []


NOW, THEN = "2026-01-01T02:00:00Z", "2026-01-01T01:00:00Z"


@pytest.mark.parametrize(
    "action, suspects, pids",
    [
        pytest.param("kill", [{"pid": 7, "start_time": THEN}], [{"pid": 7, "start_ticks": 70}], id="with the start that was read"),
        pytest.param("kill", [{"pid": 7, "start_time": THEN}, {"pid": 9, "start_time": THEN}], [{"pid": 7, "start_ticks": 70}], id="gone"),
        pytest.param("kill", [{"pid": 7, "start_time": None}], [], id="one that was gone when it was diagnosed: the pid is another's"),
        pytest.param("quarantine_gpu", [{"pid": 7, "start_time": THEN}], [], id="a quarantine means every holder"),
    ],
)
def test_which_suspects_are_touched(action, suspects, pids):
    """S10: a pid alone names nobody."""
    processes = [{"pid": 7, "start_ticks": 70, "start_time": THEN, "name": "train"}, {"pid": 8, "start_ticks": 80, "start_time": NOW}]
    reading = {"gpus": [{"processes": processes[:1]}, {"processes": processes[1:]}]}
    verdict = {"action": action, "suspects": suspects}
    assert value("incident_suspects", incident_verdict=verdict, incident_reading=reading) == pids
    stored = {"stages": {"diagnose": {"data": {"evidence": {"info": reading}}}}}
    assert value("incident_suspects", incident_verdict=verdict, incident_step={"incident": stored}) == pids, (
        "when the run is taken up again"
    )


@pytest.mark.parametrize(
    "given, means",
    [(None, False), (False, False), ("false", False), ("no", False), ("0", False), (True, True), ("true", True), ("yes", True)],
)
def test_a_word_on_the_command_line_is_no_truth(given, means):
    """`-e gpuops_reconcile=false` is a text, which Jinja would take for yes, and a run that names its node would do something else."""
    expression = yaml.safe_load((ROLE / "defaults/main.yml").read_text())["incident_reconcile"]
    assert evaluated(expression, **({} if given is None else {"gpuops_reconcile": given})) is means


@pytest.mark.parametrize(
    "answer, fails",
    [
        ({"changed": True}, False),
        pytest.param({"failed": True, "msg": "no claims here", "error_kind": "device_not_taintable"}, False, id="then the node is tainted"),
        pytest.param({"failed": True, "msg": "429", "error_kind": "api_unavailable", "in_force": False}, False, id="only devices are away"),
        pytest.param({"failed": True, "msg": "429", "error_kind": "api_unavailable", "in_force": True}, True, id="a rule stands"),
        pytest.param({"failed": True, "msg": "no answer", "error_kind": "api_unavailable"}, False, id="away before anything was asked"),
        pytest.param({"failed": True, "msg": "no room", "error_kind": "breaker_tripped"}, True, id="refused"),
        pytest.param({"failed": True, "msg": "KeyError: 'items'"}, True, id="what nobody expected"),
    ],
)
@pytest.mark.parametrize("stage", ["taint", "verify"])
def test_a_device_that_is_not_tainted_is_no_success(stage, answer, fails):
    assert (
        evaluated(
            "{{ %s }}" % kubernetes(stage)[0]["failed_when"],
            incident_device=answer,
            incident_not_alone=value("incident_not_alone", incident_device=answer),
        )
        is fails
    )


@pytest.mark.parametrize("file", [TASKS / "detect.yml", ROLE.parent / "mig/tasks/lock.yml"])
def test_a_run_has_a_name_of_its_own(file):
    """Of 2**32. Written as a power it would be one of 32: a filter binds more tightly."""
    assert re.findall(r"format\(([^)]*)\)", file.read_text()) == ["4294967296 | random"]


@pytest.mark.parametrize(
    "answer, node",
    [
        pytest.param({"actions": []}, False, id="its rule stands"),
        pytest.param({"actions": ["create"]}, True, id="it has none"),
        pytest.param({"failed": False, "error_kind": "api_unavailable"}, True, id="nobody can tell"),
    ],
)
def test_verify_asks_for_the_node_s_taint_where_the_gpu_has_none(answer, node):
    """As when its devices could not be read while it was tainted, and can be by now."""
    when = kubernetes("verify")[1]["when"].replace("is skipped", "== 'skipped'")
    assert evaluated("{{ %s }}" % when, incident_device=answer, ansible_check_mode=False) is node


BEGAN = datetime(2026, 1, 1, 2, 0, 0, 250000)


def seconds_left(seconds, spent):
    began = {
        "incident_step": {"seconds": seconds, "incident": {"stages": {"taint": {"started_at": BEGAN.isoformat("T", "milliseconds") + "Z"}}}}
    }
    parts = {**began, "now": lambda utc: BEGAN + timedelta(seconds=spent)}
    return value("incident_seconds_left", incident_stage_began=value("incident_stage_began", incident_stage="taint", **parts), **parts)


@pytest.mark.parametrize("spent, left", [(0, 60), (31.5, 28.5), (70, 0)])
def test_what_is_left_of_a_stage(spent, left):
    assert seconds_left(60, spent) == left


@pytest.mark.parametrize(
    "stage, seconds, limits, ends",
    [
        pytest.param("verify", 60, {}, 60, id="no task begins anew"),
        pytest.param("taint", 120, {}, 120, id="no task begins anew in the taint either"),
        pytest.param("taint", 30, {}, 45, id="S16: the node has its floor, whatever the GPU has spent"),
        pytest.param("taint", 30, {"taint_floor_seconds": "20"}, 35, id="S16: which is configured"),
    ],
)
def test_the_tasks_of_a_stage_share_its_time(stage, seconds, limits, ends):
    """An API that hangs costs each of them all that it is given."""
    spent = 0
    for task in kubernetes(stage):
        for module, options in task.items():
            if module.startswith("gpuops.") and "keep_cordon" not in options:  # then the GPU needs no node to stand in
                given = {
                    "incident_step": {"seconds": seconds},
                    "incident_seconds_left": seconds_left(seconds, spent),
                    "incident_limits": limits,
                }
                spent += evaluated(options["deadline_seconds"], **given)
    assert spent == ends


@pytest.mark.parametrize(
    "answer, fails, reason",
    [
        pytest.param({"changed": True}, False, "", id="given back"),
        pytest.param({"skipped": True}, False, "", id="it did not stand in"),
        pytest.param(
            {"msg": "429", "error_kind": "api_unavailable"}, False, "the node is tainted still, beside its GPU: 429", id="not now"
        ),
        pytest.param({"msg": "taken", "error_kind": "lock_lost"}, True, None, id="S5: not ours any more"),
        pytest.param({"msg": "full", "error_kind": "ledger_unavailable"}, True, None, id="S19: nothing can be kept"),
    ],
)
def test_a_node_that_is_not_given_back_is_a_reason(answer, fails, reason):
    """The GPU is out by its rule all the same."""
    _device, back, _node, kept = kubernetes("taint")
    assert evaluated("{{ %s }}" % back["failed_when"], incident_given_back=answer) is fails
    if not fails:
        outcome = kept["ansible.builtin.set_fact"]["incident_outcome"]
        assert outcome["outcome"] == "ok"
        assert (evaluated(outcome["reason"], incident_device={"actions": []}, incident_given_back=answer) or "") == reason


def test_rules_that_cannot_be_read_keep_no_node_tainted():
    """Each task of the undoing may fail, and ends it then."""
    modules = [next(key.rpartition(".")[2] for key in task if key.startswith("gpuops.")) for task in kubernetes("undo")]
    assert modules == ["node_taint", "device_taint"]


@pytest.mark.parametrize(
    "elsewhere, file, given_back",
    [
        pytest.param({"token": 7}, {"error_kind": "lock_held"}, True, id="nobody is to wait for it to lapse"),
        pytest.param({"token": 7}, {"timedout": {}}, False, id="a node that hangs is worked on without the file"),
        pytest.param({"token": 7}, {"error_kind": "state_dir", "msg": "full"}, False, id="so is one whose disk is full"),
        pytest.param({}, {"error_kind": "lock_held"}, False, id="the file is all"),
    ],
)
def test_a_lock_that_is_half_taken_is_given_back(elsewhere, file, given_back):
    [taking] = [task for task in yaml.safe_load((TASKS / "lock.yml").read_text()) if "rescue" in task]
    release = taking["rescue"][0]
    assert release["gpuops.remediation.node_lock"]["state"] == "released"
    known = {"incident_lock": elsewhere, "incident_node_lock": file}
    known["incident_lockless_why"] = value("incident_lockless_why", **known)
    known["incident_keeps_no_lock"] = value("incident_keeps_no_lock", **known)
    assert all(evaluated("{{ %s }}" % when, **known) for when in release["when"]) is given_back


@pytest.mark.parametrize(
    "work, takes",
    [
        pytest.param([("running", 1), ("running", -1)], True, id="one of them is over time"),
        pytest.param([("running", 0)], True, id="as the ledger has it"),
        pytest.param([("running", 1)], False, id="it has time left"),
        pytest.param([("contained", -1), ("fenced_waiting", -1)], False, id="has ended, or waits"),
    ],
)
def test_the_ledger_s_lock_is_taken_only_to_end_something(work, takes):
    """S5: a run that is at work on the node would lose it by the higher token."""
    incidents = [
        {"state": state, "deadline_at": iso((BEGAN + timedelta(seconds=left)).replace(tzinfo=timezone.utc))} for state, left in work
    ]
    taking = yaml.safe_load((TASKS / "lock_overdue.yml").read_text())[0]
    assert taking["gpuops.remediation.node_lock"]["backend"] == "ledger"
    assert evaluated("{{ %s }}" % taking["when"], incident_work=incidents, now=lambda utc: BEGAN) is takes


@pytest.mark.parametrize("given, reconcile, seconds", [({}, False, 60), ({}, True, 30), ({"gpuops_room_wait_seconds": 300}, False, 300)])
def test_who_waits_for_room_soon_gives_its_slot_back(given, reconcile, seconds):
    """Runs that wait in all slots of an AWX keep out the reconcile that would go on with what they wait for."""
    defaults = yaml.safe_load((ROLE / "defaults/main.yml").read_text())
    assert evaluated(defaults["incident_room_wait_seconds"], incident_reconcile=reconcile, **given) == seconds
    assert (
        yaml.safe_load((ROLE / "meta/argument_specs.yml").read_text())["argument_specs"]["main"]["options"]["incident_room_wait_seconds"][
            "default"
        ]
        == 60
    )
