# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup import numbers
from ansible_collections.gpuops.remediation.plugins.module_utils._exporter import probes
from ansible_collections.gpuops.remediation.plugins.module_utils._node.procfs import ProcFs

MEMORY = {"attached": True, "cgroups": [{"ids": {"v2": 11, "v1": 0}}], "failures": [{"cgroup": {"v2": 1, "v1": 12}}]}
SCOPE = f"/kubepods.slice/kubepods-pod12345678_9abc_def0_1234_56789abcdef0.slice/cri-containerd-{'4f' * 32}.scope"


@pytest.fixture
def collected(monkeypatch):
    def collect(paths):
        """`paths`: of cgroups, by hierarchy and number."""
        monkeypatch.setattr(probes, "describe", lambda _folder, name, _proc: MEMORY if name == "cuda_mem" else {"attached": False})
        monkeypatch.setattr(numbers, "roots", lambda _mounts: [("", "/unified"), ("memory", "/memory")])
        monkeypatch.setattr(numbers, "path_of", lambda root, number: paths.get((root, number)))
        items = []
        probes.collect("/bpf", ProcFs("/proc"), items.append)
        return {item["probe"]: item for item in items}

    return collect


def test_cgroups_have_owners_also_where_no_process_lives(collected):
    told = collected({("/unified", 11): SCOPE, ("/unified", 1): "/", ("/memory", 12): "/system.slice/train.service"})
    pod = "12345678-9abc-def0-1234-56789abcdef0"
    assert told["cuda_mem"]["owners"] == [[11, 0, ["4f" * 32, pod, None]], [1, 12, [None, None, "train.service"]]]
    assert told["gpu_xid"] == {"probe": "gpu_xid", "owners": [], "attached": False}


def test_a_cgroup_that_is_gone_is_nobodys_and_one_in_no_unit_has_no_name(collected):
    assert collected({("/unified", 11): "/"})["cuda_mem"]["owners"] == [[11, 0, [None, None, None]], [1, 12, None]]
