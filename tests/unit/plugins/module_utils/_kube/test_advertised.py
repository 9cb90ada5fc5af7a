# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._kube import advertised
from kube_fakes import pod


@pytest.mark.parametrize(
    "gpus, devices, strategy, expected",
    [
        pytest.param(
            1,
            {"3g.71gb": 1, "1g.18gb+me": 2, "1c.2g.35gb": 0},
            "mixed",
            {"nvidia.com/gpu": 1, "nvidia.com/mig-3g.71gb": 1, "nvidia.com/mig-1g.18gb.me": 2},
            id="mixed",
        ),
        pytest.param(0, {"3g.71gb": 0}, "mixed", {}, id="nothing"),
        pytest.param(0, {"3g.71gb": 4}, "single", {"nvidia.com/gpu": 4}, id="single"),
        pytest.param(0, {"1c.3g.71gb": 6}, "single", {"nvidia.com/gpu": 6}, id="single, parts of one kind"),
        pytest.param(2, {}, "single", {"nvidia.com/gpu": 2}, id="single, without MIG"),
        pytest.param(2, {}, "none", {"nvidia.com/gpu": 2}, id="none, without MIG"),
    ],
)
def test_resources(gpus, devices, strategy, expected):
    assert advertised.resources(gpus, devices, strategy) == expected


@pytest.mark.parametrize(
    "gpus, devices, strategy", [(0, {"3g.71gb": 1}, "none"), (1, {"3g.71gb": 1}, "single"), (0, {"3g.71gb": 1, "1g.18gb": 4}, "single")]
)
def test_a_strategy_that_does_not_know_such_a_layout(gpus, devices, strategy):
    with pytest.raises(advertised.StrategyUnfit, match=f"strategy is {strategy}"):
        advertised.resources(gpus, devices, strategy)


@pytest.mark.parametrize("strategy", ["mixed", "single", "none"])
def test_a_gpu_with_mig_and_no_mig_device_is_the_end_of_the_plugin(strategy):
    """The plugin exits, and takes all of the node's GPUs along."""
    with pytest.raises(advertised.StrategyUnfit, match="GPU-1, GPU-2 has MIG on and no MIG device"):
        advertised.resources(6, {}, strategy, ["GPU-1", "GPU-2"])


def test_mixed_has_no_resource_for_parts_of_a_gpu_instance():
    with pytest.raises(advertised.StrategyUnfit, match=r"a part of a GPU instance \(1c.3g.71gb, 2c.3g.71gb\)"):
        advertised.resources(6, {"7g.141gb": 1, "2c.3g.71gb": 1, "1c.3g.71gb": 1}, "mixed")


def test_what_a_node_advertises():
    told = {"cpu": "192", "nvidia.com/gpu": "0", "nvidia.com/mig-3g.71gb": "2", "nvidia.com/other": "1"}
    assert advertised.advertised({"status": {"allocatable": told}}) == {"nvidia.com/mig-3g.71gb": 2}
    assert advertised.shared({"status": {"capacity": {**told, "nvidia.com/gpu.shared": "8"}}}) == ["nvidia.com/gpu.shared"]
    assert advertised.advertised({}) == {}


def test_the_plugins_pods():
    """The chart's label is on more than the plugin's pods: GPU feature discovery and the MPS daemon have it too."""
    chart = {"app.kubernetes.io/name": "nvidia-device-plugin"}
    own = pod("own-name", labels=chart)
    own["spec"]["containers"][0]["command"] = ["/usr/bin/nvidia-device-plugin", "--mig-strategy=mixed"]
    pods = [
        pod("discovery", labels=chart, container="gpu-feature-discovery-ctr"),
        pod("mps", labels=chart, container="mps-control-daemon-ctr"),
        pod("operator", labels={"app": "nvidia-device-plugin-daemonset"}, container="nvidia-device-plugin"),
        pod("chart", labels=chart, container="nvidia-device-plugin-ctr"),
        own,
        pod("going", labels={"name": "nvidia-device-plugin-ds"}, container="nvidia-device-plugin-ctr", terminating=True),
        pod("failed", labels={"name": "nvidia-device-plugin-ds"}, container="nvidia-device-plugin-ctr", phase="Failed"),
        pod("other", labels={"app": "train"}, container="nvidia-device-plugin-ctr"),
    ]
    assert [one["metadata"]["name"] for one in advertised.plugin_pods(pods, advertised.PLUGIN_LABELS)] == ["operator", "chart", "own-name"]


def test_a_label_of_one_s_own_needs_no_container_s_name():
    chart = {"app.kubernetes.io/name": "nvidia-device-plugin"}
    pods = [
        pod("wrapped", labels={"app": "gpu-plugin"}, container="main"),
        pod("both", labels={"app": "gpu-plugin", **chart}, container="main"),
        pod("discovery", labels=chart, container="gpu-feature-discovery-ctr"),
        pod("other", labels={"app": "train"}, container="main"),
    ]
    labels = ["app=gpu-plugin", "app.kubernetes.io/name=nvidia-device-plugin"]
    assert [one["metadata"]["name"] for one in advertised.plugin_pods(pods, labels)] == ["wrapped", "both"]


@pytest.mark.parametrize(
    "container, label, strategy",
    [
        ({"args": ["--fail-on-init-error", "--mig-strategy=mixed"]}, "single", "mixed"),
        ({"command": ["nvidia-device-plugin", "--mig-strategy", "single"]}, None, "single"),
        ({"env": [{"name": "MIG_STRATEGY", "value": "mixed"}]}, "single", "mixed"),
        ({"env": [{"name": "MIG_STRATEGY", "valueFrom": {}}]}, "single", "single"),
        ({}, None, None),
    ],
)
def test_the_strategy(container, label, strategy):
    thing = pod("plugin")
    thing["spec"]["containers"][0].update(container)
    node = {"metadata": {"labels": {"nvidia.com/mig.strategy": label} if label else {}}}
    assert advertised.strategy_of(thing, node) == strategy
