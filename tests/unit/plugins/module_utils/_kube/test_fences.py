# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.errors import LedgerUnavailable
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.errors import ApiUnavailable
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.fences import Fence, fence_all
from kube_fakes import Clock, FakeApi
from ledgers import by_hand

THEIRS = {"key": "maintenance", "effect": "NoExecute", "timeAdded": "2026-01-02T03:04:05Z"}
OURS = {"key": "gpu.unhealthy", "value": "true", "effect": "NoSchedule"}


class World:
    def __init__(self, ledger):
        self.ledger, self.clock = ledger, Clock()
        self.api = FakeApi(self.clock)
        ledger.configure("fence", {"nodes": 100}, False, "tests", "the test needs it")

    def node(self, name, *taints, labels=None):
        self.api.put(f"/api/v1/nodes/{name}", {"metadata": {"name": name, "labels": labels or {}}, "spec": {"taints": list(taints)}})

    def fence(self, name, uid=None, gpu=None):
        record = self.ledger.open_incident(by_hand(gpu, node=name, uid=uid or f"uid-{name}")).record
        return Fence(name, record["node_uid"], record["id"], {})

    def fence_all(self, *fences, **options):
        return fence_all(self.api, self.ledger, fences, self.clock.deadline(), **options)

    def taints(self, name):
        return self.api.objects[f"/api/v1/nodes/{name}"]["spec"]["taints"]

    def change(self, name):
        return self.ledger.open_change(f"node/{name}/taint/gpu.unhealthy:NoSchedule")


@pytest.fixture
def world(ledger):
    return World(ledger)


@pytest.mark.parametrize("count", [3, 40])
def test_many_at_once(world, count):
    """One read, or one list of all; one write a node; each change on record, with the value before."""
    names = [f"gpu-{number}" for number in range(count)]
    for name in names:
        world.node(name, THEIRS)
    results = world.fence_all(*[world.fence(name) for name in names])
    assert [(one["name"], one["changed"], one["error"]) for one in results] == [(name, True, None) for name in names]
    assert all(world.taints(name) == [THEIRS, OURS] for name in names)
    assert {(world.change(name).status, world.change(name).before) for name in names} == {("applied", None)}
    assert len(world.api.requests) == len(names) + (1 if count > 32 else count)


def test_a_second_time_changes_nothing(world):
    world.node("gpu-1")
    fence = world.fence("gpu-1")
    world.fence_all(fence)
    assert [one["changed"] for one in world.fence_all(fence)] == [False]
    assert len(world.api.writes()) == 1


def test_one_nodes_trouble_is_its_own(world):
    world.node("gpu-1")
    world.node("other", labels={"gpuops.remediation/managed": "false"})
    world.node("new")
    results = world.fence_all(world.fence("gone"), world.fence("other"), world.fence("new", uid="old"), world.fence("gpu-1"))
    assert [one["error_kind"] for one in results] == ["node_gone", "not_managed", "node_recreated", None]
    assert (world.taints("gpu-1"), world.taints("other"), world.taints("new")) == ([OURS], [], [])


def test_the_breaker_counts_each_of_them(world):
    """S8: none is written without its slot."""
    world.ledger.configure(None, {"nodes": 2, "percent": 0}, False, "tests", "the test needs it")
    for name in ("a", "b", "c", "d"):
        world.node(name)
    results = world.fence_all(*[world.fence(name) for name in ("a", "b", "c", "d")])
    assert [one["error_kind"] for one in results] == [None, None, "breaker_tripped", "breaker_tripped"]
    assert [len(world.taints(name)) for name in ("a", "b", "c", "d")] == [1, 1, 0, 0]
    assert world.ledger.breaker()["tripped"]


def test_the_mode_forbids(world):
    """S4."""
    world.ledger.set_mode("observe", "tests", "the test needs it")
    world.node("gpu-1")
    assert [one["error_kind"] for one in world.fence_all(world.fence("gpu-1"))] == ["mode_forbids"]
    assert world.api.writes() == []


def test_somebody_writes_in_between(world):
    world.node("gpu-1")
    times = iter([1])

    def also(method, path, body):
        if method == "PATCH" and next(times, None):
            world.node("gpu-1", THEIRS)

    world.api.before = also
    assert [one["error"] for one in world.fence_all(world.fence("gpu-1"))] == [None]
    assert world.taints("gpu-1") == [THEIRS, OURS]


def test_two_gpus_of_one_node(world):
    """S9: one taint that both want, released with the last."""
    world.node("gpu-1")
    fences = [world.fence("gpu-1", gpu=gpu) for gpu in ("0000:19:00.0", "0000:1a:00.0")]
    assert [one["error"] for one in world.fence_all(*fences)] == [None, None]
    assert sorted(world.change("gpu-1").owners) == sorted(fence.incident_id for fence in fences)


def test_killed_before_the_write(world):
    """S9: what was written ahead is found, and the run that comes later makes it true."""
    world.node("gpu-1")
    fence = world.fence("gpu-1")

    def down(method, path, body):
        if method == "PATCH":
            raise ApiUnavailable("gone")

    world.api.before = down
    assert [one["error_kind"] for one in world.fence_all(fence)] == ["api_unavailable"]
    assert world.change("gpu-1").status == "intended"
    world.api.before = lambda method, path, body: None
    assert [one["error"] for one in world.fence_all(fence)] == [None]
    assert world.change("gpu-1").status == "applied"


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


def test_check_mode_predicts(world):
    world.node("gpu-1")
    [result] = world.fence_all(world.fence("gpu-1"), check_mode=True)
    assert (result["changed"], result["after"]["taints"], world.taints("gpu-1")) == (True, [OURS], [])


@pytest.mark.parametrize("plain", [True, False])
def test_a_release_that_comes_between_leaves_no_taint_behind(world, plain):
    """S9: what nobody wants any more is taken off again by who wrote it, the short way and the long way."""
    world.node("gpu-1")
    fence = world.fence("gpu-1")
    passed = iter([True])

    def meanwhile(method, path, body):
        if method != "PATCH":
            return
        if not plain and next(passed, None):
            raise ApiUnavailable("the short way is closed")
        change = world.change("gpu-1")
        if change:
            world.ledger.disown(fence.incident_id, change.target)
            world.ledger.reverted(change.id)
            world.ledger.close_incident(fence.incident_id, "no_action", "nothing is wrong")

    world.api.before = meanwhile
    assert [one["error_kind"] for one in world.fence_all(fence)] == ["incident_ended"]
    node = world.api.objects["/api/v1/nodes/gpu-1"]
    assert (node["spec"]["taints"], node["metadata"]["annotations"]) == ([], {})


def test_a_taint_that_another_incident_wants_stays(world):
    world.node("gpu-1")
    first, second = (world.fence("gpu-1", gpu=gpu) for gpu in ("0000:19:00.0", "0000:1a:00.0"))

    def meanwhile(method, path, body):
        change = world.change("gpu-1")
        if method == "PATCH" and change and change.owners == [first.incident_id]:
            world.ledger.disown(first.incident_id, change.target)
            world.ledger.reverted(change.id)
            world.ledger.intend(second.incident_id, change.target, None, OURS)

    world.api.before = meanwhile
    assert [one["error_kind"] for one in world.fence_all(first)] == ["incident_ended"]
    assert world.taints("gpu-1") == [OURS]
