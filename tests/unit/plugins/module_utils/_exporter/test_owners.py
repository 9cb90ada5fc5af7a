# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from ansible_collections.gpuops.remediation.plugins.module_utils._exporter.owners import bounded, owned
from ansible_collections.gpuops.remediation.plugins.module_utils._gpu.records import Gpu

CONTAINER = {"runtime": "containerd", "id": "4f" * 32, "pod_uid": "a-pod"}


def process(memory, gi=None, container=None, unit=None):
    return {"memory_bytes": memory, "gi": gi, "container": container, "unit": unit}


def gpu(*processes):
    return Gpu(uuid="GPU-a", pci_bus_id="0000:00:06.0", processes=list(processes))


def sums(found):
    return {(one["gi"], one["container_id"], one["pod_uid"], one["unit"]): one["memory_bytes"] for one in found}


def test_processes_are_summed_by_instance_and_container_or_unit():
    """A container's own unit is no second owner of it."""
    found = owned([gpu(
        process(1, None, CONTAINER, "cri-containerd-4f.scope"), process(2, None, CONTAINER), process(4, 2, CONTAINER),
        process(8, None, None, "train.service"), process(16), process(None, None, None, "train.service"),
    )])  # fmt: skip
    container = (CONTAINER["id"], "a-pod", None)
    assert sums(found) == {(None, *container): 3, (2, *container): 4, (None, None, None, "train.service"): 8, (None, None, None, None): 16}


def test_a_process_whose_memory_nobody_can_tell_makes_no_figure():
    assert owned([gpu(process(None, None, CONTAINER))]) == []


def test_series_are_bounded_and_no_memory_is_left_out():
    found = owned([gpu(*(process(size, size % 2, {**CONTAINER, "id": f"{size:064x}"}) for size in range(1, 11)))])
    kept = bounded(found, 4)
    assert sums(kept) == {
        **{(size % 2, f"{size:064x}", "a-pod", None): size for size in (7, 8, 9, 10)},
        (0, "other", None, None): 2 + 4 + 6, (1, "other", None, None): 1 + 3 + 5,
    }  # fmt: skip
    assert bounded(found, 10) == sorted(found, key=lambda one: -one["memory_bytes"])
