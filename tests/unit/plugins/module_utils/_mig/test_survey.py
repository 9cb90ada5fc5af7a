# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from dataclasses import replace

from ansible_collections.gpuops.remediation.plugins.module_utils._mig.device_id import DeviceId
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.layout import ComputeInstance, GpuInstance, Layout, Placement
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.reading import Reading
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.survey import GpuState, overlap
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.tables import model_named
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.watched import GpuAnswer

HALF = GpuInstance("3g.71gb", Placement(4, 4), (ComputeInstance(0, 2, 0), ComputeInstance(2, 1, 1)), 2)
READING = Reading(0, "GPU-a", "0000:06:00.0", 0, "GPU", DeviceId(0), True, model_named("h200-141"), Layout(True, (HALF,)))


def process(pid, source="nvml"):
    return {"pid": pid, "name": f"process {pid}", "cgroup": "/a", "start_ticks": 1, "source": source}


def state(**holders):
    places = {"gpu": (None, None), "half": (2, None), "two": (2, 0), "one": (2, 1), "gone": (5, 0)}
    return GpuState(GpuAnswer(0, reading=READING), {places[name]: found for name, found in holders.items()})


def test_instances_are_busy_by_name():
    assert state(two=[process(1)]).busy() == {"3g.71gb@4/2c@0"}
    assert state(half=[process(1, "device_file")]).busy() == {"3g.71gb@4"}
    assert state(gone=[process(1)]).busy() == set()


def test_who_only_has_the_gpus_device_file_open_makes_nothing_busy():
    assert state(gpu=[process(1, "device_file")]).busy() == set()
    assert state(gpu=[process(1, "device_file"), process(2)]).busy() == {"gpu"}


def test_holders_of_an_instance_are_those_inside_and_those_around_it():
    found = state(gpu=[process(1)], half=[process(2)], two=[process(3)], one=[process(4), process(3)])

    def pids(*names):
        return [one["pid"] for one in found.holders_of(names)]

    assert pids("3g.71gb@4/1c@2") == [2, 3, 4] and pids("3g.71gb@4") == [2, 3, 4] and pids("3g.71gb@4/2c@0") == [2, 3]
    assert pids("gpu") == [1, 2, 3, 4] and pids("1g.18gb@0") == []


def test_a_gpu_that_was_not_read_has_no_names():
    assert replace(state(two=[process(1)]), answer=GpuAnswer(0)).busy() == set()


def test_names_that_overlap():
    assert overlap("3g.71gb@4", "3g.71gb@4/1c@0") and overlap("3g.71gb@4/1c@0", "3g.71gb@4")
    assert not overlap("3g.71gb@4/1c@0", "3g.71gb@4/1c@1") and not overlap("1g.18gb@1", "1g.18gb@10")
