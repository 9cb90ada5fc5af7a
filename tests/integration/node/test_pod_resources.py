# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""gpu_allocations_info against gRPC's own server, on the simulated kubelet's socket."""

from __future__ import annotations

import time

import pytest
from ansible_collections.gpuops.remediation.plugins.modules import gpu_allocations_info
from gpusim import kubelet, pod_resources
from run_module import run_module


def bound(name, gpus=1):
    container = {"name": "main", "image": "train:1", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
    metadata = {"uid": f"uid-{name}", "name": name, "namespace": "ml", "annotations": {kubelet.IDLE: "true"}}
    return {"metadata": metadata, "spec": {"nodeName": "gpu-1", "containers": [container]}, "status": {"phase": "Running"}}


@pytest.fixture
def served(node):
    list(kubelet.sync(node.sim, [bound("one"), bound("two", 2)]))
    server = pod_resources.Server(node.sim)
    server.sync()
    yield node
    server.stop()


def info(node, **params):
    where = {"kubelet_dir": node.options["kubelet_dir"], "state_dir": node.options["state_dir"], "timeout_seconds": 5}
    return run_module(gpu_allocations_info.main, **{**where, **params})


def test_both_sources_tell_the_same(served):
    asked, read = info(served), info(served, sources=["checkpoint"])
    assert (asked["source"], read["source"], asked["missing"]) == ("pod_resources", "checkpoint", [])
    assert {one["pod_name"]: one["devices"] for one in asked["allocations"]} == {"one": served.uuids[:1], "two": sorted(served.uuids[1:])}
    assert [{**one, "pod_uid": ""} for one in read["allocations"]] == [
        {"pod_uid": "", **{key: value for key, value in one.items() if not key.startswith("pod_")}} for one in asked["allocations"]
    ]


@pytest.mark.parametrize(("how", "why"), [("hangs", "within"), ("unimplemented", "UNIMPLEMENTED: unknown service v1.PodResourcesLister")])
def test_a_source_that_fails_gives_way_in_time(served, how, why):
    served.sim.pod_resources(how)
    begun = time.monotonic()
    told = info(served, timeout_seconds=2)
    assert time.monotonic() - begun < 20, "the limit, on a busy machine"
    assert (told["source"], len(told["allocations"])) == ("checkpoint", 2)
    assert why in told["missing"][0]["why"]
    alone = info(served, sources=["pod_resources"], timeout_seconds=2)
    assert (alone["failed"], alone["error_kind"]) == (True, "allocations_unknown")


def test_an_answer_larger_than_a_window(served):
    """HTTP/2 stops after 64 KiB until they are acknowledged."""
    with served.sim.change() as state:
        [record] = [one for one in state["pods"].values() if one["name"] == "one"]
        state["pods"].update({f"uid-{number}": {**record, "name": f"pod-{number}"} for number in range(2000)})
    told = info(served, timeout_seconds=20)
    assert (told["source"], len(told["allocations"])) == ("pod_resources", 2002)
