# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the simulated exporter shows."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from collections.abc import Callable

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils import _names
from ansible_collections.gpuops.remediation.plugins.module_utils._xid.recovery import RECOVERY_ACTIONS
from exporters import running_exporter
from gpusim.exporter import Exporter
from gpusim.kmsg import RECOVERY_TEXTS
from gpusim.node import Node

Samples = dict[tuple[str, str, str], float]


FAULTS = {
    *(_names.METRIC_RECOVERY_ACTION, _names.METRIC_ROW_REMAP_PENDING, _names.METRIC_ROW_REMAP_FAILED, _names.METRIC_ECC_ERRORS),
    *(_names.METRIC_XID_EVENTS, _names.METRIC_XID_LAST),
}
FIGURES_OF_NVML = {metric.name for metric in _names.EXPORTER_METRICS if "gpu_uuid" in metric.labels} - {
    *(_names.METRIC_XID_EVENTS, _names.METRIC_XID_LAST, _names.METRIC_CONTAINER_MEMORY),
}


def samples(*nodes: Node) -> Samples:
    """By name, GPU (or node) and Xid or kind of error."""
    return {
        (sample.name, sample.labels.get("gpu_uuid", sample.labels["node"]), sample.labels.get("xid", sample.labels.get("error", ""))): sample.value
        for family in Exporter(nodes).collect() for sample in family.samples
    }  # fmt: skip


def test_figures_follow_the_faults(node: Node) -> None:
    [uuid, other] = [gpu["uuid"] for gpu in node.state()["gpus"]]
    assert {value for (name, _gpu, _kind), value in samples(node).items() if name in FAULTS} == {0.0}
    before = time.time()
    node.xid(0, 31)
    node.xid(0, 31)
    node.row_remap(0, pending=True, failure=True)
    node.ecc(0, uncorrected=2)
    shown = {key: value for key, value in samples(node).items() if key[0] in FAULTS}
    assert {key: value for key, value in shown.items() if key[1] == uuid and key[0] != _names.METRIC_XID_LAST} == {
        (_names.METRIC_XID_EVENTS, uuid, "31"): 2, (_names.METRIC_RECOVERY_ACTION, uuid, ""): 0,
        (_names.METRIC_ROW_REMAP_PENDING, uuid, ""): 1, (_names.METRIC_ROW_REMAP_FAILED, uuid, ""): 1,
        (_names.METRIC_ECC_ERRORS, uuid, "corrected"): 0, (_names.METRIC_ECC_ERRORS, uuid, "uncorrected"): 2,
    }  # fmt: skip
    assert before - 0.1 <= shown[_names.METRIC_XID_LAST, uuid, "31"] <= time.time()
    assert {value for (_name, gpu, _kind), value in shown.items() if gpu == other} == {0.0}


@pytest.mark.parametrize("action", RECOVERY_TEXTS)
def test_recovery_actions_are_nvml_s_numbers(node: Node, action: str) -> None:
    node.recovery_action(1, action)
    uuid = node.state()["gpus"][1]["uuid"]
    assert samples(node)[_names.METRIC_RECOVERY_ACTION, uuid, ""] == RECOVERY_ACTIONS.index(action)


@pytest.mark.parametrize(
    "fault",
    [
        lambda node: node.driver_not_loaded(),
        lambda node: node.hang("all", None),
        lambda node: node.hang("nvmlDeviceGetFieldValues", 60),
        lambda node: node.no_permission("nvmlInit"),
    ],
)
def test_no_figure_outlives_nvml(node: Node, fault: Callable[[Node], None]) -> None:
    """The Xids are the kernel log's, and stay."""
    node.xid(0, 119)
    fault(node)
    shown = samples(node)
    assert shown[_names.METRIC_NVML_UP, node.name, ""] == 0
    assert not FIGURES_OF_NVML & {name for name, _gpu, _kind in shown}
    assert {_names.METRIC_XID_EVENTS, _names.METRIC_XID_LAST} < {name for name, _gpu, _kind in shown}


def test_a_gpu_that_hangs_hides_no_other(node: Node) -> None:
    node.hang("nvmlDeviceGetFieldValues", 60, 1)
    shown = samples(node)
    assert shown[_names.METRIC_NVML_UP, node.name, ""] == 0
    assert {gpu for name, gpu, _kind in shown if name in FIGURES_OF_NVML} == {node.state()["gpus"][0]["uuid"]}


def test_a_short_hang_and_a_lost_gpu_are_no_silence(node: Node) -> None:
    node.hang("nvmlInit", 1)
    node.hang("nvmlDeviceGetPowerUsage", None)  # which the exporter does not ask for
    node.lost(0)
    shown = samples(node)
    assert shown[_names.METRIC_NVML_UP, node.name, ""] == 1
    assert {gpu for name, gpu, _kind in shown if name == _names.METRIC_RECOVERY_ACTION} == {node.state()["gpus"][1]["uuid"]}


def test_a_reboot_starts_the_counts_anew(node: Node) -> None:
    node.xid(0, 79)
    node.reboot()
    assert [name for name, _gpu, _kind in samples(node) if "xid" in name] == []


def test_a_target_for_each_node(make_node: Callable[..., Node]) -> None:
    first, _second = make_node("gpu-1", gpus=1), make_node("gpu-2", gpus=1)

    def shown(port: int, path: str) -> set[str]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        return {line.split('"')[1] for line in lines if line.startswith(_names.METRIC_NVML_UP)}

    with running_exporter(first.root) as exporter:
        assert (shown(exporter.port, "/metrics"), shown(exporter.port, "/metrics?node=gpu-2")) == ({"gpu-1", "gpu-2"}, {"gpu-2"})
        with pytest.raises(urllib.error.HTTPError, match="404"):
            shown(exporter.port, "/metrics?node=gpu-3")
