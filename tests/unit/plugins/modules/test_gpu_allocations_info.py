# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._node import grpc
from ansible_collections.gpuops.remediation.plugins.modules import gpu_allocations_info
from run_module import run_module

# Entries as a kubelet writes them, two of network devices, and one in the form of Kubernetes before 1.20.
ENTRIES = [
    {
        "PodUID": "a",
        "ContainerName": "app",
        "ResourceName": "nvidia.com/gpu",
        "DeviceIDs": {"1": ["GPU-2"], "-1": ["GPU-1"]},
        "AllocResp": "Cms=",
    },
    {"PodUID": "a", "ContainerName": "net", "ResourceName": "vendor.example/nic", "DeviceIDs": {"0": ["n1"]}, "AllocResp": ""},
    {"PodUID": "a", "ContainerName": "net", "ResourceName": "nvidia.com/hostdev", "DeviceIDs": {"0": ["n2"]}, "AllocResp": ""},
    {
        "PodUID": "b",
        "ContainerName": "app",
        "ResourceName": "nvidia.com/mig-1g.18gb",
        "DeviceIDs": ["MIG-1::0", "MIG-1::1"],
        "AllocResp": "",
    },
    {"PodUID": "c", "ContainerName": "vm", "ResourceName": "nvidia.com/GB202_VGPU", "DeviceIDs": {"0": ["v1"]}, "AllocResp": ""},
]


def write(directory, text):
    path = directory / "device-plugins" / "kubelet_internal_checkpoint"
    path.parent.mkdir()
    path.write_text(text)
    return info(directory)


def info(directory, **params):
    return run_module(
        gpu_allocations_info.main, **{"kubelet_dir": str(directory), "state_dir": str(directory / "state"), "timeout_seconds": 4, **params}
    )


def test_who_has_what(tmp_path):
    """A virtual GPU is given too: its pod waits for none. The layouts are measured by what NVIDIA's own plugin has registered."""
    registered = {
        "nvidia.com/gpu": ["GPU-2", "GPU-1"],
        "nvidia.com/mig-1g.18gb": None,
        "vendor.example/nic": ["n1"],
        "nvidia.com/hostdev": ["n2"],
        "nvidia.com/GB202_VGPU": ["v1"],
    }
    result = write(tmp_path, json.dumps({"Data": {"PodDeviceEntries": ENTRIES, "RegisteredDevices": registered}, "Checksum": 3660592824}))
    assert result["allocations"] == [
        {"pod_uid": "a", "container": "app", "resource": "nvidia.com/gpu", "devices": ["GPU-1", "GPU-2"], "count": 2},
        {"pod_uid": "b", "container": "app", "resource": "nvidia.com/mig-1g.18gb", "devices": ["MIG-1"], "count": 2},
        {"pod_uid": "c", "container": "vm", "resource": "nvidia.com/GB202_VGPU", "devices": ["v1"], "count": 1},
    ]
    assert result["registered"] == {"nvidia.com/gpu": ["GPU-1", "GPU-2"], "nvidia.com/mig-1g.18gb": []}


def test_which_source(tmp_path):
    """The first that tells it; that the better one is away is said."""
    result = write(tmp_path, '{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":1}')
    assert (result["source"], [one["source"] for one in result["missing"]]) == ("checkpoint", ["pod_resources"])
    assert "No such file" in result["missing"][0]["why"]
    assert info(tmp_path, sources=["checkpoint"])["missing"] == []


def test_a_node_without_the_library(tmp_path, monkeypatch):
    monkeypatch.setattr(grpc, "IMPORT_ERROR", "Traceback: no h2")
    result = write(tmp_path, '{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":1}')
    assert result["source"] == "checkpoint"
    assert result["missing"] == [{"source": "pod_resources", "why": "the Python library h2 is not installed"}]


def test_devices_that_are_shared(tmp_path):
    """Also where the plugin does not rename the resource."""
    registered = {"nvidia.com/gpu": ["GPU-1::0", "GPU-1::1"], "nvidia.com/mig-1g.18gb": ["MIG-1"], "nvidia.com/hostdev": ["n::1"]}
    result = write(tmp_path, json.dumps({"Data": {"PodDeviceEntries": None, "RegisteredDevices": registered}, "Checksum": 1}))
    assert (result["shared"], result["registered"]["nvidia.com/gpu"]) == (["nvidia.com/gpu"], ["GPU-1"])


def test_a_kubelet_that_has_given_nothing(tmp_path):
    result = write(tmp_path, '{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":1}')
    assert (result["allocations"], result["registered"]) == ([], {})


@pytest.mark.parametrize("text", [None, "{", "{}", '{"Data": []}', '{"Data": {"PodDeviceEntries": [{}], "RegisteredDevices": {}}}'])
def test_unreadable_is_not_nobody(tmp_path, text):
    result = info(tmp_path) if text is None else write(tmp_path, text)
    assert (result["failed"], result["error_kind"]) == (True, "allocations_unknown")
    assert [one["source"] for one in result["missing"]] == ["pod_resources", "checkpoint"]
