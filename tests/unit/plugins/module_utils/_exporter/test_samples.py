# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils import _names
from ansible_collections.gpuops.remediation.plugins.module_utils._exporter import requests
from ansible_collections.gpuops.remediation.plugins.module_utils._exporter.page import render
from ansible_collections.gpuops.remediation.plugins.module_utils._exporter.samples import STALE_SECONDS, Known, samples
from ansible_collections.gpuops.remediation.plugins.module_utils._gpu.records import RECOVERY_ACTIONS, Gpu, recovery_action, recovery_number

OWNER = {"uuid": "GPU-a", "pci_bus_id": "0000:00:06.0", "gi": None, "container_id": "4f", "pod_uid": None, "unit": None, "memory_bytes": 7}
XID = {"pci_bus_id": "0000:00:06.0", "gi": None, "code": 79, "count": 2, "last_seconds": 5.0}
STATE = {
    "gpus": [{"uuid": "GPU-a", "pci_bus_id": "0000:00:06.0"}],
    "owners": [OWNER],
    "xids": {"sequence": 1, "counts": [XID]},
    "probes": requests.NONE,
}


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
    assert [(sample.labels[-1], sample.value) for sample in found] == [("2", 96), ("2", 100), ("2", 3), ("2", 96)]


def test_an_instance_that_nvml_cannot_name_has_no_figures():
    gpu = Gpu(uuid="GPU-a", pci_bus_id="0000:00:06.0")
    gpu.take({"mig": {"current": True, "instances": [{"gi": None, "memory_total_bytes": 100, "memory_used_bytes": 96}]}})
    assert not [name for name, _labels in shown(gpus=[gpu]) if name.startswith("gpuops_mig")]


@pytest.mark.parametrize("number", [*RECOVERY_ACTIONS, 99])
def test_a_recovery_action_keeps_its_number(number):
    assert recovery_number(recovery_action(number)) == number


def held(pid, container, requested, context, pci="0000:00:06.0"):
    owner = {"container_id": container, "pod_uid": None, "unit": None}
    place = {"uuid": "GPU-a", "pci_bus_id": pci, "gi": 2}
    by_kind = {"device": requested, "managed": 0, "host": 0, "pool": 0, "handle": 0}
    return {**place, **owner, "pid": pid, "requested_bytes": requested, **by_kind, "context_bytes": context}


PROBED = {
    "attached": {"cuda_mem": True, "gpu_xid": False},
    "counters": {"calls": 9, "untracked_bytes": 8, "lost_calls": 1},
    "xids": [{"pci_bus_id": "0000:00:06.0", "xid": 13, "count": 1, "lines": 4, "traces": 3}],
    "held": [held(1, "4f", 100, 5), held(2, "4f", 50, None), held(3, "5a", 60, 7)],
    "calls": [[["4f", None, None], [20, 15]]],
    "failures": [[["4f", None, None, "allocate", "2"], [3]], [["other", None, None, None, None], [4]]],
    "recent": [[1.0, {"GPU-a/2": 1001}]],
}
PLACE = ("n", "GPU-a", "0000:00:06.0", "2")


def test_what_the_probes_tell():
    page = shown(state={**STATE, "probes": {**requests.NONE, **PROBED}})
    assert page[_names.METRIC_CONTAINER_REQUESTED, (*PLACE, "4f", "", "", "device")] == 150
    assert page[_names.METRIC_CONTAINER_CONTEXT, (*PLACE, "4f", "", "")] == 5, "of those whose context is known"
    assert page[_names.METRIC_PROCESS_REQUESTED, (*PLACE, "4f", "", "", "2")] == 50
    assert (_names.METRIC_PROCESS_CONTEXT, (*PLACE, "4f", "", "", "2")) not in page
    assert page[_names.METRIC_PROCESS_CONTEXT, (*PLACE, "5a", "", "", "3")] == 7
    owner = ("n", "4f", "", "")
    assert (page[_names.METRIC_ALLOCATIONS, owner], page[_names.METRIC_FREES, owner]) == (20, 15)
    assert page[_names.METRIC_ALLOCATION_FAILURES, (*owner, "allocate", "2")] == 3
    assert page[_names.METRIC_ALLOCATION_FAILURES, ("n", "other", "", "", "", "")] == 4
    assert (page[_names.METRIC_PROBE_CALLS, ("n",)], page[_names.METRIC_PROBE_UNTRACKED, ("n",)]) == (9, 8)
    assert {key[1]: value for key, value in page.items() if key[0] == _names.METRIC_PROBE_UNCOUNTED} == {("n", "lost_calls"): 1}
    assert {key[1]: value for key, value in page.items() if key[0] == _names.METRIC_PROBE_ATTACHED} == {
        ("n", "cuda_mem"): 1,
        ("n", "gpu_xid"): 0,
    }
    xid = ("n", "GPU-a", "0000:00:06.0", "13")
    assert page[_names.METRIC_PROBE_XIDS, xid] == 1
    assert [page[_names.METRIC_PROBE_XID_REPORTS, (*xid, source)] for source in ("kernel_log", "tracepoint")] == [4, 3]


def test_every_sample_has_its_metrics_labels():
    metrics = {metric.name: metric for metric in (*_names.EXPORTER_METRICS, *_names.PROBE_METRICS)}
    for metric, labels in shown(state={**STATE, "probes": {**requests.NONE, **PROBED}}):
        assert len(labels) == len(metrics[metric].labels), metric


def test_old_requests_are_no_figure_and_old_counts_are():
    old = {name for name, _labels in shown(state={**STATE, "probes": {**requests.NONE, **PROBED}}, state_age_seconds=STALE_SECONDS)}
    assert not old & {_names.METRIC_CONTAINER_REQUESTED, _names.METRIC_CONTAINER_CONTEXT, _names.METRIC_PROCESS_REQUESTED}
    assert {_names.METRIC_ALLOCATIONS, _names.METRIC_ALLOCATION_FAILURES, _names.METRIC_PROBE_XIDS} <= old


def test_series_of_processes_are_bounded_and_no_memory_is_left_out():
    state = {**STATE, "probes": {**requests.NONE, **PROBED}}
    page = {(one.metric, one.labels): one.value for one in samples(Known(node="n", state=state), 1)}
    assert {key[1][4:]: value for key, value in page.items() if key[0] == _names.METRIC_PROCESS_REQUESTED} == {
        ("4f", "", "", "1"): 100, ("other", "", "", ""): 110,
    }  # fmt: skip
    assert page[_names.METRIC_CONTAINER_REQUESTED, (*PLACE, "other", "", "", "device")] == 60


@pytest.mark.parametrize(("age_seconds", "more"), [(0, 10), (STALE_SECONDS, 0)])
def test_many_allocations_of_the_last_minute_add_to_the_score(age_seconds, more):
    """To that of the instance and of its GPU."""
    instance = {"uuid": "MIG-a", "gi": 2, "ci": 0, "profile": "3g.71gb", "memory_total_bytes": 100, "memory_used_bytes": 50}
    gpu = Gpu(uuid="GPU-a", pci_bus_id="0000:00:06.0", memory_total_bytes=200, memory_used_bytes=50)
    gpu.take({"mig": {"current": True, "instances": [instance, {**instance, "gi": 3}]}})
    page = shown(gpus=[gpu], state={**STATE, "probes": {**requests.NONE, **PROBED}}, state_age_seconds=age_seconds)
    assert page[_names.METRIC_OOM_SCORE, PLACE[:3]] == 25 + more
    assert (page[_names.METRIC_MIG_OOM_SCORE, PLACE], page[_names.METRIC_MIG_OOM_SCORE, (*PLACE[:3], "3")]) == (50 + more, 50)


def test_a_label_cannot_end_its_line():
    """S1: a unit's name is its maker's."""
    unit = 'a"\n\\b{} 1'
    text = render(samples(Known(node="n", state={**STATE, "owners": [{**OWNER, "unit": unit}]}), 100)).decode()
    [line] = [line for line in text.splitlines() if line.startswith(_names.METRIC_CONTAINER_MEMORY)]
    assert line.endswith('unit="a\\"\\n\\\\b{} 1"} 7.0')
