# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._gpu import nvml
from ansible_collections.gpuops.remediation.plugins.module_utils._isolation import info
from ansible_collections.gpuops.remediation.plugins.modules import isolation_info
from run_module import run_module
from simulated_containers import Containers

UUID = "GPU-8a3f0c5e-6a49-4c43-9d0c-2f7ad0a4a1c3"


@pytest.fixture
def node(tmp_path, monkeypatch):
    (tmp_path / "proc/sys/kernel/random").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/random/boot_id").write_text("boot-1\n")
    (tmp_path / "proc/stat").write_text("btime 1000\n")
    for folder in ("dev", "bin"):
        (tmp_path / folder).mkdir()
    (tmp_path / "dev/nvidia0").touch()
    sim = Containers(tmp_path / "proc", tmp_path / "dev", tmp_path / "fake")
    sim.process(4711, f"/system.slice/docker-{'ab' * 32}.scope", devices=["nvidia0"])

    def collect(library, wanted, describe, emit):
        emit({"driver_version": "580"})
        emit({"gpu": 0, "fields": {"uuid": UUID, "pci_bus_id": "0000:00:06.0", "minor": 0}})

    monkeypatch.setattr(nvml, "IMPORT_ERROR", None)
    monkeypatch.setattr(nvml, "collect", collect)
    monkeypatch.setattr(info, "_compute_modes", lambda library, emit: emit({"uuid": UUID, "mode": "exclusive_process"}))
    names = {"proc_root": "proc", "dev_root": "dev", "state_dir": "state"}
    paths = {option: str(tmp_path / name) for option, name in names.items()}
    engines = {"engine_dirs": [str(tmp_path / "bin")], "toolkit_configs": [str(tmp_path / "absent.toml"), str(tmp_path / "config.toml")]}
    return {**paths, **engines, "cgroup_root": str(sim.cgroup_root), "timeout_seconds": 60}


def program(folder, name, words):
    path = folder / "bin" / name
    path.write_text(f"#!/bin/sh\n{words}\n")
    path.chmod(0o755)
    return str(path)


def test_the_answer(node, tmp_path):
    (tmp_path / "config.toml").write_text("accept-nvidia-visible-devices-envvar-when-unprivileged = false\n")
    runc = program(tmp_path, "runc", "echo runc version 1.1.12; echo commit: abc")
    ctk = program(tmp_path, "nvidia-ctk", "echo NVIDIA Container Toolkit CLI version 1.17.8")
    told = run_module(isolation_info.main, **node)
    assert (told["changed"], told["missing"], told["mps_daemons"], told["node"]["driver_version"]) == (False, [], [], "580")
    assert [(one["uuid"], one["compute_mode"]) for one in told["gpus"]] == [(UUID, "exclusive_process")]
    assert told["engines"] == [
        {"engine": "nvidia-container-toolkit", "path": ctk, "version": "1.17.8", "why": None},
        {"engine": "runc", "path": runc, "version": "1.1.12", "why": None},
    ]
    assert told["toolkit"]["path"] == str(tmp_path / "config.toml")
    assert told["toolkit"]["settings"]["accept-nvidia-visible-devices-envvar-when-unprivileged"] is False
    assert [one["id"] for one in told["containers"]] == ["ab" * 32]
    assert told["containers"][0]["devices"] == [{"kind": "gpu", "minor": 0, "gi": None, "ci": None}]


def test_an_engine_that_does_not_say(node, tmp_path):
    silent = program(tmp_path, "runc", "echo go away")
    broken = program(tmp_path, "nvidia-ctk", "")
    (tmp_path / "bin/nvidia-ctk").write_bytes(b"\x7fELF not for this machine")
    told = {one["path"]: one for one in run_module(isolation_info.main, **node)["engines"]}
    assert told[silent]["version"] is None and told[silent]["why"] == "says no version: go away"
    assert told[broken]["version"] is None and "OSError" in told[broken]["why"]


def test_a_source_that_fails_hides_no_other(node, monkeypatch):
    def fails(*arguments):
        raise OSError("out of order")

    monkeypatch.setattr(info.containers, "collect", fails)
    told = run_module(isolation_info.main, **node)
    assert told["missing"] == [{"source": "containers", "why": "OSError: out of order"}]
    assert (told["containers"], told["toolkit"], [one["compute_mode"] for one in told["gpus"]]) == ([], None, ["exclusive_process"])


def test_nvml_that_does_not_answer_is_missing_once(node, monkeypatch):
    def fails(*arguments):
        raise OSError("no driver")

    monkeypatch.setattr(nvml, "collect", fails)
    monkeypatch.setattr(info, "_compute_modes", fails)
    assert run_module(isolation_info.main, **node)["missing"] == [{"source": "nvml", "why": "OSError: no driver"}]


def test_failures(node, monkeypatch):
    failed = run_module(isolation_info.main, **{**node, "lock_token": 1, "lock_holder": "run-1"})
    assert failed["failed"] and "run-1 lost the node's lock" in failed["msg"]
    monkeypatch.setattr(nvml, "IMPORT_ERROR", "Traceback: no pynvml")
    assert "nvidia-ml-py" in run_module(isolation_info.main, **node)["msg"]
