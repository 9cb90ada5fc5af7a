# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from ansible_collections.gpuops.remediation.plugins.filter.named_incidents import named_incidents


def node(name, annotation):
    annotations = {"gpuops.remediation/incidents": annotation} if annotation else None
    return {"metadata": {"name": name, "uid": f"uid-of-{name}", "resourceVersion": "1", "annotations": annotations}}


def test_which_nodes_name_which_incidents():
    nodes = [node("gpu-1", '["a", "b"]'), node("gpu-2", '["c"]'), node("gpu-3", None), node("gpu-4", "not JSON")]
    assert named_incidents(nodes, ["b", "c", "d"]) == [
        {"name": "gpu-1", "uid": "uid-of-gpu-1", "incident_id": "b"},
        {"name": "gpu-2", "uid": "uid-of-gpu-2", "incident_id": "c"},
    ]
    assert named_incidents(nodes, []) == []
