# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""The resources and devices by which Kubernetes knows GPUs and MIG devices. Others of NVIDIA's are network devices and the like (nvidia.com/hostdev)."""

from __future__ import annotations

GPU = "nvidia.com/gpu"
MIG = "nvidia.com/mig-"  # and the profile
SHARED = ".shared"  # what the device plugin adds to the names of those that it shares among pods
REPLICA = "::"  # between a device and the number of its replica
DRIVER = "gpu.nvidia.com"  # of Dynamic Resource Allocation


def is_gpu(resource: str) -> bool:
    """Whether it is of GPUs or MIG devices."""
    return resource in (GPU, GPU + SHARED) or resource.startswith(MIG)


def device_of(name: str) -> str:
    """The UUID; a plugin that shares a device numbers its replicas, `UUID::3`."""
    return name.partition(REPLICA)[0]


def is_shared(name: str) -> bool:
    return REPLICA in name
