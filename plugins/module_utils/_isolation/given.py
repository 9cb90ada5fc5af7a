# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Which devices are meant for a container: by what the kubelet gave, or where there is none by what it was started with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._gpu import resources
from ansible_collections.gpuops.remediation.plugins.module_utils._isolation.visible import ALL, UNSAID, asked
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.evictions import STATIC_UID, Pod, holds_claims, uid


class Place(NamedTuple):
    """A GPU by its minor, or a MIG device."""

    minor: Optional[int]
    gi: Optional[int] = None
    ci: Optional[int] = None


class Given(NamedTuple):
    """`gone` are devices that NVML does not have. `places` is None where nobody can tell what is meant."""

    places: Optional[frozenset[Place]]
    gone: Sequence[str] = ()
    shared: bool = False


def places(gpus: Iterable[Mapping[str, Any]]) -> dict[str, Place]:
    """By UUID, by NVML's number of the GPU, and by `GPU:INSTANCE` as the toolkit counts MIG devices."""
    found: dict[str, Place] = {}
    for gpu in gpus:
        instances = [one for one in (gpu["mig"] or {}).get("instances") or () if one["uuid"]]
        for name in (gpu["uuid"], gpu["pci_bus_id"], None if gpu["index"] is None else str(gpu["index"])):
            if name:
                found[name] = Place(gpu["minor"])
        for number, one in enumerate(instances):
            found[one["uuid"]] = Place(gpu["minor"], one["gi"], one["ci"])
            found[f"{gpu['index']}:{number}"] = found[one["uuid"]]
    return found


def given_by_start(value: Optional[str], known: Mapping[str, Place]) -> Given:
    """Without a kubelet, NVIDIA_VISIBLE_DEVICES is what whoever started the container has said, unless it is all."""
    tokens = asked(value)
    if value in (None, *UNSAID) or ALL in tokens or any(token not in known for token in tokens):
        return Given(None)
    return Given(frozenset(known[token] for token in tokens))


def pods_by_uid(pods: Sequence[Pod]) -> dict[str, Pod]:
    """Also by the UID that a static pod has on its node. Anybody can write that annotation: it stands back behind the real ones."""
    static = {(pod["metadata"].get("annotations") or {}).get(STATIC_UID): pod for pod in pods}
    return {**{name: pod for name, pod in static.items() if name}, **{uid(pod): pod for pod in pods}}


def given_by_kubelet(
    told: Mapping[str, Any], pod_uid: str, pod: Optional[Pod], container: Optional[str], known: Mapping[str, Place]
) -> Given:
    """Of the container where its name is known, else of its pod."""
    if pod is None and told["source"] != "checkpoint":
        return Given(None)  # this source knows pods by their names
    names = {pod_uid, uid(pod), (pod["metadata"]["namespace"], pod["metadata"]["name"])} if pod else {pod_uid}
    if (pod is not None and holds_claims(pod)) or any(_key(one) in names for one in told["claims"]):
        return Given(None)  # which GPU a claim has, the driver that handed it out says
    own = [one for one in told["allocations"] if _key(one) in names and container in (None, one["container"])]
    devices = [device for one in own for device in one["devices"]]
    if any(not resources.is_gpu(one["resource"]) for one in own) or any(not device.startswith(("GPU-", "MIG-")) for device in devices):
        return Given(None)  # a plugin with names of its own
    gone = sorted(device for device in devices if device not in known)
    shared = any(one["resource"] in told["shared"] for one in own)
    return Given(None if gone else frozenset(known[device] for device in devices), gone, shared)


def _key(entry: Mapping[str, Any]) -> Any:
    return entry["pod_uid"] if "pod_uid" in entry else (entry["pod_namespace"], entry["pod_name"])


def covers(given: frozenset[Place], place: Place) -> bool:
    """Whether a device that is seen or used is part of what was given, or is needed to get to it."""
    return any(
        one.minor == place.minor and (one.gi is None or place.gi in (None, one.gi)) and (one.ci is None or place.ci in (None, one.ci))
        for one in given
    )
