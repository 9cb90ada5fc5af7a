# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""From a fault on a node to its containment, through every part that is there in production."""

from __future__ import annotations

import pytest
from cluster.objects import wait_until
from fleet import TAINT, Fleet
from ledgers import fresh_schema
from pipeline import running_pipeline


@pytest.fixture
def fleet(cluster, server, tmp_path):
    with Fleet(tmp_path / "controller", cluster, ledger_url=fresh_schema(server)) as made:
        yield made


@pytest.mark.timeout(600)
def test_a_gpu_that_falls_off_the_bus(fleet, tmp_path):
    """Prometheus' death makes Alertmanager say "resolved", and that releases nothing."""
    node, _other = fleet.gpu_nodes("gpu-1", "gpu-2")
    fleet.objects.deployment("infer", 1, node="gpu-1")
    fleet.set("act")
    first = fleet.play("reconcile")
    assert first.ok, first.output
    fleet.know_nodes()
    source = {"gpuops_fence_in": "source", "gpuops_kubeconfig": str(fleet.cluster.kubeconfig)}
    with fleet.kubelet(), running_pipeline(fleet, tmp_path, **source) as pipeline:
        prometheus, uuid = pipeline.prometheus, fleet.uuid("gpu-1", 0)
        wait_until(lambda: len(prometheus.query("gpuops_nvml_up == 1")) == 2, "both nodes scraped")
        node.xid(0, 79)
        node.lost(0)

        wait_until(lambda: fleet.ended() == {("gpu-1", uuid): "contained"}, "the incident's end", 300)

        assert fleet.objects.taints("gpu-1") == [TAINT]
        assert fleet.objects.taints("gpu-2") == []
        wait_until(lambda: prometheus.query('gpuops_incidents_open{state="contained"} == 1'), "the responder's own word on it")
        wait_until(lambda: prometheus.query("gpuops_reconcile_last_success_timestamp_seconds > 0"), "a reconcile's end")
        assert pipeline.rulebook.metric('gpuops_trigger_fences_total{outcome="fenced"}') == 1
        fires = {"GpuXidFatal", "GpuopsWatchdog"}
        wait_until(lambda: {one["labels"]["alertname"] for one in prometheus.firing()} == fires, "nothing else fires")
        [incident] = fleet.incidents()
        assert incident["budget"]["within"] and incident["verdict"]["certainty"] == "certain"

        prometheus.component.kill()
        rulebook = pipeline.rulebook
        wait_until(lambda: rulebook.metric("gpuops_trigger_accepted_total") == 2, "the word that it is resolved", 120)
        wait_until(lambda: fleet.ledger().undecided() == [] and rulebook.finished() == 2, "the run about it", 200)
        assert fleet.ended() == {("gpu-1", uuid): "contained"}
        assert (fleet.objects.taints("gpu-1"), fleet.incidents_on("gpu-1")) == ([TAINT], [incident["id"]])
