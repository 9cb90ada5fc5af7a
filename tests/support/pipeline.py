# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""All that is between a fault and its containment, each part the real one: exporter (of simulated nodes), Prometheus with the collection's
rules, Alertmanager, ansible-rulebook."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exporters import ExporterProcess, running_exporter
from fleet import Fleet
from loop import REPOSITORY
from monitoring import Alertmanager, Prometheus, job, running_alertmanager, running_prometheus
from ports import free_port
from trigger import TOKEN, Rulebook

RULES = sorted((REPOSITORY / "roles" / "monitoring" / "files").glob("*.yml"))


@dataclass
class Pipeline:
    exporter: ExporterProcess
    prometheus: Prometheus
    alertmanager: Alertmanager
    rulebook: Rulebook


@contextlib.contextmanager
def running_pipeline(fleet: Fleet, directory: Path, **variables: Any) -> Iterator[Pipeline]:
    """For the nodes that the fleet has by now. It scrapes and evaluates each second; `variables` are the rulebook's."""
    port = free_port()
    with contextlib.ExitStack() as stack:
        exporter = stack.enter_context(running_exporter(fleet.directory / "nodes"))
        jobs = [job("gpuops_exporter", exporter.port, *fleet.nodes), job("gpuops_responder", port)]
        webhook = f"http://127.0.0.1:{port}/alerts"
        matchers = ['remediation = "gpuops"']
        alertmanager = stack.enter_context(
            running_alertmanager(directory / "alertmanager", webhook, TOKEN, matchers=matchers, group_interval_seconds=5)
        )
        prometheus = stack.enter_context(running_prometheus(directory / "prometheus", jobs, RULES, alertmanager.url))
        fleet.variables["gpuops_prometheus_url"] = prometheus.url
        rulebook = Rulebook(fleet, gpuops_trigger_port=port, gpuops_prometheus_url=prometheus.url, **variables)
        stack.enter_context(rulebook.running())
        yield Pipeline(exporter, prometheus, alertmanager, rulebook)
