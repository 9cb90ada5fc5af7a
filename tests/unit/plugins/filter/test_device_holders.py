# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from ansible_collections.gpuops.remediation.plugins.filter.device_holders import device_holders
from kube_fakes import pod

MIG = {"nvidia.com/mig-3g.71gb": "1"}


def given(pod_uid, *devices):
    return {"pod_uid": pod_uid, "container": "main", "resource": "nvidia.com/mig-3g.71gb", "devices": list(devices)}


def test_who_has_what():
    """Whose GPU comes by a claim that the scheduler made is given none by the kubelet's device plugin."""
    by_claim = pod("by-claim", limits={"nvidia.com/gpu": "1"})
    mapping = {"containerName": "main", "resourceName": "nvidia.com/gpu", "requestName": "r"}
    by_claim["status"]["extendedResourceClaimStatus"] = {"resourceClaimName": "made", "requestMappings": [mapping]}
    pods = [
        pod("infer", limits=MIG),
        pod("ending", limits=MIG, terminating=True),
        pod("done", limits=MIG, phase="Succeeded"),
        pod("static", annotations={"kubernetes.io/config.hash": "c0ffee"}, limits=MIG),
        pod("new", limits=MIG),
        pod("no-gpu"),
        by_claim,
    ]
    allocations = [
        given("uid-infer", "MIG-1", "MIG-2"),
        given("uid-ending", "MIG-3"),
        given("uid-done", "MIG-4"),
        given("c0ffee", "MIG-5"),
        given("uid-forgotten", "MIG-6"),
    ]
    assert device_holders(allocations, pods) == {
        "devices": {"MIG-1": "default/infer", "MIG-2": "default/infer", "MIG-3": "default/ending", "MIG-5": "default/static"},
        "pods": {
            device: {"uid": f"uid-{name}"}
            for device, name in [("MIG-1", "infer"), ("MIG-2", "infer"), ("MIG-3", "ending"), ("MIG-5", "static")]
        },
        "unsettled": ["default/new"],
    }
