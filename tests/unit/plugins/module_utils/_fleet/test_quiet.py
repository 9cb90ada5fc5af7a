# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""S17: a release needs a fleet that was watching and has been quiet."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._fleet.prometheus import PrometheusUnavailable
from ansible_collections.gpuops.remediation.plugins.module_utils._fleet.quiet import Subject, faults, subject_of
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.alerts import DEFAULT_LABELS
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.release import Case
from ledgers import GPU, NOON, OTHER_GPU

SUBJECT = Subject("gpu-1", frozenset([GPU]), frozenset(["0000:00:06.0"]), frozenset([3]), alert_name="GpuXid")
NODE = Subject("gpu-1", wide=True)
WATCHED = tuple(range(600, -1, -15))


def points(*ages: float, value: float = 1):
    return [(NOON - timedelta(seconds=age), value) for age in ages]


def alert(age: float = 300, name: str = "GpuXid", node: str = "gpu-1", **labels: str):
    return {"__name__": "ALERTS", "alertstate": "firing", "alertname": name, "node": node, **labels}, points(age + 15, age)


UP = (points(*WATCHED),)
READ = (points(*WATCHED, value=10),)


def said(up=UP, alerts=(), subject=SUBJECT, ages=READ):
    def raw(query):
        if query.startswith("ALERTS"):
            return list(alerts)
        return [({"node": "gpu-1"}, series) for series in (up if query == 'gpuops_nvml_up{node="gpu-1"}[600s]' else ages)]

    return faults(SimpleNamespace(raw=raw), subject, 600, NOON, DEFAULT_LABELS)


@pytest.mark.parametrize(
    ("up", "why"),
    [
        (UP, []),
        ((points(*WATCHED[:20]), points(*WATCHED[20:])), []),
        ((), ["Prometheus knows no exporter of node gpu-1"]),
        ((points(600, 61),), ["the exporter of node gpu-1 was last read 61 s ago"]),
        ((points(600, 60),), []),
        ((points(600, 15) + points(0, value=0),), ["the exporter of node gpu-1 cannot read its GPUs"]),
        ((points(539, 0),), ["the exporter of node gpu-1 has been watched for 539 s, and 600 are asked for"]),
    ],
)
def test_somebody_has_to_watch(up, why):
    assert said(up) == why


@pytest.mark.parametrize(
    ("ages", "why"),
    [
        ((points(*WATCHED, value=60),), []),
        ((), ["the exporter of node gpu-1 has no kernel log"]),
        ((points(600, 61, value=10),), ["the exporter of node gpu-1 has no kernel log"]),
        ((points(600, 0, value=10) + points(300, value=61),), ["the exporter of node gpu-1 heard nothing of the kernel log for 61 s"]),
        ((points(539, 0, value=10),), ["the kernel log of node gpu-1 has been read for 539 s, and 600 are asked for"]),
    ],
)
def test_somebody_has_to_read_the_kernel_log(ages, why):
    """NVML answers and the exporter is up, and yet no Xid would be seen."""
    assert said(ages=ages) == why


FIRED = ["the alert GpuXid was last seen firing 300 s ago"]


@pytest.mark.parametrize(
    ("one", "subject", "why"),
    [
        pytest.param(alert(gpu_uuid=GPU), SUBJECT, FIRED, id="this GPU"),
        pytest.param(alert(pci_bus_id="00000000:00:06.0"), SUBJECT, FIRED, id="this slot"),
        pytest.param(alert(gpu="3"), SUBJECT, FIRED, id="its index"),
        pytest.param(alert(gpu_uuid=OTHER_GPU), SUBJECT, [], id="another GPU"),
        pytest.param(alert(gpu_uuid=OTHER_GPU, gpu="3"), SUBJECT, [], id="another GPU, which had the index once"),
        pytest.param(alert(gpu_uuid=OTHER_GPU), NODE, FIRED, id="any GPU, where the node is meant"),
        pytest.param(alert(), SUBJECT, FIRED, id="the alert that began it names no GPU"),
        pytest.param(alert(name="DiskFull"), SUBJECT, [], id="another that names none"),
        pytest.param(alert(node="gpu-2", gpu_uuid=GPU), SUBJECT, [], id="another node"),
        pytest.param(alert(node="{{ x }}"), SUBJECT, [], id="one that nobody can judge"),
        pytest.param(alert(name="GpuopsIncident"), NODE, [], id="our own notification"),
    ],
)
def test_whose_alerts_count(one, subject, why):
    assert said(alerts=[one], subject=subject) == why


def test_a_prometheus_that_is_away_refuses():
    def raw(_query):
        raise PrometheusUnavailable("no answer")

    assert faults(SimpleNamespace(raw=raw), SUBJECT, 600, NOON, DEFAULT_LABELS) == ["no answer"]


@pytest.mark.parametrize(("scope", "domain", "wide"), [("gpu", "memory", False), ("node", "driver", True), ("gpu", "nvlink", True)])
def test_the_subject_is_the_board_of_then_and_of_now(scope, domain, wide):
    then = {"gpus": [{"uuid": GPU, "pci_bus_id": "0000:00:06.0", "index": 3}, {"uuid": "x", "pci_bus_id": "y", "index": 4}]}
    now = {"gpus": [{"uuid": OTHER_GPU, "pci_bus_id": "0000:00:06.0", "index": 2}]}
    case = Case("t", "replace", scope, domain, GPU, "0000:00:06.0", now, then, [], lambda event: False)
    subject = subject_of(case, {"node": "gpu-1", "alert": {"name": "GpuXid"}})
    assert (subject.node, subject.alert_name, subject.wide) == ("gpu-1", "GpuXid", wide)
    if not wide:
        assert (subject.uuids, subject.pci_bus_ids, subject.indexes) == ({GPU, OTHER_GPU}, {"0000:00:06.0"}, {2, 3})
