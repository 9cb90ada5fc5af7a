# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.gpuops.remediation.plugins.filter.incident_nodes import incident_nodes


def api_node(name, **labels):
    return {"metadata": {"name": name, "uid": f"uid-of-{name}", "labels": {name.replace("_", "/"): v for name, v in labels.items()}}}


def test_bare_hosts_are_their_own_nodes():
    nodes = incident_nodes({"a": {}, "b": {"gpuops_node_name": "gpu-b", "gpuops_groups": {"rack": "r1"}}})
    assert nodes == {
        "a": {"host": "a", "uid": "a", "managed": True, "groups": {"fleet": 2}},
        "gpu-b": {"host": "b", "uid": "gpu-b", "managed": True, "groups": {"rack": "r1", "fleet": 2}},
    }


def test_kubernetes_knows_its_nodes():
    """A host that is not a node (the controller, a database) is none of ours; the fleet is what the API has."""
    nodes = incident_nodes({"controller": {}, "gpu-1": {}}, [api_node("gpu-1"), api_node("gpu-2")])
    assert nodes == {"gpu-1": {"host": "gpu-1", "uid": "uid-of-gpu-1", "managed": True, "groups": {"fleet": 2}}}


@pytest.mark.parametrize(
    "variables, labels, managed",
    [
        ({}, {}, True),
        ({"gpuops_managed": False}, {}, False),
        ({"gpuops_managed": "false"}, {}, False),
        ({"gpuops_managed": "False"}, {}, False),
        ({"gpuops_managed": "off"}, {}, False),
        ({"gpuops_managed": 0}, {}, False),
        ({"gpuops_managed": "yes"}, {}, True),
        ({}, {"gpuops.remediation_managed": "false"}, False),
        ({}, {"gpuops.remediation_managed": "true"}, True),
    ],
)
def test_opting_out(variables, labels, managed):
    """S4: a label on the node or a host variable opts it out."""
    assert incident_nodes({"n": variables}, [api_node("n", **labels)])["n"]["managed"] is managed
