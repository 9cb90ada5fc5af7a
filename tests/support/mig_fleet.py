# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Simulated GPU nodes of a real Kubernetes cluster whose GPUs and MIG devices a device plugin advertises."""

from __future__ import annotations

from collections.abc import Mapping

from cluster.objects import wait_until
from fleet import Fleet

PLUGIN = "nvidia-device-plugin-daemonset"
NAMESPACE = "gpu-operator"
OURS = {"key": "gpuops.remediation/mig-change", "operator": "Exists", "effect": "NoSchedule"}


class MigFleet(Fleet):
    """Nodes whose GPUs a device plugin advertises."""

    def device_plugin(self, *nodes: str, name: str = PLUGIN, tolerates: bool = True) -> None:
        """A DaemonSet of its own for these nodes; all of them where none is named. Beside it GPU feature discovery, labelled alike by the chart."""
        for node in nodes:
            self.objects.api.patch("Node", node, {"metadata": {"labels": {"test.gpuops.io/plugin": name}}})
        for daemonset, container in ((f"gpu-feature-discovery-of-{name}", "gpu-feature-discovery-ctr"), (name, "nvidia-device-plugin-ctr")):
            self.objects.daemonset(
                daemonset,
                container_name=container,
                namespace=NAMESPACE,
                nodes=len(nodes or self.nodes),
                labels={"app.kubernetes.io/name": "nvidia-device-plugin"},
                selector={"test.gpuops.io/plugin": name} if nodes else {},
                environment={"MIG_STRATEGY": "mixed"},
                tolerations=[OURS] if tolerates else [],
            )

    def idle_pod(self, name: str, node: str, devices: Mapping[str, int]) -> None:
        """It has its devices, and no process on them."""
        self.objects.pod(name, node=node, devices=devices, annotations={"test.gpuops.io/idle": "true"})
        wait_until(lambda: name in [pod["name"] for pod in self.nodes[node].state()["pods"].values()], f"{name} has its devices")

    def advertised(self, node: str) -> dict[str, int]:
        told = self.objects.node(node)["status"]["allocatable"]
        return {
            name.removeprefix("nvidia.com/"): int(count) for name, count in told.items() if name.startswith("nvidia.com/") and count != "0"
        }

    def layout(self, node: str, gpu: int) -> list[str]:
        return [f"{one['name'].removeprefix('MIG ')}@{one['start']}" for one in self.nodes[node].state()["gpus"][gpu]["mig"]["instances"]]

    def changes(self, since: str = "") -> list[tuple[str, str]]:
        """What was written of nodes and pods, and not only asked."""
        return [(entry.verb, entry.resource) for entry in self.writes("nodes", "pods", since=since) if not entry.dry_run]
