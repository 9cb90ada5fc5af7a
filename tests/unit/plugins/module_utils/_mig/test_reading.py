# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.device_id import DeviceId
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.layout import ComputeInstance, GpuInstance, Layout, Placement
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.reading import Reading, from_data, show
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.tables import model_named

H200 = model_named("h200-141")
THERE = GpuInstance("3g.71gb", Placement(4, 4), (ComputeInstance(0, 2, 0), ComputeInstance(2, 1, 1)), 2)
READING = Reading(
    0, "GPU-a", "0000:06:00.0", 0, "NVIDIA H200", DeviceId(0x233510DE), True, H200, Layout(True, (THERE,)), {"3g.71gb@4/2c@0": "MIG-a"}
)
TOLD = replace(H200, profiles=tuple(replace(one, driver_compute_starts=((1, (0, 2)),)) for one in H200.profiles))


@pytest.mark.parametrize("reading", [READING, replace(READING, model=TOLD), replace(READING, model=None, layout=None, mig_uuids={})])
def test_there_and_back(reading):
    back = from_data(json.loads(json.dumps(reading.data())))
    assert back == reading and hash(back.model) == hash(reading.model)
    assert [(one.id, [part.id for part in one.compute]) for one in (back.layout or Layout(False)).instances] == (
        [(2, [0, 1])] if reading.layout else []
    )


def test_shown():
    [one] = show(READING.layout, READING)["instances"]
    assert {name: one[name] for name in ("name", "gi", "start", "size", "memory_bytes")} == {
        "name": "3g.71gb@4",
        "gi": 2,
        "start": 4,
        "size": 4,
        "memory_bytes": 71424 << 20,
    }
    assert one["compute"] == [
        {"name": "3g.71gb@4/2c@0", "ci": 0, "start": 0, "slices": 2, "uuid": "MIG-a"},
        {"name": "3g.71gb@4/1c@2", "ci": 1, "start": 2, "slices": 1, "uuid": None},
    ]


def test_a_pending_mode_and_what_is_only_planned_are_shown():
    """A UUID is that of what is there, not of what will be."""
    assert show(Layout(False, (), True), READING) == {"mig": False, "pending": True, "instances": []}
    planned = Layout(True, (replace(THERE, compute=(ComputeInstance(0, 2),)),))
    assert show(planned, READING)["instances"][0]["compute"][0]["uuid"] is None
