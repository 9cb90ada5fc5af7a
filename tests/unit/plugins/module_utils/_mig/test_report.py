# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from dataclasses import replace

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._gpu.records import Gpu
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.device_id import DeviceId
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.layout import GpuInstance, Layout, Placement
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.reading import Reading
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.report import report
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.tables import model_named
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.watched import GpuAnswer
from mig import layout

H200 = model_named("h200-141")
GPU = Gpu(uuid="GPU-1", pci_bus_id="0000:06:00.0", index=0, minor=3, processes_source="nvml")
READING = Reading(0, "GPU-1", "0000:06:00.0", 3, "NVIDIA H200", DeviceId(0x233510DE), True, H200, Layout(False))


def told(reading=READING, holders=None, gpu=GPU, error=None, clients_complete=True):
    return report(gpu, GpuAnswer(0, "GPU-1", None, reading, error), holders or {}, clients_complete=clients_complete)


@pytest.mark.parametrize(
    "names, stranded, largest, fragmentation, places",
    [
        ([], 0, 8, 0, 7),
        (["7g.141gb@0"], 0, 0, 0, 0),
        ([f"1g.18gb@{start}" for start in range(7)], 1, 0, 1, 0),
        (["1g.18gb@1", "1g.18gb@5"], 0, 2, 0.6667, 5),
    ],
)
def test_room(names, stranded, largest, fragmentation, places):
    found = told(replace(READING, layout=layout(H200, *names)))
    assert found["room"] == {
        "free_slices": 8 - sum(one["size"] for one in found["instances"]),
        "stranded_slices": stranded,
        "largest_slices": largest,
        "fragmentation": fragmentation,
    }
    assert len(found["free"].get("1g.18gb+me", ())) == places


@pytest.mark.parametrize("resetless", [True, False])
def test_whether_the_mode_needs_a_reset_is_what_the_driver_says(resetless):
    found = told(replace(READING, resetless=resetless, layout=Layout(False, pending=True)))
    assert found["mode_change_needs_reset"] is not resetless
    assert found["mig"] == {"current": False, "pending": True}
    assert (found["room"], found["free"]) == (None, {})


def test_a_gpu_without_mig_and_one_that_nobody_could_read():
    without = told(replace(READING, model=None, layout=None))
    unread = told(None, error={"msg": "nvmlDeviceGetMigMode: did not answer", "error_kind": "nvml", "call": "nvmlDeviceGetMigMode"})
    assert (without["supported"], unread["supported"]) == (False, None)
    assert unread["errors"] == [{"call": "nvmlDeviceGetMigMode", "error": "nvmlDeviceGetMigMode: did not answer"}]
    assert set(without) == set(unread) == set(told()), "a playbook finds every key in each of them"


def test_pids_at_the_instances_and_people_once():
    def person(pid, gi=None, ci=None):
        return {(gi, ci): [{"pid": pid, "gi": gi, "ci": ci}]}

    there = layout(H200, "3g.71gb@4 1c@0 2c@1", "1g.35gb@0 -")
    ids = {"3g.71gb": 2, "1g.35gb": 3}
    numbered = Layout(
        True,
        tuple(
            GpuInstance(
                one.profile,
                Placement(one.placement.start, one.placement.size),
                tuple(replace(part, id=place) for place, part in enumerate(one.compute)),
                ids[one.profile],
            )
            for one in there.instances
        ),
    )
    found = told(replace(READING, layout=numbered), {**person(9, 2, 1), **person(8, 2), **person(7), **person(6, 3)})
    assert [(one["name"], one["holders"], [part["holders"] for part in one["compute"]]) for one in found["instances"]] == [
        ("1g.35gb@0", [6], []),
        ("3g.71gb@4", [8, 9], [[], [9]]),
    ]
    assert [one["pid"] for one in found["holders"]] == [7, 8, 9, 6], "the GPU's first, and an instance's before those of its parts"
    assert found["without_compute"] == ["1g.35gb@0"]


@pytest.mark.parametrize("source, clients_complete, complete", [("nvml", True, True), ("nvml", False, False), (None, True, False)])
def test_an_empty_list_of_holders_means_something_only_where_both_sources_told_all(source, clients_complete, complete):
    found = told(gpu=replace(GPU, processes_source=source), clients_complete=clients_complete)
    assert (found["holders"], found["holders_complete"]) == ([], complete)
