# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._kube import access
from ansible_collections.gpuops.remediation.plugins.modules import node_drain
from kube_fakes import FakeApi, pod
from run_module import run_module

PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture
def api(monkeypatch):
    api = FakeApi()
    monkeypatch.setattr(access, "connect", lambda kubeconfig, context, timeout_seconds: api)
    api.put("/api/v1/nodes/gpu-1", {"metadata": {"name": "gpu-1"}, "spec": {}})
    for each in (pod("a", node="gpu-1"), pod("gpu", node="gpu-1", limits={"nvidia.com/gpu": "1"}), pod("bare", node="gpu-1", owner=None)):
        api.put(f"{PODS}/{each['metadata']['name']}", each)

    def evict(method, path, body):
        if path.endswith("/eviction"):
            del api.objects[path[: -len("/eviction")]]
            return {}
        return None

    api.before = evict
    monkeypatch.setattr("ansible_collections.gpuops.remediation.plugins.module_utils._kube.drain.SETTLE_SECONDS", 0)
    monkeypatch.setattr("ansible_collections.gpuops.remediation.plugins.module_utils._kube.drain.ROUND_SECONDS", 0.01)
    return api


@pytest.mark.parametrize(
    "options, evicted, kept",
    [
        ({}, ["a", "gpu"], ["bare"]),
        ({"evict_unmanaged": True}, ["a", "bare", "gpu"], []),
        ({"scope": "gpu"}, ["gpu"], []),
        ({"scope": "gpu", "pods": [{"uid": "uid-a"}]}, ["a"], []),
        ({"scope": "gpu", "pods": []}, [], []),
    ],
)
def test_selection(api, options, evicted, kept):
    """S11."""
    result = run_module(node_drain.main, node="gpu-1", **options)
    assert sorted(each["name"] for each in result["evicted"]) == evicted
    assert sorted(each["name"] for each in result["kept"]) == kept
    assert result["changed"] is bool(evicted)


def test_cordon_first(api):
    result = run_module(node_drain.main, node="gpu-1", cordon=True)
    assert [action["action"] for action in result["actions"]] == ["patch", "evict", "evict"]
    assert (result["diff"]["before"]["unschedulable"], result["diff"]["after"]["unschedulable"]) == (False, True)
    assert api.objects["/api/v1/nodes/gpu-1"]["spec"]["unschedulable"]


def test_failure_tells_what_is_left(api):
    api.objects[f"{PODS}/a"]["metadata"].update(deletionTimestamp="2026-11-30T00:00:00Z", deletionGracePeriodSeconds=30)
    result = run_module(node_drain.main, node="gpu-1", deadline_seconds=0.1)
    assert (result["failed"], result["error_kind"]) == (True, "evict_incomplete")
    assert ([each["name"] for each in result["left"]], [each["name"] for each in result["evicted"]]) == (["a"], ["gpu"])


def test_only_looking(api):
    """Nothing is evicted, nor cordoned."""
    for check_mode in (True, False):
        result = run_module(node_drain.main, check_mode=check_mode, node="gpu-1", scope="gpu", state="free", cordon=True)
        assert (result["failed"], result["error_kind"], [each["name"] for each in result["left"]]) == (True, "evict_incomplete", ["gpu"])
    assert api.writes() == []
    del api.objects[f"{PODS}/gpu"]
    result = run_module(node_drain.main, node="gpu-1", scope="gpu", state="free")
    assert (result["changed"], result["left"], result["evicted"]) == (False, [], [])
