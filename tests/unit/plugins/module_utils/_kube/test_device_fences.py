# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.errors import LedgerUnavailable
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.device_fences import DeviceFence, fence_devices
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.errors import ApiUnavailable, Forbidden
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.fences import Fence
from kube_fakes import Clock, FakeApi, notice, resource_slice, serve_devices
from ledgers import by_hand

RULES = "/apis/resource.k8s.io/v1beta2/devicetaintrules"


class World:
    def __init__(self, ledger, rules="v1beta2"):
        self.ledger, self.clock = ledger, Clock()
        self.api = FakeApi(self.clock)
        serve_devices(self.api, rules)
        self.api.before = notice
        ledger.configure("fence", {"nodes": 100}, False, "tests", "the test needs it")

    def node(self, name, labels=None, **capacity):
        status = {"capacity": capacity}
        self.api.put(f"/api/v1/nodes/{name}", {"metadata": {"name": name, "labels": labels or {}}, "spec": {}, "status": status})
        devices = {f"gpu-{number}": {"uuid": f"GPU-{name}-{number}"} for number in range(8)}
        self.api.put(f"/apis/resource.k8s.io/v1/resourceslices/{name}", resource_slice(name, devices))

    def fence(self, name, number=0, uid=None):
        gpu = f"GPU-{name}-{number}"
        record = self.ledger.open_incident(by_hand(gpu, node=name, uid=uid or f"uid-{name}")).record
        return DeviceFence(Fence(name, record["node_uid"], record["id"], {}), [gpu])

    def fence_all(self, *fences, **options):
        return fence_devices(self.api, self.ledger, fences, self.clock.deadline(), **options)

    def tainted(self):
        rules = [thing for path, thing in self.api.objects.items() if path.startswith(RULES + "/")]
        return sorted((rule["spec"]["deviceSelector"]["pool"], rule["spec"]["deviceSelector"]["device"]) for rule in rules)

    def changes(self, *fences):
        return [(change.status, change.before) for one in fences for change in self.ledger.changes(one.on.incident_id)]


@pytest.fixture
def world(ledger):
    return World(ledger)


@pytest.mark.parametrize("count", [1, 3, 40])
def test_many_at_once(world, count):
    """Two lists at most, one write a GPU, no node written; each change on record."""
    names = [f"gpu-{number}" for number in range(count)]
    for name in names:
        world.node(name)
    fences = [world.fence(name, number=3) for name in names]
    results = world.fence_all(*fences)
    assert [(one["name"], one["changed"], one["error"]) for one in results] == [(name, True, None) for name in names]
    assert world.tainted() == sorted((name, "gpu-3") for name in names)
    assert [path for _method, path, _body in world.api.writes()] == [RULES] * count
    assert world.changes(*fences) == [("applied", None)] * count
    asked = 4 + count + (1 if count > 32 else count)
    assert (len(world.api.requests), world.clock.time) == (asked, 0), "two versions, the slices, the nodes, the rules, one rule again"


def test_two_gpus_of_one_node(world):
    world.node("gpu-1")
    assert [one["error"] for one in world.fence_all(world.fence("gpu-1", 0), world.fence("gpu-1", 5))] == [None, None]
    assert world.tainted() == [("gpu-1", "gpu-0"), ("gpu-1", "gpu-5")]


def test_a_second_time_changes_nothing(world):
    world.node("gpu-1")
    fence = world.fence("gpu-1")
    world.fence_all(fence)
    assert [one["changed"] for one in world.fence_all(fence)] == [False]
    assert len(world.api.writes()) == 1


def test_what_only_the_node_can_hold_is_left_to_it(world):
    """A GPU that no driver lists, and one that a device plugin hands out too."""
    for name in ("other", "gpu-1"):
        world.node(name)
    world.node("plugin", **{"nvidia.com/gpu": "8"})
    results = world.fence_all(world.fence("other", number=9), world.fence("plugin"), world.fence("gpu-1"))
    assert [one and one["error"] for one in results] == [None, None, None]
    assert [one is None for one in results] == [True, True, False]
    assert world.tainted() == [("gpu-1", "gpu-0")]


def test_a_server_without_the_rules(ledger):
    world = World(ledger, rules=None)
    world.node("gpu-1")
    assert world.fence_all(world.fence("gpu-1")) == [None]


def test_rules_that_nobody_acts_on_fence_nothing(world):
    """Then the nodes are fenced too, soon, and what failed for another reason stays as it is."""
    for name in ("gpu-1", "gpu-2"):
        world.node(name)
    world.node("other", labels={"gpuops.remediation/managed": "false"})
    world.api.before = lambda method, path, body: None
    fences = [world.fence("gpu-1"), world.fence("other"), world.fence("gpu-2")]
    first, other, second = world.fence_all(*fences)
    assert (first, other["error_kind"], second) == (None, "not_managed", None)
    assert world.tainted() == [("gpu-1", "gpu-0"), ("gpu-2", "gpu-0")]
    assert 2 <= world.clock.time < 3


def test_an_account_that_may_not_make_rules(world):
    """The nodes are fenced, and no release will have to read rules that were never made."""
    for name in ("gpu-1", "gpu-2"):
        world.node(name)
    fences = [world.fence("gpu-1"), world.fence("gpu-2")]

    def refuse(method, path, body):
        if method == "POST":
            raise Forbidden("POST: 403", status=403)

    world.api.before = refuse
    assert world.fence_all(*fences) == [None, None]
    assert world.changes(*fences) == [("reverted", None)] * 2


def test_a_refusal_that_cannot_be_recorded_ends_nobody_s_fence(world, monkeypatch):
    for name in ("gpu-1", "gpu-2"):
        world.node(name)
    fences = [world.fence("gpu-1"), world.fence("gpu-2")]

    def refuse(method, path, body):
        if method == "POST" and body["spec"]["deviceSelector"]["pool"] == "gpu-1":
            raise Forbidden("POST: 403", status=403)
        notice(method, path, body)

    def away(*arguments, **options):
        raise LedgerUnavailable("it is locked")

    world.api.before = refuse
    monkeypatch.setattr(world.ledger, "disown", away)
    refused, fenced = world.fence_all(*fences)
    assert (refused, fenced["error"]) == (None, None)
    assert world.tainted() == [("gpu-2", "gpu-0")]


def test_one_nodes_trouble_is_its_own(world):
    """And no reason to taint more of it than was asked."""
    for name in ("new", "gpu-1"):
        world.node(name)
    world.node("other", labels={"gpuops.remediation/managed": "false"})
    results = world.fence_all(world.fence("gone"), world.fence("other"), world.fence("new", uid="old"), world.fence("gpu-1"))
    assert [one["error_kind"] for one in results] == ["node_gone", "not_managed", "node_recreated", None]
    assert world.tainted() == [("gpu-1", "gpu-0")]


def test_an_api_that_does_not_answer_is_no_reason_to_take_the_node(world):
    world.node("gpu-1")
    fence = world.fence("gpu-1")

    def down(method, path, body):
        raise ApiUnavailable("gone")

    world.api.before = down
    assert [one["error_kind"] for one in world.fence_all(fence)] == ["api_unavailable"]


def test_the_breaker_counts_nodes(world):
    """S8."""
    world.ledger.configure(None, {"nodes": 2, "percent": 0}, False, "tests", "the test needs it")
    for name in ("a", "b", "c"):
        world.node(name)
    results = world.fence_all(world.fence("a", 0), world.fence("a", 1), world.fence("b"), world.fence("c"))
    assert [one["error_kind"] for one in results] == [None, None, None, "breaker_tripped"]
    assert world.tainted() == [("a", "gpu-0"), ("a", "gpu-1"), ("b", "gpu-0")]


def test_the_mode_forbids(world):
    """S4."""
    world.ledger.set_mode("observe", "tests", "the test needs it")
    world.node("gpu-1")
    assert [one["error_kind"] for one in world.fence_all(world.fence("gpu-1"))] == ["mode_forbids"]
    assert world.api.writes() == []


def test_killed_before_the_write(world):
    """S9."""
    world.node("gpu-1")
    fence = world.fence("gpu-1")

    def down(method, path, body):
        if method == "POST":
            raise ApiUnavailable("gone")

    world.api.before = down
    assert [one["error_kind"] for one in world.fence_all(fence)] == ["api_unavailable"]
    assert world.changes(fence) == [("intended", None)]
    world.api.before = notice
    assert [one["error"] for one in world.fence_all(fence)] == [None]
    assert world.changes(fence) == [("applied", None)]


def test_nothing_is_written_without_a_ledger(world, monkeypatch):
    """S19."""
    world.node("gpu-1")
    fence = world.fence("gpu-1")

    def away(wants, wanted):
        raise LedgerUnavailable("the disk is full")

    monkeypatch.setattr(world.ledger, "grant", away)
    with pytest.raises(LedgerUnavailable):
        world.fence_all(fence)
    assert world.api.writes() == []


def test_a_release_that_comes_between_leaves_no_rule_behind(world):
    """S9."""
    world.node("gpu-1")
    fence = world.fence("gpu-1")

    def meanwhile(method, path, body):
        if method == "POST":
            [change] = world.ledger.changes(fence.on.incident_id)
            world.ledger.disown(fence.on.incident_id, change.target)
            world.ledger.reverted(change.id)
            world.ledger.close_incident(fence.on.incident_id, "no_action", "nothing is wrong")

    world.api.before = meanwhile
    assert [one["error_kind"] for one in world.fence_all(fence)] == ["incident_ended"]
    assert world.tainted() == []


def test_check_mode_predicts(world):
    world.node("gpu-1")
    [result] = world.fence_all(world.fence("gpu-1"), check_mode=True)
    assert (result["changed"], result["after"]["rules"][0]["device"], world.tainted()) == (True, "gpu-0", [])
