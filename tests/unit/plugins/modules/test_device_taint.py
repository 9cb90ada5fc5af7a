# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._kube import access
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.errors import ApiUnavailable
from ansible_collections.gpuops.remediation.plugins.modules import device_taint
from kube_fakes import FakeApi, FakeLedger, notice, resource_slice, serve_devices
from run_module import run_module

RULES = "/apis/resource.k8s.io/v1beta2/devicetaintrules/"


@pytest.fixture
def api(monkeypatch):
    api = FakeApi()
    monkeypatch.setattr(access, "connect", lambda kubeconfig, context, timeout_seconds: api)
    serve_devices(api)
    api.put("/api/v1/nodes/gpu-1", {"metadata": {"name": "gpu-1"}, "spec": {}})
    devices = {"gpu-0": {"uuid": "GPU-a", "pciBusID": "0000:19:00.0"}, "gpu-1": {"uuid": "GPU-b"}}
    api.put("/apis/resource.k8s.io/v1/resourceslices/gpu-1", resource_slice("gpu-1", devices))
    api.before = notice
    return api


def run(**params):
    return run_module(device_taint.main, node="gpu-1", **params)


def rules(api):
    return [thing for path, thing in api.objects.items() if path.startswith(RULES)]


@pytest.mark.parametrize("gpu", ["GPU-a", "0000:19:00.0", ["GPU-a", "0000:99:00.0"]])
def test_an_operators_own_use(api, gpu):
    """Without an incident nobody is asked; our taint is the default, and the diff shows the rule."""
    result = run(gpu=gpu)
    [rule] = result["after"]["rules"]
    assert (result["changed"], rule["device"], result["diff"]["before"]) == (True, "gpu-0", {"rules": []})
    assert rule["taint"] == {"key": "gpu.unhealthy", "value": "true", "effect": "NoSchedule"}
    assert run(gpu=gpu, state="absent")["changed"]
    assert rules(api) == []


def test_for_an_incident(api, monkeypatch):
    ledger = FakeLedger()
    monkeypatch.setattr(access, "open_ledger", lambda url, check_mode: ledger)
    run(gpu="GPU-b", incident_id="i-1", groups={"rack": "r1"})
    assert ("take_slot", "i-1", "gpu-1", {"rack": "r1"}) in ledger.asked
    assert run(incident_id="i-1", state="absent")["changed"]
    assert ([row.status for row in ledger.rows], rules(api)) == (["reverted"], [])


def test_a_node_that_its_fence_tainted_is_named(api, monkeypatch):
    """Once the GPU alone is out, the node is to be given back."""
    ledger = FakeLedger()
    monkeypatch.setattr(access, "open_ledger", lambda url, check_mode: ledger)
    assert run(gpu="GPU-a", incident_id="i-1")["node_parts"] == []
    for part in ("cordon", "taint/gpu.unhealthy:NoSchedule"):
        ledger.intend("i-1", f"node/gpu-1/{part}", None, {})
    assert run(gpu="GPU-a", incident_id="i-1")["node_parts"] == ["taint/gpu.unhealthy:NoSchedule"]


@pytest.mark.parametrize("before", [False, True])
def test_an_api_that_does_not_answer_says_whether_a_rule_stands(api, monkeypatch, before):
    """Without one, the node is to be tainted while its own API answers."""
    ledger = FakeLedger()
    monkeypatch.setattr(access, "open_ledger", lambda url, check_mode: ledger)
    if before:
        run(gpu="GPU-b", incident_id="i-1")

    def away(method, path, body):
        if "resource.k8s.io" in path:
            raise ApiUnavailable("429 Too Many Requests", status=429)

    api.before = away
    result = run(gpu="GPU-b", incident_id="i-1", deadline_seconds=0.2)
    assert (result["error_kind"], result["in_force"]) == ("api_unavailable", before)


def test_a_preview_asks_nothing_in_check_mode(api):
    result = run_module(device_taint.main, check_mode=True, node="gpu-1", gpu="GPU-a", preview=True)
    assert (result["changed"], "preview" in result, api.requests) == (False, False, [])


def test_which_gpu_has_to_be_said(api):
    assert "gpu" in run()["msg"]
    assert "gpu" in run(state="present", incident_id="i-1")["msg"]
