# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._gpu.resources import is_gpu, may_be_gpu


@pytest.mark.parametrize("name", ["gpu", "gpu.shared", "mig-1g.18gb", "mig-3g.71gb.shared"])
def test_a_gpu_by_nvidias_own_names(name):
    assert is_gpu(f"nvidia.com/{name}") and may_be_gpu(f"nvidia.com/{name}")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("pgpu", id="Kata's"),
        pytest.param("GH100_H100_SXM5_80GB", id="passed through"),
        pytest.param("NVIDIA_A10-24Q", id="virtual"),
        pytest.param("GRID_T4-1Q", id="virtual, older"),
        pytest.param("h200", id="the administrator's"),
    ],
)
def test_a_gpu_by_another_name(name):
    """S11: whoever has it is to go. MIG layouts and what the node's own plugin should advertise are not about it."""
    assert may_be_gpu(f"nvidia.com/{name}") and not is_gpu(f"nvidia.com/{name}")


@pytest.mark.parametrize(
    "name",
    [
        "nvidia.com/hostdev",
        "nvidia.com/rdma0",
        "nvidia.com/rdma_vf",
        "nvidia.com/sriov-rdma-vf",
        "nvidia.com/sriov_resource_rail_0",
        "nvidia.com/resibp24s0",
        "nvidia.com/ib0",
        "nvidia.com/bf_sf",
        "nvidia.com/bf3_p0_sf1",
        "nvidia.com/cx7_qsfp",
        "nvidia.com/mlnxnics",
        "nvidia.com/nvswitch",
        "nvidia.com/GH100_H100_NVSwitch",
        "rdma/rdma_shared_device_a",
        "cpu",
    ],
)
def test_no_gpu(name):
    assert not may_be_gpu(name) and not is_gpu(name)
