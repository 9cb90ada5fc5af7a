# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from dataclasses import replace

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._errors import RemediationError
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.errors import LockLost
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.advertised import PLUGIN_LABELS
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.device_plugin import DevicePlugin, Want
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.errors import Forbidden
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.nodes import NodeWriter
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.permit import Permit
from kube_fakes import Clock, FakeApi, pod

NODE = "/api/v1/nodes/gpu-1"
PODS = "/api/v1/namespaces/default/pods"
MIG = "nvidia.com/mig-3g.71gb"
OURS = {"key": "gpuops.remediation/mig-change", "value": "", "effect": "NoSchedule"}
LABELS = {"app": "nvidia-device-plugin-daemonset"}
READY = ({"type": "Ready", "status": "True"},)


class World:
    """A node that advertises `told`. `comes` says what a new pod of the plugin is like, None that there is none."""

    def __init__(self, told, *, capacity=None, tolerates=True, comes=READY, advertises=None, pods=1):
        self.clock = Clock()
        self.clock.on_sleep = self.later
        self.api = FakeApi(self.clock)
        self.api.before = self.answer
        self.comes, self.advertises = comes, advertises
        self.tolerations = [{"operator": "Exists"}] if tolerates else []
        self.pods = 0
        self.gone = False
        self.put_node(told, capacity)
        for _number in range(pods):
            self.put_pod(READY)

    def put_node(self, told, capacity=None):
        self.api.put(NODE, {"metadata": {"name": "gpu-1"}, "spec": {}, "status": {"allocatable": told, "capacity": capacity or told}})

    def put_pod(self, conditions):
        self.pods += 1
        thing = pod(f"plugin-{self.pods}", node="gpu-1", labels=LABELS, tolerations=self.tolerations, container="nvidia-device-plugin")
        thing["spec"]["containers"][0]["env"] = [{"name": "MIG_STRATEGY", "value": "mixed"}]
        thing["status"]["conditions"] = conditions
        self.api.put(f"{PODS}/plugin-{self.pods}", thing)

    def answer(self, method, path, body):
        if method == "DELETE" and not body.get("dryRun"):
            assert body["preconditions"]["uid"] == self.api.objects[path]["metadata"]["uid"]
            del self.api.objects[path]
            self.gone = True
            return {}
        return None

    def later(self):
        if self.gone and self.comes is not None:
            self.gone = False
            self.put_pod(self.comes)
            if self.advertises is not None:
                self.put_node(self.advertises)

    def advertise(self, check_mode=False, renew_lock=None, seconds=30, **want):
        asked = replace(Want(0, {"3g.71gb": 2}, None, PLUGIN_LABELS, ()), **want)
        writer = NodeWriter(self.api, Permit("gpu-1", None, renew_lock), self.clock.deadline(seconds), None, check_mode)
        return DevicePlugin(writer, asked).advertise()


def test_the_pod_is_restarted_where_the_node_advertises_something_else():
    world = World({MIG: "1"}, advertises={MIG: "2"})
    outcome = world.advertise()
    assert [step.target for step in outcome.steps] == ["pod/default/plugin-1"]
    assert (outcome.before.show()["resources"], outcome.after.show()["resources"]) == ({MIG: 1}, {MIG: 2})
    assert [method for method, _path, _body in world.api.writes()] == ["DELETE"]


@pytest.mark.parametrize("check_mode", [True, False])
@pytest.mark.parametrize("want", [{"empty": ("GPU-1",)}, {"mig_devices": {"3g.71gb": 1, "1c.3g.71gb": 2}}])
def test_a_plugin_that_would_end_by_what_is_there_is_not_restarted(want, check_mode):
    world = World({MIG: "1"}, advertises={MIG: "2"})
    with pytest.raises(RemediationError) as refused:
        world.advertise(check_mode, **want)
    assert refused.value.kind == "strategy_unfit" and world.api.writes() == []


def test_another_pod_with_the_plugins_label_is_left_alone():
    world = World({MIG: "1"}, advertises={MIG: "2"})
    world.api.put(f"{PODS}/discovery", pod("discovery", node="gpu-1", labels=LABELS, container="gpu-feature-discovery-ctr"))
    world.api.objects = dict(sorted(world.api.objects.items()))  # as a server lists them
    assert world.advertise().after.show()["pod"]["name"] == "plugin-2"
    assert [path for _method, path, _body in world.api.writes()] == [f"{PODS}/plugin-1"]


def test_nothing_where_it_advertises_what_is_there():
    world = World({MIG: "2"})
    assert world.advertise().steps == [] and world.api.writes() == []


@pytest.mark.parametrize("told, missing", [({MIG: "1"}, 1), ({MIG: "0"}, 2)])
def test_what_the_plugin_took_out_is_not_put_back_by_a_restart(told, missing):
    world = World(told, capacity={MIG: "2"})
    outcome = world.advertise()
    assert outcome.steps == [] and world.api.writes() == [] and outcome.after.show()["unhealthy"] == {MIG: missing}


@pytest.mark.parametrize(
    "told, capacity",
    [
        pytest.param({MIG: "1"}, {MIG: "1"}, id="fewer"),
        pytest.param({MIG: "1", "nvidia.com/gpu": "1"}, {MIG: "2", "nvidia.com/gpu": "1"}, id="something else too"),
    ],
)
def test_what_the_plugin_does_not_know_takes_a_restart(told, capacity):
    assert len(World(told, capacity=capacity, advertises={MIG: "2"}).advertise().steps) == 1


def test_one_that_is_taken_out_meanwhile_keeps_nobody_waiting():
    """What the node had before keeps its capacity for some minutes, and is no device."""
    world = World({"nvidia.com/gpu": "1"})
    world.put_node = lambda _told: World.put_node(world, {MIG: "1", "nvidia.com/gpu": "0"}, {MIG: "2", "nvidia.com/gpu": "1"})
    world.advertises = True
    after = world.advertise().after.show()
    assert (after["resources"], after["unhealthy"]) == ({MIG: 1}, {MIG: 1})


def test_capacity_alone_is_no_word_of_a_new_plugin():
    """It is what the old one left."""
    world = World({MIG: "2"})
    world.put_node = lambda _told: World.put_node(world, {MIG: "0"}, {MIG: "2"})
    world.advertises = True
    with pytest.raises(RemediationError) as refused:
        world.advertise(restart=True)
    assert refused.value.kind == "not_advertised"


def test_as_many_that_are_others():
    world = World({MIG: "2"}, advertises={MIG: "2"})
    assert world.advertise(restart=True).after.show()["pod"]["name"] == "plugin-2"


def test_check_mode_asks_the_server_whether_it_could():
    world = World({MIG: "1"})
    outcome = world.advertise(check_mode=True)
    assert outcome.after.show()["resources"] == {MIG: 2}
    assert [(method, body["dryRun"]) for method, _path, body in world.api.writes()] == [("DELETE", ["All"])]

    def refuse(method, path, body):
        if method == "DELETE":
            raise Forbidden("pods is forbidden", status=403)

    world.api.before = refuse
    with pytest.raises(Forbidden):
        world.advertise(check_mode=True)


@pytest.mark.parametrize(
    "options, want, kind, words",
    [
        pytest.param(
            {"tolerates": False},
            {"taints": (OURS,)},
            "plugin_unfit",
            "does not tolerate gpuops.remediation/mig-change:NoSchedule",
            id="would not come back",
        ),
        pytest.param({"pods": 0}, {"strategy": "mixed"}, "plugin_missing", "no pod of the device plugin", id="no pod"),
        pytest.param({"pods": 2}, {"strategy": "mixed"}, "plugin_unfit", "default/plugin-1, default/plugin-2", id="two"),
        pytest.param({"pods": 0}, {}, "strategy_unfit", "tells the MIG strategy", id="no strategy"),
    ],
)
def test_refused_before_anything_is_deleted(options, want, kind, words):
    world = World({MIG: "1"}, **options)
    for check_mode in (True, False):
        with pytest.raises(RemediationError, match=words) as refused:
            world.advertise(check_mode=check_mode, **want)
        assert refused.value.kind == kind
    assert world.api.writes() == []


def test_shared_gpus():
    with pytest.raises(RemediationError, match=r"shares GPUs among pods \(nvidia.com/gpu.shared\)"):
        World({"nvidia.com/gpu.shared": "8"}).advertise()


@pytest.mark.parametrize(
    "options, kind, words",
    [
        pytest.param({"comes": None}, "plugin_not_back", "no new pod of the device plugin came", id="none"),
        pytest.param({"comes": []}, "plugin_not_back", r"default/plugin-2 on node gpu-1 is not ready \(Running\)", id="not ready"),
        pytest.param({"advertises": {}}, "not_advertised", "advertises no GPU, not 2 nvidia.com/mig-3g.71gb", id="advertises nothing"),
    ],
)
def test_what_came_instead(options, kind, words):
    with pytest.raises(RemediationError, match=words) as refused:
        World({MIG: "1"}, **options).advertise()
    assert refused.value.kind == kind


def test_without_the_lock_nothing_is_deleted():
    def lost():
        raise LockLost("another has it")

    world = World({MIG: "1"})
    with pytest.raises(LockLost):
        world.advertise(renew_lock=lost)
    assert world.api.writes() == []
