# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._kube import access
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.client import BadConnection
from ansible_collections.gpuops.remediation.plugins.modules import node_taint
from kube_fakes import FakeApi, FakeLedger
from run_module import run_module

OURS = {"key": "gpu.unhealthy", "value": "true", "effect": "NoSchedule"}


@pytest.fixture
def api(monkeypatch):
    api = FakeApi()
    monkeypatch.setattr(access, "connect", lambda kubeconfig, context, timeout_seconds: api)
    for name in ("gpu-1", "gpu-2"):
        api.put(f"/api/v1/nodes/{name}", {"metadata": {"name": name}, "spec": {}})
    return api


@pytest.fixture
def ledger(monkeypatch):
    ledger = FakeLedger()
    monkeypatch.setattr(access, "open_ledger", lambda url, check_mode: ledger)
    return ledger


def run(**params):
    return run_module(node_taint.main, **params)


def test_an_operators_own_use(api, ledger):
    """Without an incident nobody is asked; our taint is the default."""
    result = run(nodes=[{"name": "gpu-1"}])
    assert (result["changed"], result["nodes"][0]["after"]) == (True, {"taints": [OURS], "incidents": [], "unschedulable": False})
    assert result["diff"][0]["after_header"] == "gpu-1"
    assert run(nodes=[{"name": "gpu-1"}], state="absent")["nodes"][0]["after"]["taints"] == []
    assert ledger.asked == []


def test_each_node_has_its_own_incident(api, ledger):
    nodes = [{"name": "gpu-1"}, {"name": "gpu-2", "incident_id": "b", "groups": {"rack": "r2"}}]
    run(nodes=nodes, incident_id="a", groups={"rack": "r1"})
    assert ("take_slot", "a", "gpu-1", {"rack": "r1"}) in ledger.asked
    assert ("take_slot", "b", "gpu-2", {"rack": "r2"}) in ledger.asked
    run(nodes=nodes, incident_id="a", state="absent")
    assert [row.status for row in ledger.rows] == ["reverted", "reverted"]


def test_the_cordon_is_kept_where_it_is_asked_for(api, ledger):
    run(nodes=[{"name": "gpu-1", "incident_id": "a"}])
    ledger.intend("a", "node/gpu-1/cordon", False, True)
    api.objects["/api/v1/nodes/gpu-1"]["spec"]["unschedulable"] = True
    given_back = run(nodes=[{"name": "gpu-1", "incident_id": "a"}], state="absent", keep_cordon=True)
    assert given_back["nodes"][0]["after"] == {"taints": [], "incidents": ["a"], "unschedulable": True}


def test_forgetting(api, ledger):
    run(nodes=[{"name": "gpu-1", "incident_id": "a"}])
    forgotten = run(nodes=[{"name": "gpu-1", "incident_id": "a"}], state="forgotten")
    assert forgotten["nodes"][0]["after"] == {"taints": [OURS], "incidents": [], "unschedulable": False}
    assert "incident" in run(nodes=[{"name": "gpu-1"}], state="forgotten")["msg"]


def test_the_lock_is_renewed_first(api, ledger):
    """S5: a lock that is not ours stops the write."""
    result = run(nodes=[{"name": "gpu-1", "lock_token": 7}, {"name": "gpu-2"}], lock_holder="run-1")
    assert [node["error_kind"] for node in result["nodes"]] == ["lock_lost", None]
    assert (result["failed"], result["error_kind"], result["changed"]) == (True, "lock_lost", True)


def test_a_token_needs_its_holder(api):
    assert "lock_holder" in run(nodes=[{"name": "gpu-1"}], lock_token=7)["msg"]


def test_check_mode(api, ledger):
    result = run(nodes=[{"name": "gpu-1"}], check_mode=True)
    assert result["changed"]
    assert api.writes() == []


def test_no_connection(monkeypatch):
    def refuse(kubeconfig, context, timeout_seconds):
        raise BadConnection("no Kubernetes connection")

    monkeypatch.setattr(access, "connect", refuse)
    result = run(nodes=[{"name": "gpu-1"}])
    assert (result["failed"], result["error_kind"]) == (True, "bad_connection")
