# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.clients import join

GPU, OTHER = 3, 4  # minors


def listed(pid, gi=None, ci=None, kind="compute", name="train"):
    return {"pid": pid, "type": kind, "gi": gi, "ci": ci, "source": "nvml", "name": name}


def client(pid, *held, name="dcgm", executable=None, cgroup=None):
    return {"pid": pid, "held": [list(one) for one in held], "process": {"name": name, "executable": executable, "cgroup": cgroup}}


@pytest.mark.parametrize(
    "processes, clients, holders",
    [
        pytest.param([], [], {}, id="nobody"),
        pytest.param(
            [listed(1, 2, 0)],
            [client(1, (GPU, None, None), (GPU, 2, None), (GPU, 2, 0))],
            {(2, 0): [(1, "compute", "nvml")]},
            id="a process is told once",
        ),
        pytest.param(
            [listed(1, 2, 0)],
            [client(1, (GPU, 2, 0), (GPU, 2, 1))],
            {(2, 0): [(1, "compute", "nvml")], (2, 1): [(1, "client", "device_file")]},
            id="and for each thing that it holds",
        ),
        pytest.param(
            [],
            [client(1, (GPU, None, None), (GPU, 2, None), (GPU, 5, None), (GPU, 5, 1))],
            {(2, None): [(1, "client", "device_file")], (5, 1): [(1, "client", "device_file")]},
            id="at the smallest, in no list of NVML",
        ),
        pytest.param([], [client(1, (GPU, None, None))], {(None, None): [(1, "client", "device_file")]}, id="the GPU itself"),
        pytest.param([], [client(1, (GPU, 2, 0), cgroup="/system.slice/gpuops-exporter.service")], {}, id="our own exporter's reader"),
        pytest.param([], [client(1, (OTHER, None, None), (OTHER, 2, 0))], {}, id="another GPU"),
        pytest.param(
            [listed(1, 2, 0, name="nvidia-cuda-mps"), listed(2, 2, 0, "mps")],
            [client(3, (GPU, 2, 1), name="nvidia-cuda-mps", executable="/usr/bin/nvidia-cuda-mps-server")],
            {(2, 0): [(1, "mps_server", "nvml"), (2, "mps", "nvml")], (2, 1): [(3, "mps_server", "device_file")]},
            id="servers of MPS and clients",
        ),
    ],
)
def test_who_holds_what(processes, clients, holders):
    found = join(GPU, processes, clients)
    assert {place: [(one["pid"], one["type"], one["source"]) for one in who] for place, who in found.items()} == holders
    assert all((one["gi"], one["ci"]) == place for place, who in found.items() for one in who)
