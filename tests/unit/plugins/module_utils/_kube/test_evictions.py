# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.evictions import (
    Selection,
    attribution,
    budgets_that_block,
    claims,
    eviction,
    gpus_requested,
    moves,
    settled,
    tolerates,
    why_left,
)
from kube_fakes import pod

GPU = {"nvidia.com/gpu": "1"}
MIG = {"nvidia.com/mig-3g.71gb": "1"}


@pytest.mark.parametrize(
    "thing, scope, meant, kept",
    [
        pytest.param(pod("p", limits=GPU), "gpu", True, False, id="S11: requests a GPU"),
        pytest.param(pod("p", limits=MIG), "gpu", True, False, id="S11: requests a MIG instance"),
        pytest.param(pod("p", limits={"nvidia.com/pgpu": "1"}), "gpu", True, False, id="S11: requests a GPU for a virtual machine"),
        pytest.param(pod("p", limits={"nvidia.com/gpu": "0"}), "gpu", False, False, id="S11: requests none"),
        pytest.param(pod("p", limits={"nvidia.com/hostdev": "1"}), "gpu", False, False, id="S11: requests a network device of NVIDIA's"),
        pytest.param(pod("p", init_limits=GPU), "gpu", True, False, id="S11: an init container requests it"),
        pytest.param(pod("p", claims={"gpu": "c1"}), "gpu", True, False, id="S11: claims a GPU"),
        pytest.param(pod("p", claims={"nic": "c2"}), "gpu", False, False, id="S11: claims something else"),
        pytest.param(pod("p"), "gpu", False, False, id="S11: no GPU"),
        pytest.param(pod("p"), "node", True, False, id="S11: node scope takes all"),
        pytest.param(pod("p", limits=GPU, owner="DaemonSet"), "node", False, False, id="S11: DaemonSet pods stay"),
        pytest.param(
            pod("p", annotations={"kubernetes.io/config.mirror": "x"}, owner="Node"), "node", False, False, id="S11: mirror pods stay"
        ),
        pytest.param(pod("me"), "node", False, False, id="S11: the responder's own stay"),
        pytest.param(pod("p", limits=GPU, phase="Succeeded"), "node", False, False, id="completed"),
        pytest.param(pod("p", limits=GPU, phase="Failed"), "node", False, False, id="failed"),
        pytest.param(pod("p", limits=GPU, owner=None), "gpu", True, True, id="S11: no controller: a human decides"),
        pytest.param(pod("p", limits=GPU, annotations={"gpuops.remediation/evict": "never"}), "gpu", True, True, id="S11: annotated never"),
        pytest.param(pod("p", limits=GPU, owner=None, terminating=True), "gpu", True, False, id="ends already: waited for"),
    ],
)
def test_selection(thing, scope, meant, kept):
    selection = Selection(scope, gpu_claims=["default/c1"], own_uids=["uid-me"])
    assert selection.meant(thing) is meant
    assert bool(selection.why_kept(thing)) is kept


def test_certain_selection():
    """S11: with certain attribution those pods, and no other that has a GPU."""
    selection = Selection("gpu", {"uid-a"})
    assert [selection.meant(pod(name, limits=GPU)) for name in "ab"] == [True, False]
    assert not Selection("gpu", set()).meant(pod("a", limits=GPU))


def test_who_is_elsewhere_stays():
    """S11: the pods that certainly have another GPU; who came later may have the sick one, and node scope takes all."""
    pods = [pod(name, limits=GPU) for name in ("other", "holder", "late")]
    assert [Selection("gpu", elsewhere={"uid-other"}).meant(each) for each in pods] == [False, True, True]
    assert Selection("node", elsewhere={"uid-other"}).meant(pods[0])
    assert [attribution(Selection("gpu", elsewhere=known)) for known in (None, set())] == ["requests", "kubelet"]


def test_what_the_kubelet_gives():
    side = {"name": "side", "resources": {"limits": GPU}, "restartPolicy": "Always"}
    first = {"name": "first", "resources": {"limits": {"nvidia.com/gpu": "3"}}}
    it = pod("p", limits={**GPU, "vendor.example/nic": "1"})
    assert gpus_requested(it) == {"nvidia.com/gpu": 1}
    it["spec"]["initContainers"] = [side]
    assert gpus_requested(it) == {"nvidia.com/gpu": 2}
    it["spec"]["initContainers"] = [first, side]
    assert gpus_requested(it) == {"nvidia.com/gpu": 3}
    assert gpus_requested(pod("p", limits={"nvidia.com/gpu": "1k"}))["nvidia.com/gpu"] == float("inf"), "never fewer than there are"


def test_evict_unmanaged():
    """S11; a pod whose owner said never stays even then."""
    selection = Selection("node", evict_unmanaged=True)
    assert selection.why_kept(pod("p", owner=None)) is None
    assert "never" in selection.why_kept(pod("p", annotations={"gpuops.remediation/evict": "never"}))


@pytest.mark.parametrize(
    "own, left, sent",
    [(30, 100.0, None), (30, 35.0, None), (30, 30.0, 25), (300, 100.7, 95), (300, 0.2, 1), (0, 100.0, None), (0, 2.0, None)],
)
def test_the_grace_period_is_cut_only_to_what_is_left(own, left, sent):
    """S11."""
    options = eviction(pod("p", grace=own), left)["deleteOptions"]
    assert options.get("gracePeriodSeconds") == sent
    assert options["preconditions"] == {"uid": "uid-p"}


TAINT = {"key": "gpu.unhealthy", "value": "true", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    "tolerations, taints, tolerated",
    [
        ([], [], True),
        ([], [TAINT], False),
        ([{"operator": "Exists"}], [TAINT], True),
        ([{"key": "gpu.unhealthy", "operator": "Exists"}], [TAINT], True),
        ([{"key": "gpu.unhealthy", "value": "true"}], [TAINT], True),
        ([{"key": "gpu.unhealthy", "value": "true", "effect": "NoExecute"}], [TAINT], False),
        ([{"key": "gpu.unhealthy", "value": "false"}], [TAINT], False),
        ([{"key": "other", "operator": "Exists"}], [TAINT], False),
        ([], [{"key": "x", "effect": "PreferNoSchedule"}], True),
    ],
)
def test_tolerates(tolerations, taints, tolerated):
    assert tolerates(pod("p", tolerations=tolerations), taints) is tolerated


def test_why_left():
    assert why_left(pod("p"), None) == "not evicted yet"
    assert why_left(pod("p"), "budget") == "budget"
    ending = pod("p", terminating=True, finalizers=["a/b", "c/d"])
    assert why_left(ending, "budget") == "terminating since 2026-11-30T00:00:00Z, grace period 30 s, finalizers a/b, c/d"
    assert why_left(ending, None, node_ready=False).endswith("c/d; the node's kubelet does not answer")


def test_claims():
    made = pod("p", claims={"gpu": "c1"})
    made["spec"]["resourceClaims"].append({"name": "templated", "resourceClaimTemplateName": "t"})
    assert claims(made) == ["default/c1"]
    made["status"]["resourceClaimStatuses"] = [{"name": "templated", "resourceClaimName": "p-t-xyz"}]
    assert claims(made) == ["default/c1", "default/p-t-xyz"]
    by_count = pod("q")
    by_count["status"]["extendedResourceClaimStatus"] = {"resourceClaimName": "q-extended-resources-abc"}
    assert claims(by_count) == ["default/q-extended-resources-abc"]


def budget(selector, allowed, namespace="default"):
    return {"metadata": {"namespace": namespace, "name": "b"}, "spec": {"selector": selector}, "status": {"disruptionsAllowed": allowed}}


@pytest.mark.parametrize(
    "found, blocks",
    [
        (budget({"matchLabels": {"app": "web"}}, 1), ["w1", "w2"]),
        (budget({"matchLabels": {"app": "web"}}, 2), None),
        (budget({"matchLabels": {"app": "other"}}, 0), None),
        (budget({}, 0), ["w1", "w2"]),
        (budget(None, 0), None),
        (budget({"matchLabels": {"app": "web"}}, 0, "elsewhere"), None),
        (budget({"matchExpressions": [{"key": "app", "operator": "In", "values": ["web"]}]}, 0), ["w1", "w2"]),
        (budget({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["web"]}]}, 0), None),
        (budget({"matchExpressions": [{"key": "app", "operator": "Exists"}]}, 0), ["w1", "w2"]),
        (budget({"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}, 0), None),
    ],
)
def test_budgets_that_block(found, blocks):
    pods = [pod("w1", labels={"app": "web"}), pod("w2", labels={"app": "web"}), pod("w3", labels={"app": "web"}, terminating=True)]
    assert budgets_that_block(pods, [found]) == (
        [{"namespace": "default", "name": "b", "allowed": found["status"]["disruptionsAllowed"], "pods": blocks}] if blocks else []
    )


def test_moves():
    evicted = [
        pod("rs-1", owner_uid="rs"),
        pod("rs-2", owner_uid="rs"),
        pod("db-1", owner_uid="ss"),
        pod("db-0", owner_uid="ss"),
        pod("bare", owner=None),
    ]
    unscheduled = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes are available"}]
    now = [
        *evicted[:1],
        pod("rs-0", owner_uid="rs", node="gpu-3"),
        pod("rs-3", owner_uid="rs", node="gpu-2", created="2026-11-30T00:00:01Z"),
        pod("db-0", owner_uid="ss", uid="new", conditions=unscheduled),
        pod("other", owner=None, node="gpu-2"),
    ]
    moved = moves(evicted, now, {"uid-rs-1", "uid-rs-2", "uid-rs-0", "uid-db-0", "uid-db-1"})
    assert [(move["from"]["name"], (move["to"] or {}).get("name"), move["to_node"], move["pending"]) for move in moved] == [
        ("rs-1", "rs-3", "gpu-2", None),
        ("rs-2", None, None, "no successor yet"),
        ("db-1", None, None, "no successor yet"),
        ("db-0", "db-0", None, "0/2 nodes are available"),
        ("bare", None, None, "no controller would make it again"),
    ]
    assert [settled([move]) for move in moved] == [True, False, False, True, True]
