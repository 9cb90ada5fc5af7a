# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A layout change on a real control plane: what stands around it, in which order, and what is left where it fails."""

from __future__ import annotations

import re

import pytest
from cluster import audit
from cluster.api import Api
from cluster.objects import wait_until
from fleet import side_by_side
from gpusim import instances
from mig_fleet import NAMESPACE, PLUGIN

HALVES = [{"counts": {"3g.71gb": 2}}]
TAINT = "gpuops.remediation/mig-change=:NoSchedule"
pytestmark = pytest.mark.timeout(900)


def last_words(run):
    """What ended the run of each host."""
    return {re.search(r"\[([^]]+)\]", failure)[1]: failure for failure in run.failures}


def test_from_whole_gpus_to_halves_and_no_further(fleet):
    """Foretold, done, advertised, usable; and run again it writes nothing."""
    fleet.gpu_nodes("gpu-1", gpus=2, gpuops_mig_layouts=[{"gpus": ["{{ gpuops_first }}"], **HALVES[0]}])
    fleet.host_variables["gpu-1"]["gpuops_first"] = fleet.uuid("gpu-1", 0)
    with fleet.kubelet():
        fleet.device_plugin()
        foretold = fleet.play("mig", "--check", "--diff")
        assert foretold.ok, foretold.output
        assert (fleet.changes(), fleet.layout("gpu-1", 0), fleet.advertised("gpu-1")) == ([], [], {"gpu": 2})
        ledger = fleet.ledger(write=True)
        ledger.configure("observe", None, False, "tests", "the test needs it")
        forbidden = fleet.play("mig")
        assert "nothing was changed on gpu-1: the mode observe forbids" in forbidden.failures[-1], forbidden.output
        assert (fleet.changes(), fleet.writes("leases"), fleet.layout("gpu-1", 0)) == ([], [], [])
        ledger.configure("act", None, False, "tests", "the test needs it")
        assert "3g.71gb@4" in foretold.output and "mig-change" in foretold.output and "nvidia.com/mig-3g.71gb" in foretold.output

        run = fleet.play("mig")
        assert run.ok, run.output
        assert (fleet.layout("gpu-1", 0), fleet.layout("gpu-1", 1)) == (["3g.71gb@0", "3g.71gb@4"], [])
        assert fleet.changes() == [("patch", "nodes"), ("delete", "pods"), ("patch", "nodes")], "tainted, restarted, untainted"
        assert (fleet.advertised("gpu-1"), fleet.objects.taints("gpu-1")) == ({"gpu": 1, "mig-3g.71gb": 2}, [])

        since = audit.now()
        again = fleet.play("mig")
        assert again.ok and again.changed("gpu-1") == 0, again.output
        assert fleet.writes(since=since) == [], "not even the lock"
        fleet.objects.pod("infer", devices={"nvidia.com/mig-3g.71gb": 1})
        for file in (fleet.nodes["gpu-1"].path / "dev/nvidia-caps").iterdir():
            file.unlink()
        unmade = fleet.play("mig", nvidia_modprobe="/nonexistent")
        assert unmade.ok and "/nonexistent cannot be run" in unmade.output, unmade.output
        assert fleet.changes(since) == [], "nobody is kept away for files that cannot be made"


@pytest.mark.parametrize("namespace, deletes", [(NAMESPACE, True), ("default", False), ("gpuops-system", False)])
def test_rights(fleet, namespace, deletes):
    """Least privilege: pods are deleted in the device plugin's namespace and nowhere else."""
    asked = {"spec": {"resourceAttributes": {"namespace": namespace, "verb": "delete", "resource": "pods"}}}
    answer = Api(fleet.cluster.kubeconfig).request("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", asked)
    assert answer["status"]["allowed"] is deletes


def test_refused_and_untouched(fleet, tmp_path):
    """S7: beside another MIG manager; a pod that has what would go, idle as it is; a plugin that would not come back, or end by what it finds."""
    names = ["labelled", "operated", "unit", "hami", "claims", "held", "whole", "parts", "empty", "intolerant"]
    fleet.gpu_nodes(*names, gpus=1, gpuops_mig_layouts=HALVES)
    fleet.host_variables["parts"]["gpuops_mig_layouts"] = [{"counts": {"1c.3g.71gb": 6}}]
    fleet.host_variables["empty"]["gpuops_mig_layouts"] = [{"mig_enabled": True}]
    fleet.objects.api.patch("Node", "labelled", {"metadata": {"labels": {"nvidia.com/mig.config": "all-disabled"}}})
    boot = tmp_path / "boot" / "mig.json"
    boot.parent.mkdir()
    boot.write_text("{}")
    fleet.host_variables["labelled"].update(gpuops_kubelet_dir=str(tmp_path / "no-kubelet"), gpuops_mig_config_dir=str(boot.parent))
    fleet.objects.pod("nvidia-mig-manager", node="operated", gpus=0)
    fleet.objects.api.patch("Node", "hami", {"metadata": {"annotations": {"hami.io/node-nvidia-register": "[]"}}})
    fleet.objects.publish("claims", {"gpu-0": {"uuid": fleet.uuid("claims", 0)}})
    fleet.objects.publish("held", {"nic-0": {"model": "a"}}, driver="nic.example.com")
    link = tmp_path / "other-units" / "multi-user.target.wants" / "nvidia-mig-manager.service"
    link.parent.mkdir(parents=True)
    link.symlink_to("/etc/systemd/system/nvidia-mig-manager.service")
    fleet.host_variables["unit"]["gpuops_mig_unit_dir"] = str(tmp_path / "other-units")
    instances.set_mode(fleet.nodes["held"], 0, True)
    instances.create(fleet.nodes["held"], 0, "7g.141gb")
    with fleet.kubelet():
        fleet.device_plugin(*names[:-1])
        fleet.device_plugin("intolerant", name="nvidia-device-plugin", tolerates=False)
        wait_until(lambda: fleet.advertised("held") == {"mig-7g.141gb": 1}, "the plugin's word")
        fleet.idle_pod("tenant", "held", {"nvidia.com/mig-7g.141gb": 1})
        fleet.idle_pod("trainer", "whole", {"nvidia.com/gpu": 1})

        run = fleet.play("mig", mig_serial=len(names))

    told = last_words(run)
    assert set(told) == set(names), run.output
    assert "the label nvidia.com/mig.config=all-disabled" in told["labelled"]
    assert not boot.exists(), "whose node it is comes before whatever else is wrong with it"
    assert "the pod nvidia-mig-manager" in told["operated"]
    assert "the annotation hami.io/node-nvidia-register" in told["hami"]
    assert "ResourceSlices of the driver gpu.nvidia.com" in told["claims"]
    assert "multi-user.target.wants/nvidia-mig-manager.service" in told["unit"]
    assert "nothing was changed on held" in told["held"] and "7g.141gb@0" in told["held"]
    assert "default/trainer has a whole GPU" in told["whole"]
    assert "no resource for a part of a GPU instance (1c.3g.71gb)" in told["parts"]
    assert f"GPU {fleet.uuid('empty', 0)} has MIG on and no MIG device" in told["empty"]
    assert "does not tolerate gpuops.remediation/mig-change:NoSchedule" in told["intolerant"]
    assert (fleet.writes("nodes", "pods", "leases"), fleet.layout("held", 0)) == ([], ["7g.141gb@0"]), run.output
    assert all(fleet.layout(name, 0) == [] for name in names if name != "held")


def test_what_is_left_where_it_fails(fleet):
    """A node that advertises what is there takes work again; another keeps the taint until a further run has put it right."""
    fleet.gpu_nodes("broken", gpus=2, gpuops_mig_layouts=HALVES)
    fleet.gpu_nodes("stuck", gpus=1, gpuops_mig_layouts=HALVES)
    with fleet.kubelet():
        fleet.device_plugin("broken", name="nvidia-device-plugin")
        fleet.device_plugin("stuck")
        plugin = fleet.objects.api.get("DaemonSet", PLUGIN, NAMESPACE)["spec"]["template"]["spec"]
        nowhere = {**plugin["containers"][0], "resources": {"requests": {"cpu": "1000"}}}
        fleet.objects.api.patch("DaemonSet", PLUGIN, {"spec": {"updateStrategy": {"type": "OnDelete", "rollingUpdate": None}}}, NAMESPACE)
        fleet.objects.api.patch("DaemonSet", PLUGIN, {"spec": {"template": {"spec": {"containers": [nowhere]}}}}, NAMESPACE)
        fleet.nodes["broken"].fail("nvmlDeviceCreateGpuInstanceWithPlacement", "UNKNOWN", times=None, index=1)

        run = fleet.play("mig", mig_serial=2, mig_plugin_seconds=20)

        broken, stuck = map(last_words(run).get, ("broken", "stuck"))
        assert "broken advertises what is there, so the taint gpuops.remediation/mig-change is off again" in broken, run.output
        assert (fleet.layout("broken", 0), fleet.layout("broken", 1)) == (["3g.71gb@0", "3g.71gb@4"], []), (
            "one is no reason against the other"
        )
        assert (fleet.advertised("broken"), fleet.objects.taints("broken")) == ({"gpu": 1, "mig-3g.71gb": 2}, [])
        assert "no new pod of the device plugin came to node stuck" in stuck
        assert "stuck is not known to advertise what is there" in stuck and "so the taint gpuops.remediation/mig-change stays" in stuck
        assert (fleet.layout("stuck", 0), fleet.objects.taints("stuck")) == (["3g.71gb@0", "3g.71gb@4"], [TAINT])

        fleet.objects.api.patch("DaemonSet", PLUGIN, {"spec": {"template": {"spec": plugin}}}, NAMESPACE)
        for pod in fleet.objects.pods(PLUGIN, namespace=NAMESPACE, phase="Pending"):
            fleet.objects.api.delete("Pod", pod["metadata"]["name"], NAMESPACE)
        fleet.objects.wait_for_pods(PLUGIN, 1, namespace=NAMESPACE)
        wait_until(lambda: fleet.advertised("stuck") == {"mig-3g.71gb": 2}, "the plugin's word")
        mended = fleet.play("mig", mig_hosts="stuck")
    assert mended.ok and fleet.objects.taints("stuck") == [], mended.output


def test_a_node_left_tainted_is_put_right_though_its_layout_is_refused(fleet):
    """What an earlier run changed and could not make known: with what is wanted out of reach, the scheduler has to know it all the same."""
    fleet.gpu_nodes("gpu-1", gpus=2, gpuops_mig_layouts=[{"counts": {"3g.71gb": 3}}])
    with fleet.kubelet():
        fleet.device_plugin()
        wait_until(lambda: fleet.advertised("gpu-1") == {"gpu": 2}, "the plugin's word")
        instances.set_mode(fleet.nodes["gpu-1"], 0, True)
        instances.create(fleet.nodes["gpu-1"], 0, "7g.141gb")
        fleet.objects.taint("gpu-1", "gpuops.remediation/mig-change")

        refused = fleet.play("mig")

        told = last_words(refused)["gpu-1"]
        assert "nothing was changed on gpu-1" in told and "is off again" in told, refused.output
        assert (fleet.advertised("gpu-1"), fleet.objects.taints("gpu-1")) == ({"gpu": 1, "mig-7g.141gb": 1}, [])


def test_a_pod_on_its_way(fleet):
    """What was bound to the node before the taint, and has no device yet, is waited for and then a reason to do nothing."""
    fleet.gpu_nodes("gpu-1", gpus=1, gpuops_mig_layouts=HALVES)
    with fleet.kubelet():
        fleet.device_plugin()
        wait_until(lambda: fleet.advertised("gpu-1") == {"gpu": 1}, "the plugin's word")
    fleet.objects.pod("late", gpus=1)  # the kubelet is away

    run = fleet.play("mig", mig_settle_seconds=3)

    told = last_words(run)["gpu-1"]
    assert "no device was given to default/late within 3 s" in told and "is off again" in told, run.output
    assert (fleet.layout("gpu-1", 0), fleet.objects.taints("gpu-1")) == ([], [])

    def go():
        wait_until(lambda: fleet.objects.taints("gpu-1"), "the taint", 120)
        [pod] = fleet.objects.pods("late")
        fleet.objects.let_go(pod)

    gone, _deleted = side_by_side(lambda: fleet.play("mig", mig_settle_seconds=120, mig_plugin_seconds=5), go)
    assert fleet.layout("gpu-1", 0) == ["3g.71gb@0", "3g.71gb@4"] and "device plugin" in last_words(gone)["gpu-1"], (
        "it is waited for no longer"
    )
