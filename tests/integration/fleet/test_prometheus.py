# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A real Prometheus with a rule of its own, asked by the playbooks: what has fired, and whether it has been quiet."""

from __future__ import annotations

import json
import urllib.parse
import urllib.request

import pytest
from ansible_collections.gpuops.remediation.plugins.modules import inbox_sync
from cluster.objects import wait_until
from loop import alive
from monitoring import job, running_prometheus
from run_module import run_module

pytestmark = pytest.mark.timeout(900)
RULE = {"alert": "GpuXid", "expr": "gpuops_xid_events_total > 0", "labels": {"severity": "critical", "remediation": "gpuops"}}


def metrics(xids: dict[tuple[str, str], int], *up: str) -> str:
    """xids: how many of Xid 48, by node and GPU. up: nodes whose exporter can read its GPUs."""
    lines = [f'gpuops_xid_events_total{{node="{node}",gpu_uuid="{uuid}",xid="48"}} {count}' for (node, uuid), count in xids.items()]
    for node in up:
        lines += [f'gpuops_nvml_up{{node="{node}"}} 1', f'gpuops_source_age_seconds{{node="{node}",source="kernel_log"}} 5']
    return "\n".join([*lines, ""])


@pytest.fixture
def start(exporter, tmp_path):
    """A Prometheus that scrapes the exporter, by what else is to be said of it."""
    rules = tmp_path / "rules.yml"
    rules.write_text(json.dumps({"groups": [{"name": "gpu", "rules": [RULE]}]}))
    jobs = [job("gpu", urllib.parse.urlsplit(exporter.url).port)]
    return lambda **more: running_prometheus(tmp_path / "prometheus", jobs, [rules], **more)


def add_external_labels(prometheus, tmp_path, **labels: str) -> None:
    file = tmp_path / "prometheus" / "config.yml"
    config = json.loads(file.read_text())
    file.write_text(json.dumps({**config, "global": {**config["global"], "external_labels": labels}}))
    urllib.request.urlopen(urllib.request.Request(prometheus.url + "/-/reload", method="POST"), timeout=30).close()


def test_one_alert_has_one_identity(start, exporter, alertmanager, tmp_path):
    """What Prometheus rebuilds of an alert is what Alertmanager was sent, external labels and time included; so whoever is asked second has no news."""
    uuid = "GPU-5f0c1a52-6a8d-4f0e-9f0e-3c1d4e8a2b11"
    exporter.by_path["/metrics"] = metrics({})
    with start(alertmanager_url=alertmanager.url) as prometheus:
        add_external_labels(prometheus, tmp_path, cluster="a", replica="0")
        exporter.by_path["/metrics"] = metrics({("gpu-1", uuid): 1})
        wait_until(lambda: alertmanager.alerts("GpuXid"), "the alert in Alertmanager", 60)
        [sent] = alertmanager.alerts("GpuXid")
        assert sent["labels"]["cluster"] == "a"

        asked = {"ledger_url": f"sqlite:///{tmp_path}/ledger.db", "alertmanager_receiver": "webhook"}
        rebuilt = run_module(inbox_sync.main, prometheus_url=prometheus.url, **asked)
        [news] = rebuilt["news"]
        assert (news["fingerprint"], news["starts_at"], news["node"], news["hint"]) == (
            sent["fingerprint"],
            sent["startsAt"],
            "gpu-1",
            False,
        )
        second = run_module(inbox_sync.main, alertmanager_urls=[alertmanager.url], **asked)
        assert (second["asked"], second["news"], second["changed"], second["missing"]) == (1, [], False, [])

        asked["ledger_url"] = f"sqlite:///{tmp_path}/other.db"
        both = run_module(inbox_sync.main, alertmanager_urls=[alertmanager.url], prometheus_url=prometheus.url, **asked)
        assert (len(both["news"]), len(both["inbox_ids"]), both["missing"]) == (1, 1, [])


def test_what_fired_and_resolved_while_everything_was_down(start, exporter, controller):
    """S3: it is a hint. Where the node shows the fault it is dealt with; where it does not, nothing is done; and it is looked at once."""
    pid, _message = controller.sick("bare-1")
    well = controller.node("bare-2", gpus=2).start([1], "train", 1 << 30)
    sick = {("bare-1", controller.uuid("bare-1", 3)): 1, ("bare-2", controller.uuid("bare-2", 1)): 1}
    exporter.by_path["/metrics"] = metrics(sick)
    with start() as prometheus:
        wait_until(lambda: len(prometheus.firing("GpuXid")) == 2, "both alerts", 60)
        exporter.by_path["/metrics"] = metrics({})
        wait_until(lambda: prometheus.query("present_over_time(ALERTS[15m]) unless present_over_time(ALERTS[65s])"), "them to be over", 150)

        for _run in range(2):
            run = controller.play("reconcile", prometheus_url=prometheus.url)
            assert run.ok, run.output
            ended = {one["node"]: (one["state"], one["alert"]["hint"]) for one in controller.incidents()}
            assert ended == {"bare-1": ("contained", True), "bare-2": ("no_action", True)}
            assert len(controller.incidents()) == 2
        assert run.changed("localhost") == 0, run.output
        assert not alive(pid) and alive(well)


def test_a_release_that_the_fleet_does_not_agree_to(start, exporter, controller):
    """S17: the exporter has to be up and the alert absent for as long as is asked for; a Prometheus that is away refuses too."""
    controller.sick("bare-1")
    uuid = controller.uuid("bare-1", 3)
    exporter.by_path["/metrics"] = metrics({("bare-1", uuid): 1}, "bare-1")
    run = controller.remediate(alert_file=controller.directory / "alert-0.json")
    assert run.ok, run.output
    [incident] = controller.incidents()
    with start() as prometheus:

        def release(quiet_seconds: int = 600) -> str:
            named = {"incident_id": incident["id"], "prometheus_url": prometheus.url, "release_quiet_seconds": quiet_seconds}
            return controller.play("release", **named).output.replace("\\n", " ")

        wait_until(lambda: prometheus.firing("GpuXid"), "the alert", 60)
        assert "the alert GpuXid was last seen firing" in release()

        exporter.by_path["/metrics"] = metrics({}, "bare-1")
        wait_until(lambda: not prometheus.firing("GpuXid"), "the alert to end", 60)
        said = release()
        assert "the alert GpuXid was last seen firing" in said and "has been watched for" in said

        said = release(quiet_seconds=5)
        assert "prometheus:" not in said and "not released" in said, "other checks refuse still, and this one does not"

        prometheus.component.end()
        assert f"Prometheus at {prometheus.url} gives no answer: no connection" in release(quiet_seconds=5)
    assert controller.incidents()[0]["state"] == "contained"
