# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import time

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._errors import RemediationError
from ansible_collections.gpuops.remediation.plugins.module_utils._node.procfs import (
    NodeUnreadable,
    ProcFs,
    isoformat,
    parse_seconds,
    parse_stat,
)

OWN = ProcFs("/proc")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1970-01-01T00:01:00Z", 60),
        ("1970-01-01T00:01:00", 60),
        ("1970-01-01 00:01:00.25Z", 60.25),
        ("1970-01-01T01:01:00+01:00", 60),
        ("1970-01-01T00:01:00.123456789Z", 60.123456),
        ("1970-01-01T00:01:00 Z", 60),
    ],
)
def test_times(text, seconds):
    assert parse_seconds(text) == pytest.approx(seconds, abs=1e-6)


@pytest.mark.parametrize("text", ["", "yesterday", "2026-01-01", "2026-13-01T00:00:00Z"])
def test_not_a_time(text):
    with pytest.raises(RemediationError, match="not an ISO 8601 time"):
        parse_seconds(text)


def test_isoformat_is_read_back():
    assert isoformat(60.25) == "1970-01-01T00:01:00.250000+00:00"
    assert parse_seconds(isoformat(1767225600.5)) == 1767225600.5


def test_a_name_with_brackets_and_spaces():
    fields = ["S", "7", *"0" * 17, "4242", *"0" * 30]
    assert parse_stat("99 (evil) R 1 (x) " + " ".join(fields)) == ("evil) R 1 (x", "S", 7, 4242)


def test_this_process():
    own = OWN.process(os.getpid())
    assert own.parent == os.getppid()
    assert own.executable == os.path.realpath("/proc/self/exe")
    assert time.time() - 3600 * 24 < own.start_time <= time.time()
    assert OWN.alive(own.pid, own.start_ticks)
    assert not OWN.alive(own.pid, own.start_ticks + 1), "another process with this pid"
    assert OWN.ancestors(own.pid)[:2] == [own.pid, own.parent]
    record = OWN.describe(own.pid)
    assert record["start_ticks"] == own.start_ticks and record["name"] == own.name


def test_no_such_process():
    assert OWN.process(999999999) is None
    assert not OWN.alive(999999999, 1)
    assert set(OWN.describe(999999999).values()) == {None}


def test_a_container_and_its_pod(tmp_path):
    folder = tmp_path / "42"
    folder.mkdir()
    (folder / "stat").write_text("42 (train) S 1 " + " ".join(["0"] * 17 + ["500"] + ["0"] * 30))
    pod = "kubepods.slice/kubepods-pod12345678_9abc_def0_1234_56789abcdef0.slice"
    (folder / "cgroup").write_text(f"0::/{pod}/cri-containerd-{'4f' * 32}.scope\n")
    record = ProcFs(str(tmp_path)).describe(42)
    assert record["container"] == {"runtime": "containerd", "id": "4f" * 32, "pod_uid": "12345678-9abc-def0-1234-56789abcdef0"}
    assert record["unit"] == f"cri-containerd-{'4f' * 32}.scope"
    assert record["executable"] is None


def test_boot(tmp_path):
    (tmp_path / "stat").write_text("cpu 1 2\nbtime 1767225600\n")
    proc = ProcFs(str(tmp_path))
    assert proc.boot_time() == 1767225600
    with pytest.raises(NodeUnreadable, match="boot_id"):
        proc.boot_id()
    (tmp_path / "stat").write_text("cpu 1 2\n")
    with pytest.raises(NodeUnreadable, match="no btime"):
        proc.boot_time()
    assert len(OWN.boot_id()) == 36


def test_gpus_that_the_driver_names_without_nvml(tmp_path):
    gpu = tmp_path / "driver" / "nvidia" / "gpus" / "0000:0a:00.0"
    gpu.mkdir(parents=True)
    (gpu / "information").write_text(
        "Model: \t\t NVIDIA H200\nGPU UUID: \t GPU-a\nBus Location: \t 0000:0A:00.0\nDevice Minor: \t 3\nGPU Excluded:\t No\n"
    )
    for address, line in (("0000:0b:00.0", "GPU Excluded:\t Yes"), ("0000:0c:00.0", "GPU UUID: \t GPU-????????-????")):
        (gpu.parent / address).mkdir()
        (gpu.parent / address / "information").write_text(line + "\n")
    assert ProcFs(str(tmp_path)).driver_gpus() == [
        {"uuid": "GPU-a", "pci_bus_id": "0000:0a:00.0", "minor": 3, "name": "NVIDIA H200"},
        {"uuid": None, "pci_bus_id": "0000:0c:00.0", "minor": None, "name": None},
    ]
