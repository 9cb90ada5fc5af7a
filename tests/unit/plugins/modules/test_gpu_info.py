# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._gpu import nvml
from ansible_collections.gpuops.remediation.plugins.modules import gpu_info
from run_module import run_module


@pytest.fixture
def node(tmp_path, monkeypatch):
    (tmp_path / "proc/sys/kernel/random").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/random/boot_id").write_text("boot-1\n")
    (tmp_path / "proc/stat").write_text("btime 1000\n")
    (tmp_path / "kmsg").write_text("6,1,5,-;NVRM: loading\n")
    (tmp_path / "dev").mkdir()
    monkeypatch.setattr(nvml, "IMPORT_ERROR", None)
    monkeypatch.setattr(nvml, "collect", lambda library, wanted, describe, emit: emit({"driver_version": "580"}))
    names = {"proc_root": "proc", "dev_root": "dev", "state_dir": "state", "kmsg_path": "kmsg", "cgroup_root": "cgroup"}
    return {option: str(tmp_path / name) for option, name in names.items()}


def test_the_answer(node):
    told = run_module(gpu_info.main, **node)
    assert (told["changed"], told["gpus"], told["missing"], told["node"]["driver_version"]) == (False, [], [], "580")
    assert told["kernel_log"] == ["6,1,5,-;NVRM: loading"]
    assert run_module(gpu_info.main, **node, since="1970-01-01T01:00:00Z")["kernel_log"] == []


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"since": "yesterday"}, "'yesterday' is not an ISO 8601 time"),
        ({"lock_token": 1}, "parameters are required together: lock_token, lock_holder"),
        ({"lock_token": 1, "lock_holder": "run-1"}, "run-1 lost the node's lock"),
        ({"proc_root": "/nowhere"}, "cannot read /nowhere"),
    ],
)
def test_failures(node, options, text):
    failed = run_module(gpu_info.main, **{**node, **options})
    assert failed["failed"] and text in failed["msg"]


def test_the_library_is_missing(node, monkeypatch):
    monkeypatch.setattr(nvml, "IMPORT_ERROR", "Traceback: no pynvml")
    assert "nvidia-ml-py" in run_module(gpu_info.main, **node)["msg"]
