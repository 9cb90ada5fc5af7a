# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""The resources and devices by which Kubernetes knows GPUs and MIG devices."""

from __future__ import annotations

import re

VENDOR = "nvidia.com/"
GPU = VENDOR + "gpu"
MIG = VENDOR + "mig-"  # and the profile
SHARED = ".shared"  # what the device plugin adds to the names of those that it shares among pods
REPLICA = "::"  # between a device and the number of its replica
DRIVER = "gpu.nvidia.com"  # of Dynamic Resource Allocation

# Network functions and the like, by the names that the network operator's manuals and their users give them; switches by their model too.
_NO_GPU = re.compile(r"(hostdev|rdma|roce|sriov|ib\d|resib|mlx|mlnx|mellanox|cx\d|bf\d*_|nic)|.*nvswitch", re.IGNORECASE)


def is_gpu(resource: str) -> bool:
    """Whether it is of GPUs or MIG devices that a process of the node's own uses, by NVIDIA's own names for them."""
    return resource in (GPU, GPU + SHARED) or resource.startswith(MIG)


def may_be_gpu(resource: str) -> bool:
    """Also one that is passed through to a virtual machine, virtual, or named by its administrator.

    A name that nobody knows is taken for a GPU's: to leave work on a sick one is the worse error.
    """
    return resource.startswith(VENDOR) and not _NO_GPU.match(resource[len(VENDOR) :])


def device_of(name: str) -> str:
    """The UUID; a plugin that shares a device numbers its replicas, `UUID::3`."""
    return name.partition(REPLICA)[0]


def is_shared(name: str) -> bool:
    return REPLICA in name
