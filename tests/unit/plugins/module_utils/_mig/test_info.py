# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._gpu.records import Gpu
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.info import _answer_of
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.watched import GpuAnswer

NAMED, HUNG = GpuAnswer(0, "GPU-b", "0000:0b:00.0"), GpuAnswer(1)


@pytest.mark.parametrize(
    "gpu, answer",
    [
        pytest.param(Gpu(uuid="GPU-b", index=0), NAMED, id="by name"),
        pytest.param(Gpu(pci_bus_id="0000:0b:00.0"), NAMED, id="by address"),
        pytest.param(Gpu(uuid="GPU-a", index=0, lost=True), None, id="lost, and its number is another's now"),
        pytest.param(Gpu(uuid="GPU-c", index=1), HUNG, id="which had not told its name yet"),
        pytest.param(Gpu(minor=1), None, id="known by its device file only"),
    ],
)
def test_which_answer_is_of_which_gpu(gpu, answer):
    assert _answer_of(gpu, [NAMED, HUNG]) is answer
