# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a driver of Dynamic Resource Allocation does for a node: it publishes the node's GPUs, and knows which of them a claim was given.

Which claim gets which GPU is the real scheduler's part. A GPU that is lost stays published, as by a driver that was not started anew since.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .node import Node

GROUP, VERSION = "resource.k8s.io", "v1"
DRIVER = "gpu.nvidia.com"
Json = Mapping[str, Any]


def resource_slice(node: Node, node_uid: str) -> dict[str, Any]:
    """The node's whole GPUs as NVIDIA's driver describes them; one that is cut up is left out."""
    owner = {"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node_uid}
    devices = [
        {
            "name": f"gpu-{gpu['index']}",
            "attributes": {
                "type": {"string": "gpu"},
                "uuid": {"string": gpu["uuid"]},
                "resource.kubernetes.io/pciBusID": {"string": gpu["pci_bus_id"]},
            },
        }
        for gpu in node.state()["gpus"]
        if not gpu["mig"]["current"]
    ]
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node.name}-{DRIVER}", "ownerReferences": [owner]},
        "spec": {
            "driver": DRIVER,
            "nodeName": node.name,
            "pool": {"name": node.name, "generation": 1, "resourceSliceCount": 1},
            "devices": devices,
        },
    }


def held(pod: Json, claims: Iterable[Json]) -> list[dict[str, Any]]:
    """The pod's claims with what they were given, as the kubelet tells them."""
    uid = pod["metadata"]["uid"]
    found = []
    for claim in claims:
        status = claim.get("status") or {}
        if any(user["uid"] == uid for user in status.get("reservedFor") or ()):
            results = ((status.get("allocation") or {}).get("devices") or {}).get("results") or ()
            given = [{"driver_name": one["driver"], "pool_name": one["pool"], "device_name": one["device"]} for one in results]
            names = claim["metadata"]
            found.append({"claim_name": names["name"], "claim_namespace": names["namespace"], "claim_resources": given})
    return found


def claimed_gpus(held: Iterable[Json]) -> list[int]:
    """The indexes of the GPUs that claims were given."""
    given = [one for claim in held for one in claim["claim_resources"] if one["driver_name"] == DRIVER]
    return sorted(int(one["device_name"].removeprefix("gpu-")) for one in given)
