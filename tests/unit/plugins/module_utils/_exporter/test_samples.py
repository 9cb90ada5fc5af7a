# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils import _names
from ansible_collections.gpuops.remediation.plugins.module_utils._exporter.page import render
from ansible_collections.gpuops.remediation.plugins.module_utils._exporter.samples import STALE_SECONDS, Known, samples
from ansible_collections.gpuops.remediation.plugins.module_utils._gpu.records import RECOVERY_ACTIONS, Gpu, recovery_action, recovery_number

OWNER = {"uuid": "GPU-a", "pci_bus_id": "0000:00:06.0", "gi": None, "container_id": "4f", "pod_uid": None, "unit": None, "memory_bytes": 7}
XID = {"pci_bus_id": "0000:00:06.0", "gi": None, "code": 79, "count": 2, "last_seconds": 5.0}
STATE = {"gpus": [{"uuid": "GPU-a", "pci_bus_id": "0000:00:06.0"}], "owners": [OWNER], "xids": {"sequence": 1, "counts": [XID]}}


def shown(**known):
    return {(sample.metric, sample.labels): sample.value for sample in samples(Known(node="n", **known), 100)}


def test_what_nvml_does_not_tell_has_no_sample():
    gpu = Gpu(uuid="GPU-a", pci_bus_id="0000:00:06.0", memory_total_bytes=0, memory_used_bytes=0)
    assert set(shown(gpus=[gpu])) == {(_names.METRIC_NVML_UP, ("n",)), (_names.METRIC_ABANDONED, ("n",))}


@pytest.mark.parametrize(("mode", "value"), [(True, 1), (False, 0)])
def test_persistence(mode, value):
    gpu = Gpu(uuid="GPU-a", pci_bus_id="0000:00:06.0", persistence_mode=mode)
    assert shown(gpus=[gpu])[_names.METRIC_PERSISTENCE, ("n", "GPU-a", "0000:00:06.0")] == value


def test_a_gpu_without_a_name_has_no_figures():
    """Two of them would have the same labels, and Prometheus would take neither."""
    assert not [key for key in shown(gpus=[Gpu(memory_total_bytes=2, memory_used_bytes=1)] * 2) if "memory" in key[0]]


def test_an_xid_has_the_name_that_its_gpu_had():
    labels = ("n", "GPU-a", "0000:00:06.0", "", "79")
    assert shown(state=STATE)[_names.METRIC_XID_EVENTS, labels] == 2
    assert shown(state={**STATE, "gpus": []})[_names.METRIC_XID_EVENTS, ("n", "", *labels[2:])] == 2


def test_old_memory_is_no_figure_and_old_xids_are():
    assert _names.METRIC_CONTAINER_MEMORY in {name for name, _labels in shown(state=STATE, state_age_seconds=STALE_SECONDS - 1)}
    old = {name for name, _labels in shown(state=STATE, state_age_seconds=STALE_SECONDS)}
    assert _names.METRIC_CONTAINER_MEMORY not in old and _names.METRIC_XID_EVENTS in old


def test_compute_instances_do_not_double_their_instances_memory():
    instance = {"uuid": "MIG-a", "gi": 2, "ci": 0, "profile": "1c.3g.71gb", "memory_total_bytes": 100, "memory_used_bytes": 96}
    gpu = Gpu(uuid="GPU-a", pci_bus_id="0000:00:06.0")
    gpu.take({"mig": {"current": True, "instances": [instance, {**instance, "ci": 1}]}})
    found = [sample for sample in samples(Known(node="n", gpus=[gpu]), 100) if sample.metric.startswith("gpuops_mig")]
    assert [(sample.labels[-1], sample.value) for sample in found] == [("2", 96), ("2", 100), ("2", 3)]


def test_an_instance_that_nvml_cannot_name_has_no_figures():
    gpu = Gpu(uuid="GPU-a", pci_bus_id="0000:00:06.0")
    gpu.take({"mig": {"current": True, "instances": [{"gi": None, "memory_total_bytes": 100, "memory_used_bytes": 96}]}})
    assert not [name for name, _labels in shown(gpus=[gpu]) if name.startswith("gpuops_mig")]


@pytest.mark.parametrize("number", [*RECOVERY_ACTIONS, 99])
def test_a_recovery_action_keeps_its_number(number):
    assert recovery_number(recovery_action(number)) == number


def test_a_label_cannot_end_its_line():
    """S1: a unit's name is its maker's."""
    unit = 'a"\n\\b{} 1'
    text = render(samples(Known(node="n", state={**STATE, "owners": [{**OWNER, "unit": unit}]}), 100)).decode()
    [line] = [line for line in text.splitlines() if line.startswith(_names.METRIC_CONTAINER_MEMORY)]
    assert line.endswith('unit="a\\"\\n\\\\b{} 1"} 7.0')
