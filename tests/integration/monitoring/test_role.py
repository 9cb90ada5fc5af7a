# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The role `monitoring` and the rules, with a real Prometheus."""

from __future__ import annotations

import json

import pytest
from cluster.objects import wait_until
from exporters import running_exporter
from loop import REPOSITORY, Controller
from monitoring import job, running_prometheus

RULES = REPOSITORY / "roles" / "monitoring" / "files"
PLAY = """
- hosts: localhost
  gather_facts: false
  roles: [gpuops.remediation.monitoring]
"""


@pytest.fixture
def controller(tmp_path):
    with Controller(tmp_path / "controller") as made:
        (made.directory / "play.yml").write_text(PLAY)
        yield made


def install(controller, *options, **variables):
    return controller.play(
        str(controller.directory / "play.yml"), *options, prometheus_rules_dir=controller.directory / "rules", **variables
    )


def test_rules_are_checked_installed_and_read(controller, tmp_path):
    rules = controller.directory / "rules"
    refused = install(controller, prometheus_reload="none", promtool="false")
    assert not refused.ok and "failed to validate" in refused.output and list(rules.iterdir()) == []
    with running_prometheus(tmp_path / "prometheus", rules=[rules / "*.yml"]) as prometheus:
        options = {"prometheus_reload": "http", "prometheus_local_url": prometheus.url}
        predicted = install(controller, "--check", "--diff", **options)
        assert predicted.ok and "GpuXidFatal" in predicted.output and list(rules.iterdir()) == [], predicted.output
        first, again = install(controller, **options), install(controller, **options)
        assert (first.ok, first.changed("localhost"), again.ok, again.changed("localhost")) == (True, 1, True, 0), (
            first.output + again.output
        )
        groups = json.loads(prometheus.get("/api/v1/rules"))["data"]["groups"]
        assert {group["name"] for group in groups} == {"gpuops_gpu", "gpuops_exporters", "gpuops_responder"}


def test_rules_that_prometheus_does_not_read_are_said(controller, tmp_path):
    with running_prometheus(tmp_path / "prometheus") as prometheus:
        run = install(controller, prometheus_reload="http", prometheus_local_url=prometheus.url)
    assert not run.ok and "See whether it did" in run.output


def test_a_fault_outlives_its_exporter(controller, tmp_path):
    """The alert's labels are the fault's; a dead exporter is an alert of its own, and resolves nothing."""
    node, _well = controller.node("gpu-1", gpus=1), controller.node("gpu-2", gpus=1)
    with running_exporter(node.root) as exporter:
        jobs = [job("gpuops_exporter", exporter.port, "gpu-1", "gpu-2")]
        with running_prometheus(tmp_path / "prometheus", jobs, sorted(RULES.glob("gpu_*.yml"))) as prometheus:
            wait_until(lambda: len(prometheus.query("gpuops_nvml_up == 1")) == 2, "both nodes scraped")
            assert prometheus.firing() == []
            node.xid(0, 79)
            [alert] = wait_until(lambda: prometheus.firing("GpuXidFatal"), "the alert")
            gpu = node.state()["gpus"][0]
            assert alert["labels"] == {
                "alertname": "GpuXidFatal", "severity": "critical", "remediation": "gpuops", "node": "gpu-1",
                "gpu_uuid": gpu["uuid"], "pci_bus_id": gpu["pci_bus_id"], "xid": "79",
            }  # fmt: skip
            exporter.kill()
            wait_until(lambda: len(prometheus.query('up{job="gpuops_exporter"} == 0')) == 2, "the exporter's death")
            wait_until(lambda: not prometheus.query("gpuops:xid_events:recent"), "the end of its series")
            assert [one["labels"]["alertname"] for one in prometheus.firing()] == ["GpuXidFatal"]
