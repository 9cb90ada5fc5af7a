# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.device_taints import (
    DeviceId,
    as_made,
    devices_of,
    holders,
    manifest,
    parse_devices,
    parse_rule,
    plan,
    rule_of,
    wanted,
)
from kube_fakes import claim, resource_slice

OURS = {"key": "gpu.unhealthy", "value": "true", "effect": "NoSchedule"}
GPU_0 = DeviceId("gpu.nvidia.com", "gpu-1", "gpu-0")
WHOLE = {"gpu-0": {"uuid": "GPU-a", "resource.kubernetes.io/pciBusID": "0000:19:00.0"}, "gpu-1": {"uuid": "GPU-b"}}


@pytest.mark.parametrize("gpu", ["GPU-a", "gpu-A", "0000:19:00.0", "00000000:19:00.0"])
def test_a_gpu_is_found_by_uuid_and_by_address(gpu):
    devices = parse_devices([resource_slice("gpu-1", WHOLE), resource_slice("gpu-2", WHOLE)])
    assert [device.id for device in devices_of(devices, "gpu-1", [gpu])] == [GPU_0]


def test_several_drivers_and_the_parts_of_a_gpu():
    """Whoever publishes it, and in as many devices as it is cut up into; what is only near it is none of them."""
    slices = [
        resource_slice("gpu-1", {"mig-0": {"uuid": "MIG-1", "gpu.nvidia.com/parentUUID": "GPU-a"}, "mig-1": {"parentUUID": "GPU-a"}}),
        resource_slice("gpu-1", {"card": {"gpu.example.com/pciAddress": "0000:19:00.0"}}, driver="gpu.example.com"),
        resource_slice("gpu-1", {"nic": {"nearestGpu": "GPU-a"}}, driver="nic.example.com"),
    ]
    devices = parse_devices(slices)
    assert [device.id.device for device in devices_of(devices, "gpu-1", ["GPU-a"])] == ["mig-0", "mig-1"]
    assert [device.id.driver for device in devices_of(devices, "gpu-1", ["0000:19:00.0"])] == ["gpu.example.com"]


ADDRESS = "0000:19:00.0"
BY_ADDRESS = resource_slice("gpu-1", {"card": {"pciBusID": ADDRESS}}, driver="gpu.example.com")


@pytest.mark.parametrize(
    "slices, found",
    [
        pytest.param([resource_slice("gpu-1", WHOLE), BY_ADDRESS], ["card", "gpu-0"], id="two drivers, of which each says one"),
        pytest.param(
            [resource_slice("gpu-1", {"gpu-0": {"uuid": "GPU-a"}, "mig-0": {"uuid": "MIG-1", "pciBusID": ADDRESS}})],
            ["gpu-0", "mig-0"],
            id="a part",
        ),
        pytest.param(
            [resource_slice("gpu-1", {"gpu-0": {"uuid": "GPU-a"}, "gpu-1": {"uuid": "GPU-b", "pciBusID": ADDRESS}})], ["gpu-0"], id="moved"
        ),
        pytest.param([resource_slice("gpu-1", {"gpu-1": {"uuid": "GPU-b", "pciBusID": ADDRESS}})], [], id="lost, and its address moved on"),
        pytest.param(
            [resource_slice("gpu-1", {"gpu-1": {"uuid": "GPU-b", "pciBusID": ADDRESS}}), BY_ADDRESS],
            [],
            id="moved on, and a driver says nothing but the address",
        ),
        pytest.param([BY_ADDRESS], ["card"], id="nobody says a UUID"),
    ],
)
def test_all_that_goes_by_any_of_its_names(slices, found):
    devices = parse_devices(slices)
    for gpu in (["GPU-a", ADDRESS], [ADDRESS, "GPU-a"]):
        assert sorted(device.id.device for device in devices_of(devices, "gpu-1", gpu)) == found


def test_who_knows_the_address_alone_goes_by_it():
    devices = parse_devices([resource_slice("gpu-1", {"gpu-1": {"uuid": "GPU-b", "pciBusID": ADDRESS}})])
    assert [device.id.device for device in devices_of(devices, "gpu-1", [ADDRESS])] == ["gpu-1"]


def test_of_a_pool_only_the_newest_generation():
    old, new = resource_slice("gpu-1", WHOLE), resource_slice("gpu-1", {"gpu-7": {"uuid": "GPU-a"}})
    new["spec"]["pool"]["generation"] = 2
    assert [device.id.device for device in devices_of(parse_devices([old, new]), "gpu-1", ["GPU-a"])] == ["gpu-7"]


def test_a_slice_of_several_nodes_says_it_by_device():
    shared = resource_slice("gpu-1", WHOLE)
    del shared["spec"]["nodeName"]
    shared["spec"]["devices"][0]["nodeName"] = "gpu-2"
    assert [device.node for device in parse_devices([shared])] == ["gpu-2"]


def test_a_name_says_the_incident_and_the_device():
    """The same each time, and another for every driver, pool and incident."""
    others = [GPU_0._replace(pool="gpu-2"), GPU_0._replace(driver="gpu.example.com"), GPU_0._replace(device="gpu-1")]
    names = [rule_of("i-1", device, OURS).name for device in (GPU_0, GPU_0, *others)]
    assert names[0] == names[1] and names[0].startswith("gpuops-i-1-gpu-0-")
    assert len({*names, rule_of("i-2", GPU_0, OURS).name, rule_of("", GPU_0, OURS).name}) == 6


def test_what_is_created_reads_back_as_it_was_meant():
    rule = rule_of("i-1", GPU_0, OURS)
    body = manifest(rule, "v1beta2", "gpu-1", "u1")
    assert body["metadata"]["ownerReferences"] == [{"apiVersion": "v1", "kind": "Node", "name": "gpu-1", "uid": "u1"}]
    body["metadata"].update(uid="r1", resourceVersion="7")
    body["spec"]["taint"]["timeAdded"] = "2026-01-02T03:04:05Z"
    assert as_made(parse_rule(body), rule)
    for change in ({"value": "sent-back"}, {"effect": "NoExecute"}, {"key": "other"}):
        assert not as_made(parse_rule({**body, "spec": {**body["spec"], "taint": {**OURS, **change}}}), rule)
    body["spec"]["deviceSelector"].pop("device")
    assert not as_made(parse_rule(body), rule), "it selects more by now"


def test_the_plan_creates_and_deletes_and_never_writes():
    rule, other = rule_of("i-1", GPU_0, OURS), rule_of("i-1", GPU_0._replace(device="gpu-1"), OURS)
    there = {rule.name: rule}
    assert [(step.action, step.after and step.after["device"]) for step in plan(there, {rule.name: rule, other.name: other})] == [
        ("create", "gpu-1")
    ]
    assert [step.action for step in plan(there, {rule.name: None, other.name: None})] == ["delete"]
    assert wanted(there, {rule.name: None, other.name: other}) == {other.name: other}
    assert plan(there, {rule.name: rule}) == []


def test_holders_are_the_pods_of_the_claims():
    claims = [
        claim("a", "gpu-1", "gpu-0", pods=["u1", "u2"]),
        claim("b", "gpu-1", "gpu-1", pods=["u3"]),
        claim("c", "gpu-2", "gpu-0", pods=["u4"]),
        {"metadata": {"name": "waits"}},
    ]
    claims[0]["status"]["reservedFor"].append({"resource": "podgroups", "name": "g", "uid": "g1"})
    assert holders(claims, {GPU_0: [OURS]}) == {"u1": False, "u2": False}


def test_a_claim_may_tolerate_how_its_device_is_tainted():
    tolerant, other = claim("a", "gpu-1", "gpu-0", pods=["u1"]), claim("b", "gpu-1", "gpu-1", pods=["u1"])
    tolerant["status"]["allocation"]["devices"]["results"][0]["tolerations"] = [{"key": "gpu.unhealthy", "operator": "Exists"}]
    gpu_1 = GPU_0._replace(device="gpu-1")
    assert holders([tolerant, other], {GPU_0: [OURS]}) == {"u1": True}
    assert holders([tolerant, other], {GPU_0: [OURS], gpu_1: [OURS]}) == {"u1": False}
    assert holders([other], {gpu_1: []}) == {"u1": True}, "nothing keeps it away"
