# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.history import failed_programs

GPU = "GPU-5f0c1a52-6a8d-4f0e-9f0e-3c1d4e8a2b11"
PROCESS = {"pid": 7, "name": "python", "executable": "/usr/bin/python3"}
INFO = {
    "gpus": [{"uuid": GPU, "pci_bus_id": "0000:19:00.0", "processes": [PROCESS]}],
    "xids": [
        {"pci_bus_id": "0000:19:00.0", "code": 31, "pid": 7, "process_name": "pt_main_thread", "time": "2026-11-29T12:00:00Z"},
        {"pci_bus_id": "0000:19:00.0", "code": 13, "pid": 8, "process_name": "train", "time": None},
        {"pci_bus_id": "0000:19:00.0", "code": 43, "pid": None, "process_name": None, "time": None},
        {"pci_bus_id": "0000:20:00.0", "code": 31, "pid": 9, "process_name": "elsewhere", "time": None},
        {"pci_bus_id": "0000:19:00.0", "code": 79, "pid": 7, "process_name": "python", "time": None},
    ],
}


def test_programs_not_pids():
    """S14: executables where they are known, and nothing where nobody is named."""
    found = list(failed_programs({"domain": "application", "gpu_uuid": GPU, "xids": [13, 31, 43]}, INFO))
    assert [(one["code"], one["program"]) for one in found] == [(31, "/usr/bin/python3"), (13, "train")]


@pytest.mark.parametrize("verdict", [{"domain": "memory", "xids": [31]}, {"domain": "application", "gpu_uuid": "GPU-other", "xids": [31]}])
def test_other_faults_are_no_programs_failure(verdict):
    assert list(failed_programs(verdict, INFO)) == []


def test_a_silent_node_tells_nothing():
    assert list(failed_programs({"domain": "application", "xids": [31]}, None)) == []
