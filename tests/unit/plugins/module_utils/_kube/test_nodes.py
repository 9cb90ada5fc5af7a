# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._errors import RemediationError
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.errors import (
    ApiUnavailable,
    Conflict,
    HumanOverride,
    NodeGone,
    NodeRecreated,
    NotManaged,
)
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.nodes import NodeWriter, side_by_side, summary
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.permit import Incident, Permit
from kube_fakes import Clock, FakeApi, FakeLedger

PATH = "/api/v1/nodes/gpu-1"
OURS = {"key": "gpu.unhealthy", "value": "true", "effect": "NoSchedule"}
THEIRS = {"key": "maintenance", "effect": "NoExecute", "timeAdded": "2026-01-02T03:04:05Z"}
TARGET = "node/gpu-1/taint/gpu.unhealthy:NoSchedule"


class World:
    """One node, and whoever writes it."""

    def __init__(self, *taints, **spec):
        self.clock = Clock()
        self.api = FakeApi(self.clock)
        self.ledger = FakeLedger()
        self.put(*taints, **spec)

    def put(self, *taints, uid="u1", labels=None, incidents=None, **spec):
        annotations = {"gpuops.remediation/incidents": incidents} if incidents else {}
        metadata = {"name": "gpu-1", "uid": uid, "labels": labels or {}, "annotations": annotations}
        self.api.put(PATH, {"metadata": metadata, "spec": {"taints": list(taints), **spec}})

    def writer(self, incident="a", uid=None, check_mode=False, renew_lock=None):
        on_behalf = Incident(incident, self.ledger) if incident else None
        return NodeWriter(self.api, Permit("gpu-1", on_behalf, renew_lock), self.clock.deadline(), uid, check_mode)

    def taints(self):
        return self.api.objects[PATH]["spec"].get("taints", [])

    def incidents(self):
        return self.api.objects[PATH]["metadata"].get("annotations", {}).get("gpuops.remediation/incidents")

    def also_write(self, how, times=1, method="PATCH"):
        """Somebody else writes just before our next writes arrive."""
        left = [times]

        def before(asked, path, body):
            if asked == method and left[0]:
                left[0] -= 1
                how()

        self.api.before = before

    def steps(self):
        return [step[0] for step in self.ledger.asked]


def test_everything_is_asked_before_the_write_in_order():
    """S4, S5, S8, S9: ledger, lock, slot, record; then the write; then, read again, applied."""
    world = World(THEIRS)
    asked = world.ledger.asked
    world.api.before = lambda method, path, body: asked.append((method,)) and None
    outcome = world.writer(renew_lock=lambda: asked.append(("lock",))).present([OURS])
    assert world.steps() == ["GET", "authorize", "lock", "take_slot", "intend", "PATCH", "GET", "applied"]
    assert outcome.result(lambda node: None)["changed"]
    assert (world.taints(), world.incidents()) == ([THEIRS, OURS], '["a"]')
    assert (world.ledger.rows[0].before, world.ledger.rows[0].after) == (None, OURS)


def test_only_the_name_is_forgotten():
    """S6, S7: what a human did stays as it is, and so does what other incidents wrote."""
    world = World(THEIRS, incidents='["b", "a"]', unschedulable=True)
    before = world.api.objects[PATH]["spec"]
    assert world.writer().forget().steps
    assert (world.api.objects[PATH]["spec"], world.incidents()) == (before, '["b"]')
    assert world.ledger.asked == [("authorize", "a", "forget")]
    assert not world.writer().forget().steps
    assert (len(world.api.writes()), len(world.ledger.asked)) == (1, 1)


def test_again_writes_nothing():
    world = World()
    world.writer().present([OURS])
    world.ledger.asked.clear()
    assert not world.writer().present([OURS]).steps
    assert world.steps() == []
    assert len(world.api.writes()) == 1


@pytest.mark.parametrize("check", ["authorize", "take_slot", "intend"])
def test_a_refusal_writes_nothing(check):
    """S4, S8, S9, S19."""
    world = World()
    world.ledger.refuse[check] = RemediationError("no")
    with pytest.raises(RemediationError, match="no"):
        world.writer().present([OURS])
    assert world.api.writes() == []


def test_a_lost_lock_writes_nothing():
    """S5."""

    def lost():
        raise RemediationError("lost")

    world = World()
    with pytest.raises(RemediationError, match="lost"):
        world.writer(renew_lock=lost).present([OURS])
    assert world.api.writes() == []
    assert world.steps() == ["authorize"]


def test_a_concurrent_taint_survives():
    """S7: the server refuses our write, and we start again from what is there."""
    world = World()
    world.also_write(lambda: world.put(THEIRS))
    world.writer().present([OURS])
    assert world.taints() == [THEIRS, OURS]
    assert len(world.ledger.rows) == 1


def test_endless_conflicts_end_at_the_deadline():
    world = World()
    world.also_write(lambda: world.put(THEIRS), times=10_000)
    with pytest.raises(Conflict):
        world.writer().present([OURS])
    assert 29 < world.clock.time <= 31
    assert len(world.api.writes()) < 30


@pytest.mark.parametrize("method", ["GET", "PATCH"])
def test_a_server_in_trouble_is_asked_again(method):
    world = World()
    answers = [ApiUnavailable("503"), ApiUnavailable("429", retry_after=7.0), ApiUnavailable("no answer")]

    def before(asked, path, body):
        if asked == method and answers:
            raise answers.pop()

    world.api.before = before
    world.writer().present([OURS])
    assert world.taints() == [OURS]
    assert 7 <= world.clock.time < 10


def test_a_server_that_stays_away():
    world = World()

    def before(method, path, body):
        raise ApiUnavailable("no answer")

    world.api.before = before
    with pytest.raises(ApiUnavailable):
        world.writer().present([OURS])
    assert world.clock.time == pytest.approx(30)


def test_a_write_whose_answer_was_lost_is_not_made_twice():
    world = World()

    def lose(asked, path, body):
        if asked == "PATCH" and not world.taints():
            world.put(OURS, incidents='["a"]')
            raise ApiUnavailable("connection reset")

    world.api.before = lose
    world.writer().present([OURS])
    assert world.taints() == [OURS]
    assert world.ledger.rows[0].status == "applied"


def test_killed_between_write_and_commit():
    """S9: the resumed run finds its taint, and `before` comes from the row."""
    world = World(THEIRS)
    world.ledger.refuse["applied"] = RemediationError("killed")
    with pytest.raises(RemediationError, match="killed"):
        world.writer().present([OURS])
    world.ledger.refuse.clear()
    world.writer().present([OURS])
    assert (world.ledger.rows[0].status, world.ledger.rows[0].before) == ("applied", None)
    world.writer().release()
    assert (world.taints(), world.incidents()) == ([THEIRS], None)


@pytest.mark.parametrize(
    "change, error",
    [
        pytest.param(lambda world: world.api.objects.clear(), NodeGone, id="deleted"),
        pytest.param(lambda world: world.put(uid="u2"), NodeRecreated, id="S6: recreated"),
        pytest.param(lambda world: world.put(labels={"gpuops.remediation/managed": "false"}), NotManaged, id="S4: opted out"),
    ],
)
@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_not_our_node(change, error, when):
    world = World()
    if when == "before":
        change(world)
    else:
        world.also_write(lambda: change(world))
    with pytest.raises(error):
        world.writer(uid="u1").present([OURS])
    assert world.api.objects == {} or world.taints() == []


@pytest.mark.parametrize("now", [[], [{**OURS, "value": "rack-work"}]])
def test_a_human_wins(now):
    """S6: our taint was removed, or replaced, while the incident is open."""
    world = World()
    world.writer().present([OURS])
    world.put(*now)
    with pytest.raises(HumanOverride) as raised:
        world.writer().present([OURS])
    assert raised.value.failure()["error_kind"] == "human_override"
    assert world.taints() == now


def test_a_human_wins_at_once():
    """S6: gone already when we read again."""
    world = World()
    writer = world.writer()
    world.api.before = lambda method, path, body: world.put() if method == "GET" and world.taints() else None
    with pytest.raises(HumanOverride):
        writer.present([OURS])
    assert len(world.api.writes()) == 1


def test_new_evidence_may_taint_again():
    """S6: for another incident the human's decision was not made."""
    world = World()
    world.writer("a").present([OURS])
    world.put()
    world.writer("b").present([OURS])
    assert world.taints() == [OURS]


@pytest.mark.parametrize("order", ["ab", "ba"])
@pytest.mark.parametrize("foreign", [[], [{**OURS, "value": "rack-work", "timeAdded": "t"}], [OURS]])
def test_two_incidents_released_in_both_orders(order, foreign):
    """S9: the taint goes with the last owner, back to what was there before the first."""
    world = World(*foreign, THEIRS)
    world.writer("a").present([OURS])
    world.writer("b").present([OURS])
    assert world.incidents() == '["a", "b"]'
    world.writer(order[0]).release()
    assert OURS in world.taints()
    assert world.incidents() == f'["{order[1]}"]'
    world.writer(order[1]).release()
    assert (world.taints(), world.incidents()) == ([*foreign, THEIRS], None)
    assert [row.status for row in world.ledger.rows] == ["reverted"]
    writes = len(world.api.writes())
    assert not world.writer(order[1]).release().steps
    assert len(world.api.writes()) == writes


def test_an_incident_that_joins_during_the_release_keeps_its_taint():
    """S9: the owners are asked again after a conflict."""
    world = World()
    world.writer("a").present([OURS])

    def join():
        row = world.ledger.intend("b", TARGET, None, OURS)
        world.put(OURS, incidents='["a", "b"]')
        assert row.owners == ["b"]

    world.also_write(join)
    world.writer("a").release()
    assert (world.taints(), world.incidents()) == ([OURS], '["b"]')
    assert world.ledger.rows[0].status == "applied"


def test_two_incidents_released_at_once():
    """S9: the other one was the last, and has undone it while we were on our way."""
    world = World()
    for incident in "ab":
        world.writer(incident).present([OURS])
    world.also_write(lambda: world.writer("b").release())
    world.writer("a").release()
    assert (world.taints(), world.incidents()) == ([], None)
    assert world.ledger.rows[0].status == "reverted"


def test_release_is_asked_for_too_but_needs_no_slot():
    """S8: releases still work when the breaker has tripped."""
    world = World()
    world.writer().present([OURS])
    world.ledger.asked.clear()
    world.ledger.refuse["take_slot"] = RemediationError("tripped")
    world.writer().release()
    assert world.taints() == []
    assert "take_slot" not in world.steps()
    assert world.ledger.asked[0] == ("authorize", "a", "release")


def test_killed_during_release():
    world = World()
    world.writer().present([OURS])
    world.ledger.refuse["reverted"] = RemediationError("killed")
    with pytest.raises(RemediationError, match="killed"):
        world.writer().release()
    world.ledger.refuse.clear()
    world.writer().release()
    assert (world.taints(), world.ledger.rows[0].status) == ([], "reverted")


def test_release_without_a_record_touches_no_taint():
    """S7: what the ledger does not know as ours is not ours."""
    world = World(OURS)
    world.put(OURS, incidents='["a"]')
    world.writer("a").release()
    assert (world.taints(), world.incidents()) == ([OURS], None)


@pytest.mark.parametrize("admin_before", [False, True])
def test_cordon(admin_before):
    """S6: our cordon is a change like any other; an admin's stays."""
    world = World(**({"unschedulable": True} if admin_before else {}))
    world.writer().present(cordon=True)
    assert world.api.objects[PATH]["spec"]["unschedulable"]
    world.writer().release()
    assert world.api.objects[PATH]["spec"].get("unschedulable", False) is admin_before


def test_the_taint_alone_is_given_back():
    """The cordon is undone by the release; until then the node says whose it is."""
    world = World()
    world.writer().present([OURS])
    world.writer().present(cordon=True)
    world.writer().release(keep_cordon=True)
    assert (world.api.objects[PATH]["spec"], world.incidents()) == ({"taints": [], "unschedulable": True}, '["a"]')
    world.writer().release()
    assert (world.api.objects[PATH]["spec"].get("unschedulable", False), world.incidents()) == (False, None)


PASSING = {"key": "gpuops.remediation/mig-change", "effect": "NoSchedule"}
PASSING_TARGET = "node/gpu-1/taint/gpuops.remediation/mig-change:NoSchedule"


@pytest.mark.parametrize("before", [[], [PASSING]])
def test_a_taint_that_passes_is_lifted_and_the_quarantine_stays(before):
    """S9: also where somebody had left that taint there, which the change that is done now has made up for."""
    world = World(*before, THEIRS)
    world.writer().present([OURS])
    world.writer().present([PASSING])
    world.writer().lift([PASSING])
    assert (world.taints(), world.incidents()) == ([THEIRS, OURS], '["a"]')
    assert {row.target: row.status for row in world.ledger.rows} == {TARGET: "applied", **({} if before else {PASSING_TARGET: "reverted"})}
    assert not world.writer().lift([PASSING]).steps
    world.writer().release()
    assert (world.taints(), world.incidents()) == ([THEIRS], None)


def test_the_name_goes_with_a_taint_that_passes_where_nothing_else_was_changed():
    world = World()
    world.writer().present([PASSING])
    world.writer().lift([PASSING])
    assert (world.taints(), world.incidents()) == ([], None)


def test_a_taint_that_passes_stays_as_long_as_another_incident_wants_it():
    world = World()
    world.writer("a").present([PASSING])
    world.writer("b").present([PASSING])
    world.writer("a").lift([PASSING])
    assert (world.taints(), world.incidents()) == ([PASSING], '["b"]')
    world.writer("b").lift([PASSING])
    assert (world.taints(), world.incidents()) == ([], None)


def test_without_an_incident_a_taint_is_lifted_whoever_put_it_there():
    world = World(PASSING)
    world.writer(None).lift([PASSING])
    assert world.taints() == []


def test_without_a_cordon_the_name_goes_with_the_taint():
    world = World()
    world.writer().present([OURS])
    world.writer().release(keep_cordon=True)
    assert (world.taints(), world.incidents()) == ([], None)


def test_a_taint_never_writes_the_cordon():
    """S6: an admin's cordon during the incident survives the release."""
    world = World()
    world.writer().present([OURS])
    world.also_write(lambda: world.put(OURS, incidents='["a"]', unschedulable=True))
    world.writer().release()
    assert world.api.objects[PATH]["spec"] == {"taints": [], "unschedulable": True}


@pytest.mark.parametrize("state", ["present", "release", "absent"])
def test_check_mode_plans_the_same_and_writes_nothing(state):
    def run(world, check_mode):
        writer = world.writer("a" if state != "absent" else None, check_mode=check_mode)
        return writer.release() if state == "release" else getattr(writer, state)([OURS])

    predicted, real = World(THEIRS), World(THEIRS)
    for world in (predicted, real):
        if state != "present":
            world.writer().present([OURS])
    predicted.ledger.check_mode = True
    writes, rows = len(predicted.api.writes()), [vars(row).copy() for row in predicted.ledger.rows]
    check, done = run(predicted, True), run(real, False)
    assert len(predicted.api.writes()) == writes
    assert [vars(row) for row in predicted.ledger.rows] == rows
    assert check.steps == done.steps
    assert (check.after.taints, check.after.incidents) == (done.after.taints, done.after.incidents)


def test_check_mode_says_what_would_be_refused():
    """S4, S8."""
    world = World()
    world.ledger.check_mode = True
    world.ledger.refuse["take_slot"] = RemediationError("tripped")
    with pytest.raises(RemediationError, match="tripped"):
        world.writer(check_mode=True).present([OURS])


def test_side_by_side_has_a_result_for_each():
    world = World()

    def write(node):
        if node["name"] == "gpu-2":
            raise NodeGone("gone")
        return world.writer().present([OURS])

    result = summary(side_by_side([{"name": "gpu-1"}, {"name": "gpu-2"}], write))
    assert [(node["name"], node["changed"], node["error_kind"]) for node in result["nodes"]] == [
        ("gpu-1", True, None),
        ("gpu-2", False, "node_gone"),
    ]
    assert (result["changed"], result["error_kind"], result["msg"]) == (True, "node_gone", "1 of 2 nodes failed: gpu-2: gone")
    assert [diff["after_header"] for diff in result["diff"]] == ["gpu-1"]
    assert "msg" not in summary([])
