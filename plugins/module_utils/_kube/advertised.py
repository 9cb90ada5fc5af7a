# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""What NVIDIA's device plugin tells Kubernetes of a node's GPUs and MIG devices, and what it should: the pure part. Objects are the API's JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ansible_collections.gpuops.remediation.plugins.module_utils._errors import RemediationError
from ansible_collections.gpuops.remediation.plugins.module_utils._gpu.resources import GPU, MIG, SHARED, is_gpu
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.evictions import Pod, finished, terminating
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.names import parse_name

LABEL_STRATEGY = "nvidia.com/mig.strategy"  # on the node, by GPU feature discovery
STRATEGIES = ("mixed", "single")
# As the GPU operator, the Helm chart and the plain manifest label its pods
PLUGIN_LABELS = (
    "app=nvidia-device-plugin-daemonset",
    "app.kubernetes.io/name=nvidia-device-plugin",
    "name=nvidia-device-plugin-ds",
)
PLUGIN_PROGRAM = "nvidia-device-plugin"
PLUGIN_CONTAINERS = ("nvidia-device-plugin-ctr", PLUGIN_PROGRAM)  # as the chart and the manifest name it, and as the GPU operator does


class StrategyUnfit(RemediationError):
    """The plugin would hand out what is there not at all, or otherwise than it is meant."""

    kind = "strategy_unfit"


def resources(gpus: int, mig_devices: Mapping[str, int], strategy: str, empty: Sequence[str] = ()) -> dict[str, int]:
    """What the plugin makes of so many whole GPUs and of MIG devices by profile name, beside `empty` GPUs that have MIG on and no MIG device.

    What it does not know is not just left out: it ends with an error, again and again, and nothing of the node can be allocated.
    """
    kinds = sorted(name for name, count in mig_devices.items() if count)
    if empty:
        raise StrategyUnfit(
            f"GPU {', '.join(empty)} has MIG on and no MIG device, by which the device plugin would end, and no GPU of the node could be allocated: "
            "it has to have one, or MIG has to be off (mig_enabled: false)"
        )
    if strategy == "mixed":
        parts = [name for name in kinds if not _whole(name)]
        if parts:
            raise StrategyUnfit(
                f"the device plugin's MIG strategy is mixed: it has no resource for a part of a GPU instance ({', '.join(parts)}), by which it would "
                "end, and no GPU of the node could be allocated"
            )
        told = {GPU: gpus, **{MIG + name.replace("+", "."): mig_devices[name] for name in kinds}}
        return {name: count for name, count in told.items() if count}
    if not kinds:
        return {GPU: gpus} if gpus else {}
    if strategy != "single":
        raise StrategyUnfit(
            f"the device plugin's MIG strategy is {strategy}: it would hand out no MIG device, but GPUs that have no whole to give"
        )
    if gpus or len(kinds) > 1:
        have = [f"{gpus} GPUs without MIG"] if gpus else []
        raise StrategyUnfit(
            f"the device plugin's MIG strategy is single: it needs one kind of MIG device on all GPUs, not {', '.join(have + kinds)}"
        )
    return {GPU: mig_devices[kinds[0]]}


def _whole(name: str) -> bool:
    """Whether it is all of its GPU instance."""
    parsed = parse_name(name)
    return parsed is not None and parsed.whole


def advertised(node: Mapping[str, Any], part: str = "allocatable") -> dict[str, int]:
    """The GPUs and MIG devices that can be allocated on the node; what is there no more stands at 0 for a while, and then not at all."""
    told = (node.get("status") or {}).get(part) or {}
    return {name: int(count) for name, count in told.items() if is_gpu(name) and int(count)}


def shared(node: Mapping[str, Any]) -> list[str]:
    """Resources of GPUs that the plugin shares among pods, so that their number is not that of the devices."""
    return sorted(name for name in advertised(node, "capacity") if name.endswith(SHARED))


def plugin_pods(pods: Iterable[Pod], labels: Sequence[str]) -> list[Pod]:
    """Those that carry one of the labels (`key=value`) and are not on their way out.

    The chart labels the pods of GPU feature discovery and of the MPS daemon like the plugin's: by such a label a pod has to have the plugin in it.
    Who gives the plugin's pods another label may have named its container and its command too.
    """

    def known(pod: Pod) -> bool:
        has = {f"{key}={value}" for key, value in (pod["metadata"].get("labels") or {}).items()} & set(labels)
        return not has <= set(PLUGIN_LABELS) or (bool(has) and any(map(_is_plugin, pod["spec"]["containers"])))

    return [pod for pod in pods if not terminating(pod) and not finished(pod) and known(pod)]


def _is_plugin(container: Mapping[str, Any]) -> bool:
    program = (container.get("command") or [""])[0].rpartition("/")[2]
    return container["name"] in PLUGIN_CONTAINERS or program == PLUGIN_PROGRAM


def ready(pod: Pod) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def strategy_of(pod: Pod | None, node: Mapping[str, Any]) -> str | None:
    """The plugin's own words on its command line and in its environment, else the node's label; None where nothing tells."""
    for container in pod["spec"]["containers"] if pod else ():
        words = [*(container.get("command") or ()), *(container.get("args") or ())]
        for word, following in zip(words, [*words[1:], ""]):
            if word == "--mig-strategy":
                return str(following)
            if word.startswith("--mig-strategy="):
                return str(word.partition("=")[2])
        for variable in container.get("env") or ():
            if variable["name"] == "MIG_STRATEGY" and variable.get("value"):
                return str(variable["value"])
    told = (node["metadata"].get("labels") or {}).get(LABEL_STRATEGY)
    return str(told) if told else None
