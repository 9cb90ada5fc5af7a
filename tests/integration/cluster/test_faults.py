# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Each fault does what its name says, to those it is meant for, and is gone afterwards."""

from __future__ import annotations

import time

import pytest
from cluster import ACCOUNT, faults
from cluster.api import Api, ApiError
from cluster.faults import Admission, admission

NOTE = {"metadata": {"annotations": {"test.gpuops.io/note": "x"}}}


@pytest.fixture
def me(cluster):
    cluster.objects.make_node("gpu-0")
    return Api(cluster.kubeconfig)


@pytest.mark.parametrize("name", ["kube-apiserver", "etcd"])
def test_a_program_that_hangs(cluster, me, name):
    cluster[name].pause()
    with pytest.raises(TimeoutError):
        me.request("GET", "/api/v1/nodes/gpu-0?resourceVersion=", timeout_seconds=1)
    cluster[name].resume()
    assert me.get("Node", "gpu-0")


@pytest.mark.parametrize("name", ["kube-apiserver", "etcd"])
def test_a_program_that_is_killed_comes_back_with_all_it_knew(cluster, me, name):
    uid = me.get("Node", "gpu-0")["metadata"]["uid"]
    with cluster.outage(name):
        assert not cluster[name].running
        with pytest.raises((ApiError, OSError)):
            me.patch("Node", "gpu-0", NOTE, timeout_seconds=1)
    assert me.get("Node", "gpu-0")["metadata"]["uid"] == uid
    cluster.objects.deployment("infer")  # scheduler, controllers and kubelets have found it again


@pytest.mark.parametrize("name", ["kube-scheduler", "kwok"])
def test_mend(cluster, me, name):
    cluster[name].kill()
    cluster.mend()
    cluster.objects.deployment("infer")


def test_a_webhook_that_fails_twice(cluster, me):
    with admission(cluster, "nodes", Admission(status=500, times=2)) as fault:
        for _attempt in range(2):
            with pytest.raises(ApiError) as failed:
                me.patch("Node", "gpu-0", NOTE)
            assert failed.value.status == 500
        cluster.objects.cordon("gpu-0")  # another user is not hit
        me.patch("Node", "gpu-0", NOTE)
    me.patch("Node", "gpu-0", NOTE)
    assert {request["userInfo"]["username"] for request in fault.seen} == {ACCOUNT}


def test_a_webhook_that_is_slow_on_evictions(cluster, me):
    pod = cluster.objects.pod("infer")
    with admission(cluster, "pods/eviction", Admission(delay_seconds=1)):
        begun = time.monotonic()
        me.request("POST", "/api/v1/namespaces/default/pods/infer/eviction", {"metadata": {"name": pod["metadata"]["name"]}})
        assert time.monotonic() - begun >= 1


def test_a_writer_that_is_faster(cluster, me):
    """The other one's write comes after our read and before ours: 409, and its taint is there."""
    version = me.get("Node", "gpu-0")["metadata"]["resourceVersion"]
    with (
        admission(cluster, "nodes", Admission(before=lambda request: cluster.objects.taint("gpu-0", "other"), times=1)),
        pytest.raises(ApiError) as conflict,
    ):
        me.patch("Node", "gpu-0", {"metadata": {**NOTE["metadata"], "resourceVersion": version}})
    assert conflict.value.status == 409
    assert cluster.objects.taints("gpu-0") == ["other=:NoSchedule"]


def test_requests_over_the_limit(cluster, me):
    with faults.too_many_requests(cluster, verbs=["patch"], resources=["nodes"]):
        with pytest.raises(ApiError) as refused:
            me.patch("Node", "gpu-0", NOTE)
        assert refused.value.status == 429
        assert me.get("Node", "gpu-0")  # reads are not in it
        cluster.objects.cordon("gpu-0")  # nor is anybody else
    me.patch("Node", "gpu-0", NOTE)
