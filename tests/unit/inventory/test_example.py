# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The example inventory, as Ansible reads it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from ansible.inventory.manager import InventoryManager
from ansible.parsing.dataloader import DataLoader
from ansible.vars.manager import VariableManager
from ansible_collections.gpuops.remediation.plugins.filter.incident_nodes import incident_nodes
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.breaker import groups_of

ROOT = Path(__file__).resolve().parents[3]
READ_BY = ("roles/incident/defaults/main.yml", "plugins/filter/incident_nodes.py")


@pytest.fixture(scope="module")
def variables():
    """Of each host, and of the controller, which no inventory needs to name."""
    loader = DataLoader()
    inventory = InventoryManager(loader=loader, sources=[str(ROOT / "inventory/example.yml")])
    manager = VariableManager(loader=loader, inventory=inventory)
    hosts = [*inventory.get_hosts("all"), inventory.get_host("localhost")]
    return {host.name: manager.get_vars(host=host, include_hostvars=False) for host in hosts}


def test_which_nodes_alerts_may_name(variables):
    of_nodes = {name: values for name, values in variables.items() if name != "localhost"}
    nodes = incident_nodes(of_nodes)
    assert {name: (node["host"], node["managed"]) for name, node in nodes.items()} == {
        "gpu-1": ("gpu-1", True),
        "ip-10-0-12-2.ec2.internal": ("gpu-2", True),
        "gpu-9": ("gpu-9", False),
    }
    assert {(group.kind, group.name, group.size) for group in groups_of(nodes["gpu-1"]["groups"])} == {
        ("rack", "r12", 2),
        ("fleet", "fleet", 3),
    }


def test_the_controller_has_what_the_fleet_has(variables):
    assert variables["localhost"]["gpuops_kubeconfig"] == "/etc/gpuops/kubeconfig"


def test_every_variable_is_read_by_somebody(variables):
    known = {name for path in READ_BY for name in re.findall(r"gpuops_\w+", (ROOT / path).read_text())}
    named = {name for values in variables.values() for name in values if name.startswith("gpuops_")}
    assert named and named - known == set()
