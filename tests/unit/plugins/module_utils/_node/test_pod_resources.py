# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The answers of the API, made by Protocol Buffers' own library."""

from __future__ import annotations

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._node import grpc, pod_resources
from gpusim.pod_resources import messages

SHARED = {"resource_name": "nvidia.com/gpu.shared", "device_ids": ["GPU-3::0", "GPU-3::1"]}


def listed(*containers):
    pods = [{"name": "train-0", "namespace": "ml", "containers": list(containers)}]
    return messages()["ListPodResourcesResponse"](pod_resources=pods).SerializeToString()


def test_who_has_what():
    """A resource comes once a NUMA node; devices of others, processors and topology are passed over."""
    gpus = [{"resource_name": "nvidia.com/gpu", "device_ids": [f"GPU-{n}"], "topology": {"nodes": [{"ID": n}]}} for n in (2, 1)]
    nic = {"resource_name": "vendor.example/nic", "device_ids": ["n1"]}
    mig = {"resource_name": "nvidia.com/mig-1g.18gb", "device_ids": ["MIG-1"]}
    virtual = {"resource_name": "nvidia.com/GB202_VGPU", "device_ids": ["v1"]}
    told = pod_resources.parse_list(
        listed(
            {"name": "main", "devices": [*gpus, nic, virtual], "cpu_ids": [0, 300]},
            {"name": "side", "devices": [SHARED, mig]},
            {"name": "idle"},
        )
    )
    pod = {"pod_namespace": "ml", "pod_name": "train-0"}
    assert told["allocations"] == [
        {**pod, "container": "main", "resource": "nvidia.com/gpu", "devices": ["GPU-1", "GPU-2"], "count": 2},
        {**pod, "container": "main", "resource": "nvidia.com/GB202_VGPU", "devices": ["v1"], "count": 1},
        {**pod, "container": "side", "resource": "nvidia.com/gpu.shared", "devices": ["GPU-3"], "count": 2},
        {**pod, "container": "side", "resource": "nvidia.com/mig-1g.18gb", "devices": ["MIG-1"], "count": 1},
    ]
    assert told["claims"] == []


def test_what_claims_give():
    devices = [{"driver_name": "gpu.nvidia.com", "pool_name": "gpu-1", "device_name": f"gpu-{n}"} for n in (0, 1)]
    claim = {"claim_name": "two", "claim_namespace": "ml", "claim_resources": devices}
    assert [(one["claim"], one["driver"], one["pool"], one["device"]) for one in pod_resources.parse_list(
        listed({"name": "main", "dynamic_resources": [claim]})
    )["claims"]] == [("ml/two", "gpu.nvidia.com", "gpu-1", "gpu-0"), ("ml/two", "gpu.nvidia.com", "gpu-1", "gpu-1")]  # fmt: skip


def test_what_is_registered():
    others = [{"resource_name": name, "device_ids": ["n1"]} for name in ("vendor.example/nic", "nvidia.com/GB202_VGPU")]
    answer = messages()["AllocatableResourcesResponse"](devices=[SHARED, *others], cpu_ids=[1]).SerializeToString()
    assert pod_resources.parse_allocatable(answer) == {
        "registered": {"nvidia.com/gpu.shared": ["GPU-3"]},
        "shared": ["nvidia.com/gpu.shared"],
    }


def test_an_answer_that_is_not_understood(monkeypatch):
    monkeypatch.setattr(grpc, "call", lambda *arguments: b"\x0b")
    with pytest.raises(pod_resources.PodResourcesUnreadable, match="wire type 3"):
        pod_resources.read("/kubelet", 1)
