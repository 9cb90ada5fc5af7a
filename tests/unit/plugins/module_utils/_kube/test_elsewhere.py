# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""S11: who is certain to have another GPU; whoever is not, may have the sick one."""

from __future__ import annotations

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.elsewhere import pods_elsewhere
from kube_fakes import pod

ONE, TWO = {"nvidia.com/gpu": "1"}, {"nvidia.com/gpu": "2"}
MIG = {"nvidia.com/mig-1g.18gb": "1"}
GPUS = [
    {"uuid": "GPU-0", "pci_bus_id": "0000:00:06.0", "mig": {"instances": [{"uuid": "MIG-a"}]}, "processes": []},
    {"uuid": "GPU-1", "pci_bus_id": "0000:00:07.0", "mig": {"instances": [{"uuid": "MIG-b"}]}, "processes": []},
    {"uuid": "GPU-2", "pci_bus_id": "0000:00:08.0", "mig": None, "processes": []},
    {"uuid": None, "pci_bus_id": "0000:00:09.0", "mig": None, "processes": []},
]


def given(*devices, name="p", resource="nvidia.com/gpu", count=None):
    who = {"pod_namespace": "default", "pod_name": name, "container": "main"}
    return {**who, "resource": resource, "devices": list(devices), "count": count or len(devices)}


def told(*allocations, claims=()):
    return {"allocations": list(allocations), "claims": list(claims)}


def claim(driver):
    who = {"pod_namespace": "default", "pod_name": "p", "container": "main"}
    return {**who, "claim": "default/it", "driver": driver, "pool": "gpu-1", "device": "gpu-0"}


@pytest.mark.parametrize(
    ("it", "answer", "expected"),
    [
        pytest.param(pod("p", limits=ONE), told(given("GPU-1")), True, id="another GPU"),
        pytest.param(pod("p", limits=ONE), told(given("GPU-0")), False, id="the sick GPU"),
        pytest.param(pod("p", limits=TWO), told(given("GPU-0", "GPU-1")), False, id="the sick GPU and another"),
        pytest.param(pod("p", limits=TWO), told(given("GPU-1", "GPU-2")), True, id="two others"),
        pytest.param(pod("p", limits=TWO), told(given("GPU-1", count=2)), True, id="two shares of one GPU"),
        pytest.param(pod("p", limits=TWO), told(given("GPU-1")), False, id="not all yet"),
        pytest.param(pod("p", limits=ONE), told(), False, id="nothing yet"),
        pytest.param(pod("p", limits=ONE), told(given("GPU-1", name="q")), False, id="somebody else's"),
        pytest.param(pod("p", limits=MIG), told(given("MIG-b", resource="nvidia.com/mig-1g.18gb")), True, id="another GPU's MIG device"),
        pytest.param(pod("p", limits=MIG), told(given("MIG-a", resource="nvidia.com/mig-1g.18gb")), False, id="the sick GPU's MIG device"),
        pytest.param(
            pod("p", limits=MIG), told(given("MIG-z", resource="nvidia.com/mig-1g.18gb")), False, id="a MIG device of nobody knows"
        ),
        pytest.param(pod("p", limits=ONE), told(given("MIG-GPU-0/1/0")), False, id="the sick GPU's, by an old name"),
        pytest.param(pod("p", limits=ONE), told(given("MIG-GPU-1/1/0")), True, id="another GPU's, by an old name"),
        pytest.param(pod("p", limits=ONE), told(given("nvidia3")), False, id="a plugin that counts"),
        pytest.param(pod("p", limits=ONE), told(given("GPU-0-3")), False, id="a plugin with names of its own"),
        pytest.param(pod("p", limits=ONE, init_limits=TWO), told(given("GPU-1")), False, id="an init container had more"),
        pytest.param(pod("p", limits=ONE, init_limits=ONE), told(given("GPU-1")), True, id="an init container had the same"),
        pytest.param(pod("p", init_limits=ONE), told(), False, id="only an init container has one"),
        pytest.param(pod("p", limits=ONE), told(given("GPU-1"), claims=[claim("gpu.nvidia.com")]), False, id="a claim for a GPU"),
        pytest.param(pod("p", limits=ONE), told(given("GPU-1"), claims=[claim("nic.example")]), True, id="a claim for something else"),
        pytest.param(pod("p", limits=ONE, claims={"it": "it"}), told(given("GPU-1"), claims=[claim("nic.example")]), True, id="it alone"),
        pytest.param(
            pod("p", limits=ONE, claims={"it": "it", "other": "other"}),
            told(given("GPU-1"), claims=[claim("nic.example")]),
            False,
            id="and a claim of which the kubelet tells nothing",
        ),
        pytest.param(pod("p", limits=ONE, claims={"it": "it"}), told(given("GPU-1")), False, id="a kubelet that tells of no claims"),
        pytest.param(
            pod("p", limits=ONE, claims={"it": "it"}), told(given("GPU-1"), claims=[claim("")]), False, id="a claim of nobody knows whom"
        ),
        pytest.param(
            pod("p", limits={**ONE, "nvidia.com/GB202_VGPU": "1"}),
            told(given("GPU-1"), given("v1", resource="nvidia.com/GB202_VGPU")),
            False,
            id="a virtual GPU, of whichever",
        ),
        pytest.param(
            pod("p", limits=ONE),
            {"allocations": [{"pod_uid": "uid-p", "resource": "nvidia.com/gpu", "devices": ["GPU-1"], "count": 1}], "claims": []},
            True,
            id="by the UID that the checkpoint has",
        ),
    ],
)
def test_who_is_elsewhere(it, answer, expected):
    assert pods_elsewhere(answer, [it], GPUS, ["GPU-0", "0000:00:06.0"]) == (["uid-p"] if expected else [])


def test_a_process_on_the_sick_gpu():
    """S11: process lists may add pods."""
    busy = [{**GPUS[0], "processes": [{"container": None}, {"container": {"pod_uid": "uid-p"}}]}, *GPUS[1:]]
    assert pods_elsewhere(told(given("GPU-1")), [pod("p", limits=ONE)], busy, ["GPU-0"]) == []


def test_by_its_address_only():
    who = [pod("p", limits=ONE), pod("q", limits=ONE)]
    assert pods_elsewhere(told(given("GPU-0"), given("GPU-1", name="q")), who, GPUS, ["0000:00:06.0"]) == ["uid-q"]
    assert pods_elsewhere(told(given("GPU-1")), who, GPUS, ["0000:00:09.0"]) is None, "nobody knows its UUID"
