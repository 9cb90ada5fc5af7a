# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._mig import device_files
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.device_id import DeviceId
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.layout import ComputeInstance, GpuInstance, Layout, Placement
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.reading import Reading
from ansible_collections.gpuops.remediation.plugins.module_utils._node.procfs import ProcFs

HALF = GpuInstance("3g.71gb", Placement(4, 4), (ComputeInstance(0, 3, 0),), 2)
READING = Reading(0, "GPU-a", "0000:06:00.0", 5, "GPU", DeviceId(0), layout=Layout(True, (HALF,)))


@pytest.fixture
def node(tmp_path):
    """With the capability files of GPU 5's instance."""
    for number, place in ((700, "gi2"), (701, "gi2/ci0")):
        file = tmp_path / "proc/driver/nvidia/capabilities/gpu5/mig" / place / "access"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"DeviceFileMinor: {number}\nDeviceFileMode: 292\nDeviceFileModify: 1\n")
    (tmp_path / "dev/nvidia-caps").mkdir(parents=True)
    return tmp_path


def missing(node):
    found = device_files.missing(ProcFs(str(node / "proc")), str(node / "dev"), READING)
    return [path.split("/mig/")[1] for path in found]


def test_what_has_no_device_file_is_found(node):
    assert missing(node) == ["gi2/access", "gi2/ci0/access"]
    (node / "dev/nvidia-caps/nvidia-cap700").touch()
    assert missing(node) == ["gi2/ci0/access"]
    (node / "proc/driver/nvidia/capabilities/gpu5/mig/gi2/ci0/access").unlink()
    assert missing(node) == []


def test_they_are_asked_for_one_by_one(tmp_path):
    program = tmp_path / "nvidia-modprobe"
    program.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n[ "$2" != bad ] || {{ echo no such file; exit 1; }}\n')
    program.chmod(0o755)
    told = []
    device_files.make(str(program), ["a", "b"], told.append)
    assert (tmp_path / "asked").read_text() == "-f a\n-f b\n" and [one["begins"] for one in told if "begins" in one] == ["a", "b"]
    with pytest.raises(device_files.DeviceFileError, match="-f bad: no such file"):
        device_files.make(str(program), ["bad"], told.append)
    with pytest.raises(device_files.DeviceFileError, match="cannot be run"):
        device_files.make(str(tmp_path / "none"), ["a"], told.append)
