# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Which pods certainly have other GPUs of a node than the sick one, by what the kubelet has given them. Who is left may have it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ansible_collections.gpuops.remediation.plugins.module_utils._gpu import resources
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.evictions import Pod, claims, gpus_requested, holds_claims, uid

_GPU, _MIG, _OLD_MIG = "GPU-", "MIG-", "MIG-GPU-"


def pods_elsewhere(
    told: Mapping[str, Any], pods: Iterable[Pod], gpus: Sequence[Mapping[str, Any]], sick: Sequence[str]
) -> list[str] | None:
    """The UIDs; None where it is not known which the sick one is.

    `told` is gpu_allocations_info's answer, `gpus` are gpu_info's, `sick` is the GPU's UUID or PCI address, or both.
    """
    uuids = {name for name in sick if name.startswith(_GPU)}
    uuids |= {str(gpu["uuid"]) for gpu in gpus if gpu["uuid"] and gpu["pci_bus_id"] in sick}
    if not uuids:
        return None
    parents = {str(gpu["uuid"]): str(gpu["uuid"]) for gpu in gpus if gpu["uuid"]}
    parents.update(
        (str(one["uuid"]), str(gpu["uuid"])) for gpu in gpus if gpu["uuid"] for one in (gpu.get("mig") or {}).get("instances") or ()
    )
    claimants = {_key(one) for one in told["claims"] if one["driver"] == resources.DRIVER}
    of_others = {one["claim"] for one in told["claims"] if one["driver"] not in ("", resources.DRIVER)}  # older kubelets name none
    users = {
        process["container"]["pod_uid"]
        for gpu in gpus
        if gpu["uuid"] in uuids
        for process in gpu.get("processes") or ()
        if process.get("container")
    }

    def elsewhere(pod: Pod) -> bool:
        names = {uid(pod), (pod["metadata"]["namespace"], pod["metadata"]["name"])}
        given = [one for one in told["allocations"] if _key(one) in names]
        owners = {_gpu_of(device, parents) for one in given for device in one["devices"]}
        if names & claimants or uid(pod) in users or None in owners or owners & uuids:
            return False
        if holds_claims(pod) and not (claims(pod) and of_others.issuperset(claims(pod))):  # older kubelets tell of none, nor does the file
            return False
        counts: dict[str, int] = {}
        for one in given:
            counts[one["resource"]] = counts.get(one["resource"], 0) + one["count"]
        wanted = gpus_requested(pod)
        return bool(given) and all(counts.get(resource, 0) >= count for resource, count in wanted.items())

    return sorted(uid(pod) for pod in pods if elsewhere(pod))


def _key(entry: Mapping[str, Any]) -> Any:
    """A pod, as the source names it."""
    return entry["pod_uid"] if "pod_uid" in entry else (entry["pod_namespace"], entry["pod_name"])


def _gpu_of(device: str, parents: Mapping[str, str]) -> str | None:
    """The UUID of its GPU; None where nobody can tell, as with plugins that have names of their own (`nvidia0`, `GPU-…-0`)."""
    if device.startswith(_OLD_MIG):
        device = device[len(_MIG) :].partition("/")[0]
    return parents.get(device)
