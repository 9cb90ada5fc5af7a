# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the driver refuses as in use is asked for again: whoever has just read the GPU is a client of it for a moment."""

from __future__ import annotations

import pynvml
import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._mig import device, steps
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.calls import Calls
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.device_id import DeviceId
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.errors import Busy, Refused
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.layout import Layout
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.reading import Reading
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.tables import model_named
from mig import instance

H200 = model_named("h200-141")
FIRST = next(iter(steps.create(instance(H200, "3g.71gb@4"))))
ENABLE = steps.set_mode(False, True, True)


class Driver:
    """It is in use for the first tries. A mode that it does not change is told by the call's status, anything else by its error."""

    def __init__(self, in_use, error=pynvml.NVML_ERROR_IN_USE):
        self.left, self.error = in_use, error
        self.mode, self.made, self.slept = 0, 0, []

    def __getattr__(self, name):
        return getattr(pynvml, name)

    def nvmlDeviceGetHandleByUUID(self, _uuid):
        return "handle"

    def nvmlDeviceSetMigMode(self, _handle, mode):
        self.left -= 1
        if self.left >= 0:
            return self.error
        self.mode = mode
        return pynvml.NVML_SUCCESS

    def nvmlDeviceGetMigMode(self, _handle):
        return self.mode, 1

    def nvmlDeviceCreateGpuInstanceWithPlacement(self, *_args):
        self.left -= 1
        if self.left >= 0:
            raise pynvml.NVMLError(self.error)
        self.made += 1

    def do(self, step):
        there = Reading(0, "GPU-a", "0000:06:00.0", 0, "GPU", DeviceId(0), True, H200, Layout(step is FIRST))
        calls = Calls(self, lambda _name: None)
        device.Device(calls, "GPU-a", lambda _address: None, self.slept.append).do(step, there)


@pytest.mark.parametrize("step", [ENABLE, FIRST])
def test_a_client_that_has_gone_soon_is_in_nobodys_way(step):
    driver = Driver(in_use=3)
    driver.do(step)
    assert (driver.mode, driver.made) == ((1, 0) if step is ENABLE else (0, 1)) and len(driver.slept) == 3


@pytest.mark.parametrize("step", [ENABLE, FIRST])
def test_one_that_stays_is_in_the_way(step):
    driver = Driver(in_use=100)
    with pytest.raises(Busy) as refused:
        driver.do(step)
    assert refused.value.details["instances"] == ["gpu"] and sum(driver.slept) == pytest.approx(3)


@pytest.mark.parametrize("step", [ENABLE, FIRST])
def test_another_refusal_is_final(step):
    driver = Driver(in_use=1, error=pynvml.NVML_ERROR_UNKNOWN)
    with pytest.raises(Refused):
        driver.do(step)
    assert driver.slept == []
