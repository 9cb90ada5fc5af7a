# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup import act
from ansible_collections.gpuops.remediation.plugins.module_utils._gpu import nvml
from ansible_collections.gpuops.remediation.plugins.modules import cgroup_state
from run_module import run_module

GPU = {"uuid": "GPU-a", "pci_bus_id": None, "device_path": None, "lost": False, "errors": [], "processes": [], "processes_source": "nvml"}


@pytest.fixture
def node(tmp_path, monkeypatch):
    monkeypatch.setattr(nvml, "IMPORT_ERROR", None)
    monkeypatch.setattr(act.info, "read", lambda *args, **options: {"gpus": [GPU], "missing": []})
    return {"state_dir": str(tmp_path), "cgroup_root": str(tmp_path)}


def test_nothing_to_do(node):
    done = run_module(cgroup_state.main, state="killed", gpu="GPU-a", **node)
    assert (done["changed"], done["actions"], done["diff"]["after"]) == (False, [], {"gpu": "GPU-a", "cgroups": []})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"state": "killed"}, "state is killed but all of the following are missing: gpu"),
        ({"state": "free"}, "state is free but all of the following are missing: gpu"),
        ({"state": "frozen"}, "state is frozen but all of the following are missing: gpu"),
        ({"state": "thawed"}, "state is thawed but all of the following are missing: cgroup"),
        ({"state": "killed", "gpu": "GPU-a", "pids": [{"pid": 1}]}, "start_ticks found in pids"),
        ({"state": "killed", "gpu": "GPU-a", "pids": []}, "pids names nobody"),  # S10: suspects that are gone widen nothing
        ({"state": "killed", "gpu": "GPU-a", "cgroup": "/", "fault_time": "2026-01-01T00:00:00Z"}, "neither one container's"),
        ({"state": "killed", "gpu": "GPU-a", "fault_time": "soon"}, "not an ISO 8601 time"),
    ],
)
def test_failures(node, options, text):
    failed = run_module(cgroup_state.main, **node, **options)
    assert failed["failed"] and text in failed["msg"]


def test_the_library_is_missing(node, monkeypatch):
    monkeypatch.setattr(nvml, "IMPORT_ERROR", "Traceback: no pynvml")
    assert "nvidia-ml-py" in run_module(cgroup_state.main, state="killed", gpu="GPU-a", **node)["msg"]
