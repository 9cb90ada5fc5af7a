# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from datetime import timedelta

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._diagnosis.witness import ask, query
from ansible_collections.gpuops.remediation.plugins.module_utils._fleet.prometheus import Sample
from ledgers import GPU, NOON, OTHER_GPU

ALERT = {"node": "gpu-1", "xid": 79, "gpu_uuid": GPU, "pci_bus_id": "0000:19:00.0"}


def xids(value=1.0, age=10, name="gpuops_xid_events_total", **labels):
    labels = {"__name__": name, "node": "gpu-1", "gpu_uuid": GPU, "pci_bus_id": "00000000:19:00", "xid": "79", **labels}
    return Sample(labels, value, NOON - timedelta(seconds=age))


def log(age_seconds=10.0, age=10, source="kernel_log"):
    labels = {"__name__": "gpuops_source_age_seconds", "node": "gpu-1", "source": source}
    return Sample(labels, age_seconds, NOON - timedelta(seconds=age))


def nvml(value=1.0, age=10):
    return Sample({"__name__": "gpuops_nvml_up", "node": "gpu-1"}, value, NOON - timedelta(seconds=age))


@pytest.mark.parametrize(
    "samples, says",
    [
        ([xids()], "confirmed"),
        ([xids(), nvml(0.0)], "confirmed"),
        ([xids(age=61)], "contradicted"),
        ([xids(node="gpu-2")], "contradicted"),
        ([xids(value=0.0)], "contradicted"),
        ([xids(xid="13")], "contradicted"),
        ([xids(gpu_uuid=OTHER_GPU)], "contradicted"),
        ([xids(name="something_else_total")], "contradicted"),
        ([xids(age=61), nvml()], "contradicted"),
        ([nvml(0.0)], "missing"),
    ],
)
def test_a_fresh_sample_of_the_same_gpu_confirms(samples, says):
    """S3: what is older than 60 s says nothing."""
    assert ask(ALERT, [*samples, log()], NOON).says == says


@pytest.mark.parametrize("samples", [[], [xids(age=61), log(age=61)], [xids(node="gpu-2")]])
def test_who_is_not_heard_says_nothing(samples):
    assert ask(ALERT, samples, NOON).says == "missing"


@pytest.mark.parametrize("read", [[], [log(61.0)], [log(age=61)], [log(source="nvml")]])
@pytest.mark.parametrize("samples", [[xids()], [nvml()]])
def test_counts_of_a_log_that_nobody_reads_say_nothing(samples, read):
    """Neither that the Xid is there nor that it is not."""
    assert ask(ALERT, [*samples, *read], NOON).says == "missing"
    assert ask(ALERT, [*samples, log(60.0)], NOON).says != "missing"


def test_a_gpu_may_be_known_by_its_address():
    alert = {**ALERT, "gpu_uuid": None}
    assert ask(alert, [xids(), log()], NOON).says == "confirmed"
    assert ask({**alert, "pci_bus_id": "0000:1a:00.0"}, [xids(), log()], NOON).says == "contradicted"
    assert ask({**alert, "pci_bus_id": None, "gpu_index": 0}, [xids(), log()], NOON).says == "contradicted", "an index is never certain"


def test_one_query_for_all_nodes():
    asked = query(["gpu-2.example.org", "gpu-1", "gpu-1"])
    metrics, nodes = "gpuops_xid_events_total|gpuops_nvml_up|gpuops_source_age_seconds", "gpu-1|gpu-2[.]example[.]org"
    assert asked == f'{{__name__=~"{metrics}",node=~"{nodes}",source=~"|kernel_log"}}[60s]'
