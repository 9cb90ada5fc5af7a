# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Which GPUs and MIG devices the kubelet has given to which pod, by its PodResources API (v1), and the claims by which a driver has.

The API does not list what an init container has that ends before the others begin, and knows pods by their names.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Callable

from ansible_collections.gpuops.remediation.plugins.module_utils._errors import RemediationError
from ansible_collections.gpuops.remediation.plugins.module_utils._gpu.resources import device_of, is_gpu, is_shared, may_be_gpu
from ansible_collections.gpuops.remediation.plugins.module_utils._node import grpc
from ansible_collections.gpuops.remediation.plugins.module_utils._node.protobuf import Message

SOCKET = "pod-resources/kubelet.sock"
SERVICE = "v1.PodResourcesLister"


class PodResourcesUnreadable(RemediationError):
    """Something has answered that is not understood."""

    kind = "pod_resources_unreadable"


def read(kubelet_dir: str, timeout_seconds: float) -> dict[str, Any]:
    path = str(Path(kubelet_dir) / SOCKET)
    given = grpc.call(path, f"{SERVICE}/List", b"", timeout_seconds)
    registered = grpc.call(path, f"{SERVICE}/GetAllocatableResources", b"", timeout_seconds)
    try:
        return {**parse_list(given), **parse_allocatable(registered)}
    except ValueError as error:
        raise PodResourcesUnreadable(f"the answer of {path} is not as expected: {error}") from error


def parse_list(message: bytes) -> dict[str, Any]:
    """`allocations`, one a pod, container and resource, of all that may be a GPU; `claims`, one a pod, container and device of a claim."""
    allocations, claims = [], []
    for pod in Message(message).messages(1):
        name = {"pod_namespace": pod.text(2), "pod_name": pod.text(1)}
        for container in pod.messages(3):
            where = {**name, "container": container.text(1)}
            for resource, ids in _by_resource(container.messages(2), may_be_gpu).items():
                allocations.append({**where, "resource": resource, "devices": sorted({*map(device_of, ids)}), "count": len(ids)})
            for claim in container.messages(5):
                told = {"claim": f"{claim.text(3)}/{claim.text(2)}"}
                for device in claim.messages(4):
                    claims.append({**where, **told, "driver": device.text(2), "pool": device.text(3), "device": device.text(4)})
    return {"allocations": allocations, "claims": claims}


def parse_allocatable(message: bytes) -> dict[str, Any]:
    """Which GPUs and MIG devices the device plugin has registered and calls healthy, by resource."""
    told = _by_resource(Message(message).messages(1), is_gpu)
    return {
        "registered": {resource: sorted({*map(device_of, ids)}) for resource, ids in told.items()},
        "shared": sorted(resource for resource, ids in told.items() if any(map(is_shared, ids))),
    }


def _by_resource(devices: Iterable[Message], wanted: Callable[[str], bool]) -> dict[str, list[str]]:
    """The kubelet tells them by NUMA node."""
    found: dict[str, list[str]] = {}
    for each in devices:
        if wanted(each.text(1)):
            found.setdefault(each.text(1), []).extend(each.texts(2))
    return found
