# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Expressions of the role `incident` that decide who is touched."""

from __future__ import annotations

from pathlib import Path

import jinja2
import jinja2.nativetypes
import pytest
import yaml
from ansible.plugins.filter.core import to_bool

ROLE = Path(__file__).resolve().parents[3] / "roles/incident"
TASKS = ROLE / "tasks"


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


@pytest.mark.parametrize(
    "given, means",
    [(None, False), (False, False), ("false", False), ("no", False), ("0", False), (True, True), ("true", True), ("yes", True)],
)
def test_a_word_on_the_command_line_is_no_truth(given, means):
    """`-e gpuops_reconcile=false` is a text, which Jinja would take for yes, and a run that names its node would do something else."""
    environment = jinja2.nativetypes.NativeEnvironment()
    environment.filters["bool"] = to_bool
    expression = yaml.safe_load((ROLE / "defaults/main.yml").read_text())["incident_reconcile"]
    rendered = environment.from_string(expression).render({} if given is None else {"gpuops_reconcile": given})
    assert rendered is means
