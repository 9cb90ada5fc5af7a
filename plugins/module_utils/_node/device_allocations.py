# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Which GPUs and MIG devices the kubelet has given to which pod, and which it knows of, by its own checkpoint file.

The file is what the kubelet itself reads when it starts. Unlike its PodResources API it also has what init containers were given, needs no
library, and is the kubelet's private format.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible_collections.gpuops.remediation.plugins.module_utils._errors import RemediationError
from ansible_collections.gpuops.remediation.plugins.module_utils._gpu.resources import device_of, is_gpu, is_shared, may_be_gpu

CHECKPOINT = "device-plugins/kubelet_internal_checkpoint"


class CheckpointUnreadable(RemediationError):
    """Who has what cannot be told, which is not the same as that nobody has anything."""

    kind = "checkpoint_unreadable"


def read(kubelet_dir: str) -> dict[str, Any]:
    path = Path(kubelet_dir) / CHECKPOINT
    try:
        return parse(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise CheckpointUnreadable(f"cannot read the kubelet's checkpoint {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointUnreadable(f"the kubelet's checkpoint {path} is not as expected: {type(error).__name__}: {error}") from error


def parse(checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    """`allocations`, one a pod, container and resource, of all that may be a GPU, and `registered`, GPUs and MIG devices by resource.

    `shared` are the resources of which more is registered than there are devices, whether their names say so or not.
    """
    data = checkpoint["Data"]
    allocations = [
        {
            "pod_uid": str(entry["PodUID"]),
            "container": str(entry["ContainerName"]),
            "resource": str(entry["ResourceName"]),
            "devices": sorted({*map(device_of, ids)}),
            "count": len(ids),
        }
        for entry in data["PodDeviceEntries"] or ()
        if may_be_gpu(entry["ResourceName"])
        for ids in [_ids(entry["DeviceIDs"])]
    ]
    told = {str(resource): devices or () for resource, devices in (data["RegisteredDevices"] or {}).items() if is_gpu(resource)}
    return {
        "allocations": allocations,
        "claims": [],
        "registered": {resource: sorted({*map(device_of, devices)}) for resource, devices in told.items()},
        "shared": sorted(resource for resource, devices in told.items() if any(map(is_shared, devices))),
    }


def _ids(told: Any) -> list[str]:
    """By NUMA node since Kubernetes 1.20, a list before."""
    lists = told.values() if isinstance(told, Mapping) else [told]
    return [one for each in lists for one in each or ()]
