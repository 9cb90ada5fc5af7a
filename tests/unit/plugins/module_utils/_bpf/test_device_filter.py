# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Before anything is attached. What a filter does, in a real kernel: tests/integration/bpf/test_devices.py."""

from __future__ import annotations

import platform

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf import device_filter, kernel
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.errors import NoBpffs, NotPermitted, ProbeError, Unsupported

ADMIN, NET_ADMIN, BPF = 1 << 21, 1 << 12, 1 << 39


@pytest.fixture
def machine(monkeypatch):
    def machine(release, capabilities):
        monkeypatch.setattr(platform, "release", lambda: release)
        monkeypatch.setattr(kernel, "capabilities", lambda: capabilities)

    return machine


@pytest.mark.parametrize("release", ["5.11.0", "5.14.0-503.el9", "6.8.0-generic"])
def test_all_that_lacks_is_a_bpf_filesystem(machine, release, tmp_path):
    machine(release, ADMIN)
    with pytest.raises(NoBpffs, match="mount -t bpf"):
        device_filter.require(str(tmp_path / "gpuops"))


@pytest.mark.parametrize(
    ("release", "capabilities", "error", "says"),
    [
        ("5.10.0-30-amd64", ADMIN, Unsupported, "5.11 and later can"),
        ("6.8.0", NET_ADMIN | BPF, NotPermitted, "filtering devices needs CAP_SYS_ADMIN"),
    ],
)
def test_what_is_in_the_way(machine, release, capabilities, error, says, tmp_path):
    machine(release, capabilities)
    with pytest.raises(error, match=says):
        device_filter.require(str(tmp_path))


def test_a_place_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "gpuops").write_text("")
    with pytest.raises(ProbeError, match=r"cannot make .*/gpuops/devices/5: Not a directory"):
        device_filter.DeviceFilters(str(tmp_path / "gpuops")).attach(5, str(tmp_path), {})


def test_what_else_is_in_the_folder_is_no_filter(tmp_path):
    for name in ("12", "7", "new"):
        (tmp_path / "gpuops/devices" / name).mkdir(parents=True)
    filters = device_filter.DeviceFilters(str(tmp_path / "gpuops"))
    assert filters.ids() == [7, 12] and filters.read(7) is None
    assert device_filter.DeviceFilters(str(tmp_path / "nowhere")).ids() == []
