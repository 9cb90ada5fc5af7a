# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.device_id import DeviceId, parse_device_id


@pytest.mark.parametrize("text", ["0x233510DE", "0x233510DE:0x18BE10DE"])
def test_device_ids(text):
    assert str(parse_device_id(text)) == text


def test_a_filter_without_a_subsystem_covers_all_of_them():
    gpu = DeviceId(0x233510DE, 0x18BE10DE)
    assert DeviceId(0x233510DE).covers(gpu) and gpu.covers(gpu)
    assert not DeviceId(0x233510DE, 0x18BF10DE).covers(gpu)
    assert not DeviceId(0x233B10DE).covers(gpu)
    assert not gpu.covers(DeviceId(0x233510DE))
