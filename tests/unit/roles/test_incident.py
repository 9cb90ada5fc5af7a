# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Expressions of the role `incident` that decide who is touched."""

from __future__ import annotations

from pathlib import Path

import jinja2
import pytest
import yaml

TASKS = Path(__file__).resolve().parents[3] / "roles/incident/tasks"


@pytest.mark.parametrize(
    "action, scope, pods",
    [
        ("quarantine_node", "node", "node"),
        ("quarantine_gpu", "gpu", "gpu"),
        pytest.param("quarantine_gpu", "node", "gpu", id="S11: an alert that does not say which GPU"),
    ],
)
def test_whose_pods_are_evicted(action, scope, pods):
    [drain, *_more] = yaml.safe_load((TASKS / "orchestrator/kubernetes/evict.yml").read_text())
    expression = drain["gpuops.remediation.node_drain"]["scope"]
    assert jinja2.Environment().from_string(expression).render(incident_verdict={"action": action, "scope": scope}) == pods
