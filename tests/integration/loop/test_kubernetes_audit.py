# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The audit where a kubelet hands the GPUs out: what the API says of a pod, and what it was given against where NVML sees it."""

from __future__ import annotations

import json

import pytest
from cluster.objects import pod_template, wait_until
from gpusim import kubelet


def report(directory):
    return json.loads((directory / "isolation.json").read_text())["findings"]


@pytest.mark.timeout(900)
def test_drift_and_what_a_pod_may(fleet, tmp_path):
    fleet.variables.update(gpuops_audit_dir=str(tmp_path), gpuops_audit_engine_dirs=[], gpuops_audit_toolkit_configs=[])
    fleet.gpu_nodes("gpu-1", gpus=4)
    node = fleet.nodes["gpu-1"]
    with fleet.kubelet():
        strays = fleet.objects.pod("strays", node="gpu-1")
        rules = pod_template("rules", node="gpu-1")
        rules["metadata"]["name"] = "rules"
        rules["spec"].update(hostPID=True)
        fleet.objects.api.create("Pod", rules, "default")
        fleet.objects.pod("plugin", namespace="kube-system", node="gpu-1")
        given = wait_until(lambda: pods if len(pods := node.state()["pods"]) == 3 else None, "three pods with GPUs")
        own = given[strays["metadata"]["uid"]]["gpus"][0]
        free = next(index for index in range(4) if all(index not in pod["gpus"] for pod in given.values()))
        node.start([free], "more", 1 << 30, cgroup=kubelet.cgroup(strays["metadata"]["uid"], "main"))
        run = fleet.play("audit_isolation", audit_more_system=["kube-system/plugin"])
        told = report(tmp_path)
        nowhere = str(tmp_path / "none")
        blind = fleet.play("audit_isolation", audit_fail_on="never", kubeconfig=nowhere, kubelet_dir=nowhere)

    assert run.status == 2, run.output
    assert {(one["subject"], one["rule"]) for one in told if one["severity"] == "high"} == {
        ("default/strays", "drift"),
        ("default/strays", "devices_beyond"),
        ("default/rules", "host_pid"),
    }
    [drift] = [one for one in told if one["rule"] == "drift"]
    assert (drift["evidence"], drift["pod"]) == (f"is on nvidia{free}; was given nvidia{own}", "default/strays")
    assert not any("plugin" in one["subject"] for one in told)
    assert blind.ok, blind.output
    unread = [one["evidence"].partition(":")[0] for one in report(tmp_path) if (one["rule"], one["subject"]) == ("unread", "node")]
    assert sorted(unread) == ["the API server", "the kubelet"], "what could not be read is not taken for well"
