# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""NVIDIA's device plugin on one node: what its pod finds when it starts, and goes on advertising whatever becomes of the GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Pod = Mapping[str, Any]  # as the API's JSON
PREFIX = "nvidia.com/"
GPU_RESOURCE = PREFIX + "gpu"
# As the GPU operator, the Helm chart and the plain manifest label it
LABELS = {
    "app": "nvidia-device-plugin-daemonset",
    "app.kubernetes.io/name": "nvidia-device-plugin",
    "name": "nvidia-device-plugin-ds",
}
CONTAINERS = ("nvidia-device-plugin", "nvidia-device-plugin-ctr")  # the chart labels GPU feature discovery's pods like the plugin's


def pod_on(node: str, pods: Iterable[Pod]) -> Pod | None:
    """The plugin's pod that serves the node."""
    for pod in pods:
        labels = pod["metadata"].get("labels") or {}
        ours = any(labels.get(key) == value for key, value in LABELS.items())
        ours = ours and any(container["name"] in CONTAINERS for container in pod["spec"]["containers"])
        if ours and pod["spec"].get("nodeName") == node and not pod["metadata"].get("deletionTimestamp"):
            return pod
    return None


def strategy(pod: Pod) -> str:
    variables = [variable for container in pod["spec"]["containers"] for variable in container.get("env") or ()]
    return next((str(one.get("value")) for one in variables if one["name"] == "MIG_STRATEGY"), "none")


def devices(state: Mapping[str, Any], strategy: str) -> dict[str, list[str]]:
    """The UUIDs by resource. A layout that the strategy does not know leaves the plugin without any, as one that crashes again and again."""
    found, crashes = look(state, strategy)
    return {} if crashes else found


def look(state: Mapping[str, Any], strategy: str) -> tuple[dict[str, list[str]], bool]:
    """The UUIDs by resource, and whether the plugin ends with an error.

    It does by a GPU with MIG on and no MIG device, with `mixed` by a part of a GPU instance, and with `single` by two kinds.
    """
    found: dict[str, list[str]] = {}
    kinds = set()
    crashes = False
    for gpu in state["gpus"]:
        if gpu["lost"]:
            continue
        if not gpu["mig"]["current"] or strategy == "none":
            kinds.add("whole")
            found.setdefault(GPU_RESOURCE, []).append(gpu["uuid"])
            continue
        crashes = crashes or not any(instance["compute"] for instance in gpu["mig"]["instances"])
        for instance in gpu["mig"]["instances"]:
            for compute in instance["compute"]:
                whole = compute["name"] == instance["name"]
                kinds.add(compute["name"])
                if strategy == "single":
                    found.setdefault(GPU_RESOURCE, []).append(compute["uuid"])
                elif whole:
                    name = instance["name"].removeprefix("MIG ").replace("+", ".")
                    found.setdefault(f"{PREFIX}mig-{name}", []).append(compute["uuid"])
                else:
                    crashes = True
    return found, crashes or (strategy == "single" and len(kinds) > 1)
