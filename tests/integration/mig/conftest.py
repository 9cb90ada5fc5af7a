# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from fleet import Fleet
from loop import REPOSITORY, Controller

PLUGIN = "nvidia-device-plugin-daemonset"
NAMESPACE = "gpu-operator"
OURS = {"key": "gpuops.remediation/mig-change", "operator": "Exists", "effect": "NoSchedule"}


class MigFleet(Fleet):
    """Nodes whose GPUs a device plugin advertises."""

    def device_plugin(self, nodes, *, strategy="mixed", tolerates=True):
        self.objects.daemonset(
            PLUGIN,
            namespace=NAMESPACE,
            nodes=nodes,
            environment={"MIG_STRATEGY": strategy},
            tolerations=[OURS] if tolerates else [],
        )

    def advertised(self, node):
        told = self.objects.node(node)["status"]["allocatable"]
        return {
            name.removeprefix("nvidia.com/"): int(count) for name, count in told.items() if name.startswith("nvidia.com/") and count != "0"
        }

    def layout(self, node, gpu):
        return [f"{one['name'].removeprefix('MIG ')}@{one['start']}" for one in self.nodes[node].state()["gpus"][gpu]["mig"]["instances"]]

    def changes(self, since=""):
        """What was written of nodes and pods, and not only asked."""
        return [(entry.verb, entry.resource) for entry in self.writes("nodes", "pods", since=since) if not entry.dry_run]


@pytest.fixture(scope="session")
def allowed(running_cluster):
    """The account may restart the device plugin."""
    running_cluster.objects.namespace(NAMESPACE)
    running_cluster.admin.apply_file(REPOSITORY / "roles/mig/files/kubernetes_rbac.yml")


@pytest.fixture
def fleet(cluster, allowed, tmp_path):
    with MigFleet(tmp_path / "controller", cluster) as made:
        made.variables.update(gpuops_mig_at_boot=False, gpuops_mig_unit_dir=str(tmp_path / "units"), gpuops_mig_plugin_seconds=90)
        (tmp_path / "units").mkdir()
        yield made


@pytest.fixture
def controller(tmp_path):
    with Controller(tmp_path / "controller") as made:
        yield made
