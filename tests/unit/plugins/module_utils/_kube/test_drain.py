# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._errors import RemediationError
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.drain import Drain, result_of
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.errors import (
    ApiUnavailable,
    Conflict,
    EvictIncomplete,
    Forbidden,
    HumanOverride,
    NodeGone,
    NodeRecreated,
    NotFound,
    NotManaged,
)
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.evictions import Selection
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.nodes import NodeWriter
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.permit import Incident, Permit
from kube_fakes import Clock, FakeApi, FakeLedger, pod

NODE = "/api/v1/nodes/gpu-1"
PODS = "/api/v1/namespaces/default/pods"
OURS = {"key": "gpu.unhealthy", "value": "true", "effect": "NoSchedule"}


class World:
    """A tainted node with pods. What an eviction does is up to `evictions`, by pod: an error to raise, or seconds until the pod is gone."""

    def __init__(self, *pods, seconds=60):
        self.clock = Clock()
        self.api = FakeApi(self.clock)
        self.api.before = self.answer
        self.ledger = FakeLedger()
        self.deadline = self.clock.deadline(seconds)
        self.evictions = {}
        self.asked = []  # (time, pod) of each eviction
        self.ends = {}  # UID of a terminating pod: when it is gone
        self.events = []  # (time, what happens by itself then)
        self.lock_renewed = []
        self.put_node()
        for each in pods:
            self.put(each)

    def put_node(self, uid="u1", taints=(OURS,), labels=None, **spec):
        self.api.put(NODE, {"metadata": {"name": "gpu-1", "uid": uid, "labels": labels or {}}, "spec": {"taints": list(taints), **spec}})

    def put(self, thing):
        thing["spec"]["nodeName"] = thing["spec"]["nodeName"] or "gpu-1"
        self.api.put(f"{PODS}/{thing['metadata']['name']}", thing)

    def at(self, time, event):
        self.events.append((time, event))

    def answer(self, method, path, body):
        for event in [event for event in self.events if event[0] <= self.clock.time]:
            self.events.remove(event)
            event[1]()
        for where, thing in list(self.api.objects.items()):
            if self.ends.get(thing["metadata"]["uid"], float("inf")) <= self.clock.time:
                del self.api.objects[where]
        if path.endswith("/eviction"):
            return self.evict(path, body)
        return None

    def evict(self, path, body):
        name = body["metadata"]["name"]
        self.asked.append((self.clock.time, name))
        thing = self.api.objects.get(path.removesuffix("/eviction"))
        if thing is None:
            raise NotFound("gone")
        if thing["metadata"]["uid"] != body["deleteOptions"]["preconditions"]["uid"]:
            raise Conflict("another UID")
        fate = self.evictions.get(name, 0)
        if callable(fate):
            fate = fate()
        if isinstance(fate, Exception):
            raise fate
        self.put(
            {**thing, "metadata": {**thing["metadata"], "deletionTimestamp": "2026-11-30T00:00:00Z", "deletionGracePeriodSeconds": 30}}
        )
        self.ends[thing["metadata"]["uid"]] = self.clock.time + fate
        return {}

    def drain(self, selection=None, incident=None, check_mode=False, holders=None):
        permit = Permit("gpu-1", Incident(incident, self.ledger) if incident else None, lambda: self.lock_renewed.append(self.clock.time))
        writer = NodeWriter(self.api, permit, self.deadline, "u1", check_mode)
        return Drain(writer, selection or Selection("node"), "gpuops-system", holders)


def names(pods):
    return sorted(each["name"] for each in pods)


def budget(text="The disruption budget web needs 2 healthy pods and has 2 currently"):
    return ApiUnavailable("429", causes=[f"DisruptionBudget: {text}"])


class Claims:
    """What the claims say, look by look; the last answer stays."""

    def __init__(self, *answers):
        self.answers = list(answers)

    def uids(self, node, pods):
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def test_claims_say_whose_the_gpu_is():
    """S11: nobody else's pods go, whatever they request; a pod that joins a claim later does."""
    world = World(pod("a"), pod("b"), pod("c", limits={"nvidia.com/gpu": "1"}))
    report = world.drain(Selection("gpu"), holders=Claims({"uid-a": False}, {"uid-a": False, "uid-b": False})).run()
    assert (names(report["evicted"]), report["attribution"]) == (["a", "b"], "claims")
    assert world.drain(Selection("gpu"), holders=Claims({})).look()["evicted"] == []


@pytest.mark.parametrize("tolerates", [True, False])
def test_who_came_later_goes_unless_the_claim_tolerates_the_device(tolerates):
    """It was on its way when the device was tainted, or it would come again and again."""
    world = World(pod("a"), pod("b", tolerations=[{"operator": "Exists"}]))
    world.evictions["a"] = 3
    world.at(1, lambda: world.put(pod("late", tolerations=[{"operator": "Exists"}])))
    drain = world.drain(Selection("gpu"), holders=Claims({"uid-a": False}, {"uid-a": False, "uid-late": tolerates}))
    if tolerates:
        with pytest.raises(EvictIncomplete, match="it tolerates the device's taint"):
            drain.run()
    else:
        assert names(drain.run()["evicted"]) == ["a", "late"]


def test_without_claims_it_is_a_guess():
    world = World(pod("a"), pod("c", limits={"nvidia.com/gpu": "1"}))
    report = world.drain(Selection("gpu"), holders=Claims(None)).run()
    assert (names(report["evicted"]), report["attribution"]) == (["c"], "requests")
    assert world.drain(Selection("node"), holders=Claims({"uid-a": False})).run()["attribution"] == "node"


def test_what_was_certain_is_never_guessed_again():
    world = World(pod("a"), pod("c", limits={"nvidia.com/gpu": "1"}))
    world.evictions["a"] = 20
    with pytest.raises(EvictIncomplete, match="no longer be told"):
        world.drain(Selection("gpu"), holders=Claims({"uid-a": False}, None)).run()
    assert [name for _time, name in world.asked] == ["a"]


def test_evicts_and_waits_until_the_pods_are_gone():
    world = World(pod("a"), pod("b"), pod("ds", owner="DaemonSet"), pod("bare", owner=None))
    world.evictions["a"] = 20
    report = world.drain().run()
    assert (names(report["evicted"]), report["left"], names(report["kept"])) == (["a", "b"], [], ["bare"])
    assert report["changed"]
    assert names(thing["metadata"] for thing in world.api.objects.values()) == ["bare", "ds", "gpu-1"]
    assert sorted(name for _time, name in world.asked) == ["a", "b"]


def test_again_there_is_nothing_to_do():
    world = World(pod("a"))
    world.drain().run()
    assert not world.drain().run()["changed"]
    assert len(world.asked) == 1


def test_a_refused_pod_is_asked_again_and_does_not_block_others():
    """S11: the budget's refusal is retried until the deadline."""
    world = World(*[pod(name) for name in "abcd"])
    world.evictions["a"] = lambda: budget() if world.clock.time < 20 else 0
    report = world.drain().run()
    assert names(report["evicted"]) == ["a", "b", "c", "d"]
    assert {name for time, name in world.asked if time == 0} == {"a", "b", "c", "d"}
    times = [time for time, name in world.asked if name == "a"]
    assert 20 <= times[-1] < 24
    assert len(times) <= 12, "it is asked at a pace"


@pytest.mark.parametrize(
    "error, why",
    [
        pytest.param(budget("web needs 2"), "DisruptionBudget: web needs 2", id="budget"),
        pytest.param(ApiUnavailable("500 more than one PodDisruptionBudget"), "500 more than one PodDisruptionBudget", id="two budgets"),
        pytest.param(Forbidden("403 namespace is being terminated"), "403 namespace is being terminated", id="refused"),
    ],
)
def test_not_done_at_the_deadline(error, why):
    """Names who is left and why."""
    world = World(pod("a"), pod("b"))
    world.evictions["a"] = error
    with pytest.raises(EvictIncomplete, match=f"1 pods are left on node gpu-1: default/a: {why}") as raised:
        world.drain().run()
    failure = raised.value.failure()
    assert failure["error_kind"] == "evict_incomplete"
    assert [(each["name"], each["why"]) for each in failure["left"]] == [("a", why)]
    assert (names(failure["evicted"]), failure["changed"]) == (["b"], True)
    assert world.clock.time == pytest.approx(60)


def test_an_endless_pod():
    world = World(pod("a", finalizers=["example.com/x"]))
    world.evictions["a"] = 10_000
    with pytest.raises(EvictIncomplete, match=r"terminating since .*, grace period 30 s, finalizers example\.com/x"):
        world.drain().run()
    assert len(world.asked) == 1


def test_the_grace_period_is_cut_to_what_is_left():
    """S11."""
    world = World(pod("a", grace=600), pod("b", grace=30))
    world.drain().run()
    sent = {body["metadata"]["name"]: body["deleteOptions"].get("gracePeriodSeconds") for _m, _p, body in world.api.writes()}
    assert sent == {"a": 55, "b": None}


def test_a_pod_that_uses_its_whole_cut_grace_period_is_gone_in_time():
    """The kubelet kills it then, and tells the API server a moment later."""
    world = World(pod("a", grace=600))
    evict = world.evict

    def whole(path, body):
        world.evictions["a"] = body["deleteOptions"]["gracePeriodSeconds"] + 3
        return evict(path, body)

    world.evict = whole
    assert names(world.drain().run()["evicted"]) == ["a"]


def test_a_pod_reborn_under_its_name_is_another_pod():
    world = World(pod("db-0", owner="StatefulSet", owner_uid="ss"))
    world.evictions["db-0"] = 3
    world.at(4, lambda: world.put(pod("db-0", uid="new", owner="StatefulSet", owner_uid="ss", node="gpu-2")))
    # What the server filters by node, the fake does not: the successor runs elsewhere.
    drain = world.drain(Selection("gpu", {"uid-db-0"}))
    report = drain.run()
    assert [(each["uid"]) for each in report["evicted"]] == ["uid-db-0"]
    assert [(move["from"]["uid"], move["to"]["uid"], move["to_node"]) for move in report["moved"]] == [("uid-db-0", "new", "gpu-2")]


def test_a_pod_that_was_on_its_way_is_evicted_too():
    world = World(pod("a"))
    world.evictions["a"] = 5
    world.at(3, lambda: world.put(pod("late")))
    assert names(world.drain().run()["evicted"]) == ["a", "late"]


def test_a_pod_that_would_come_again_is_named_and_not_hunted():
    world = World(pod("a", tolerations=[{"operator": "Exists"}]))
    world.at(1, lambda: world.put(pod("a2", tolerations=[{"operator": "Exists"}])))
    with pytest.raises(EvictIncomplete, match="default/a2: came after the drain began"):
        world.drain().run()
    assert [name for _time, name in world.asked] == ["a"]
    assert world.clock.time < 10, "nor waited for"


@pytest.mark.parametrize(
    "there, left",
    [
        pytest.param([], None, id="none"),
        pytest.param([pod("bare", owner=None), pod("ds", owner="DaemonSet")], None, id="those that stay"),
        pytest.param([pod("a")], "1 pods are left on node gpu-1: default/a: not evicted yet", id="not evicted"),
        pytest.param([pod("a", terminating=True)], "default/a: terminating since", id="not ended"),
        pytest.param([pod("a", tolerations=[{"operator": "Exists"}])], "default/a: it tolerates the node's taints", id="came back"),
    ],
)
def test_only_looking(there, left):
    """Nothing is asked for but the lock, whatever the mode and the incident's state allow."""
    world = World(*there)
    world.ledger.refuse["authorize"] = RemediationError("mode observe")
    drain = world.drain(incident="i")
    if left:
        with pytest.raises(EvictIncomplete, match=left) as raised:
            drain.look()
        assert names(raised.value.failure()["left"]) == ["a"]
    else:
        report = drain.look()
        assert (report["changed"], report["evicted"], report["left"]) == (False, [], [])
        assert names(report["kept"]) == ["bare"] * bool(there)
    assert world.api.writes() == []
    assert (world.clock.time, len(world.lock_renewed)) == (0, 1)


def test_everything_is_asked_before_each_eviction():
    """S4, S5."""
    world = World(pod("a"), pod("b"))
    world.drain(incident="i").run()
    assert world.ledger.asked == [("authorize", "i", "node")] * 2
    assert len(world.lock_renewed) == 2


@pytest.mark.parametrize("after_seconds", [0, 10])
def test_a_lost_lock_stops_before_the_next_eviction(after_seconds):
    """S5."""
    world = World(pod("a"), pod("b"))
    world.evictions["a"] = world.evictions["b"] = budget()
    drain = world.drain()

    def renew():
        if world.clock.time >= after_seconds:
            raise RemediationError("lost")

    drain._permit = Permit("gpu-1", None, renew)
    with pytest.raises(RemediationError, match="lost") as raised:
        drain.run()
    assert all(time < after_seconds for time, _name in world.asked)
    assert names(raised.value.failure()["left"]) == ["a", "b"]


def test_the_lock_is_renewed_while_waiting():
    """S5."""
    world = World(pod("a"))
    world.evictions["a"] = 45
    world.drain().run()
    gaps = [later - earlier for earlier, later in zip(world.lock_renewed, world.lock_renewed[1:])]
    assert world.lock_renewed[-1] > 35
    assert max(gaps) < 10


def test_a_changed_mode_stops_the_next_eviction():
    """S4."""
    world = World(pod("a"), pod("b"))
    world.evictions["b"] = budget()
    world.at(10, lambda: world.ledger.refuse.update(authorize=RemediationError("mode observe")))
    with pytest.raises(RemediationError, match="mode observe") as raised:
        world.drain(incident="i").run()
    assert names(raised.value.failure()["evicted"]) == ["a"]
    assert all(time <= 10 for time, _name in world.asked)


@pytest.mark.parametrize(
    "event, error",
    [
        pytest.param(lambda world: world.api.objects.pop(NODE), NodeGone, id="deleted"),
        pytest.param(lambda world: world.put_node(uid="u2"), NodeRecreated, id="S6: recreated"),
        pytest.param(lambda world: world.put_node(labels={"gpuops.remediation/managed": "false"}), NotManaged, id="S4: opted out"),
        pytest.param(lambda world: world.put_node(taints=()), HumanOverride, id="S6: a human took our taint off"),
    ],
)
def test_the_node_is_no_longer_ours(event, error):
    world = World(pod("a"), pod("b"))
    world.evictions["b"] = budget()
    change = world.ledger.intend("i", "node/gpu-1/taint/gpu.unhealthy:NoSchedule", None, OURS)
    world.ledger.applied(change.id, OURS)
    world.at(10, lambda: event(world))
    with pytest.raises(error) as raised:
        world.drain(incident="i").run()
    assert names(raised.value.failure()["evicted"]) == ["a"]
    assert all(time <= 10 for time, _name in world.asked)


def test_what_was_done_to_processes_is_no_part_of_the_node():
    """An earlier round ended the GPU's holders: nobody undid anything, and the release of the taint leaves that record to others."""
    world = World(pod("a", limits={"nvidia.com/gpu": "1"}))
    for target in ("node/gpu-1/taint/gpu.unhealthy:NoSchedule", "node/gpu-1/gpu/GPU-1/holders"):
        change = world.ledger.intend("i", target, None, OURS)
        world.ledger.applied(change.id, OURS)
    assert names(world.drain(incident="i").run()["evicted"]) == ["a"]
    NodeWriter(world.api, Permit("gpu-1", Incident("i", world.ledger)), world.clock.deadline()).release()
    assert [change.status for change in world.ledger.rows] == ["reverted", "applied"]


def test_the_api_is_away_for_30_seconds():
    world = World(pod("a"), pod("b"))
    world.evictions["a"] = 10
    answer = world.api.before

    def away(method, path, body):
        if 2 < world.clock.time < 32:
            raise ApiUnavailable("no answer")
        return answer(method, path, body)

    world.api.before = away
    assert names(world.drain().run()["evicted"]) == ["a", "b"]
    assert 32 <= world.clock.time < 40


def test_the_api_is_away_at_the_deadline():
    """What was last seen is told."""
    world = World(pod("a"))
    world.evictions["a"] = budget("web needs 2")
    answer = world.api.before

    def away(method, path, body):
        if world.clock.time > 20:
            raise ApiUnavailable("no answer")
        return answer(method, path, body)

    world.api.before = away
    with pytest.raises(EvictIncomplete, match="default/a: DisruptionBudget: web needs 2; as last seen, then no answer"):
        world.drain().run()


def test_the_api_is_away_from_the_start():
    world = World(pod("a"))

    def away(method, path, body):
        raise ApiUnavailable("no answer")

    world.api.before = away
    with pytest.raises(ApiUnavailable):
        world.drain().run()


def test_check_mode_asks_for_no_eviction_and_names_the_budgets():
    world = World(pod("a", labels={"app": "web"}), pod("bare", owner=None))
    path = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
    web = {"metadata": {"namespace": "default", "name": "web"}, "spec": {"selector": {"matchLabels": {"app": "web"}}}, "status": {}}
    world.api.objects[path] = {"metadata": {"uid": "x"}, "items": [web]}
    report = world.drain(check_mode=True).run()
    assert world.api.writes() == []
    assert (names(report["evicted"]), names(report["kept"]), report["left"], report["changed"]) == (["a"], ["bare"], [], True)
    assert report["blocked"] == [{"namespace": "default", "name": "web", "allowed": 0, "pods": ["a"]}]
    result = result_of(report, None)
    assert result["diff"] == {"before": {"pods": ["default/a", "default/bare"]}, "after": {"pods": ["default/bare"]}}
    assert [action["target"] for action in result["actions"]] == ["pod/default/a"]


def test_gpu_claims_are_looked_up():
    """S11: a claim counts if it holds a device of NVIDIA's GPU driver."""
    world = World(pod("gpu", claims={"g": "c1"}), pod("nic", claims={"n": "c2"}), pod("gone", claims={"n": "c3"}), pod("mine"))
    world.api.objects[f"{PODS}/mine"]["metadata"]["namespace"] = "gpuops-system"
    for name, driver in (("c1", "gpu.nvidia.com"), ("c2", "nic.example.com")):
        status = {"allocation": {"devices": {"results": [{"driver": driver}]}}}
        path = f"/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/{name}"
        world.api.objects[path] = {"metadata": {"name": name, "uid": name}, "status": status}
    assert names(world.drain(Selection("gpu")).run()["evicted"]) == ["gpu"]


def test_the_responders_own_pods_stay(monkeypatch):
    """S11: those in its namespace, and the one in which this runs."""
    monkeypatch.setenv("POD_NAMESPACE", "default")
    monkeypatch.setenv("POD_NAME", "me")
    world = World(pod("a"), pod("me"), pod("rulebook"))
    world.api.objects[f"{PODS}/rulebook"]["metadata"]["namespace"] = "gpuops-system"
    assert names(world.drain().run()["evicted"]) == ["a"]
