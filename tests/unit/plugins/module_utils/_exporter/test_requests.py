# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.layout import HELD
from ansible_collections.gpuops.remediation.plugins.module_utils._exporter.requests import NONE, counted, holdings, last_minute, silent
from ansible_collections.gpuops.remediation.plugins.module_utils._gpu.records import Gpu

CONTAINER = {"runtime": "containerd", "id": "4f" * 32, "pod_uid": "a-pod"}
OWNER = ["4f" * 32, "a-pod", None]
UNIT = [None, None, "train.service"]
OTHER = ["other", None, None]


def process(pid=7, allocations=1, **held):
    by_kind = {**dict.fromkeys((*HELD, "shared"), 0), **held}
    return {"pid": pid, "started_boottime_ns": 5, "held_bytes": by_kind, "allocations": allocations, "container": CONTAINER, "unit": None}


def gpu(*used, uuid="GPU-a", gi=None):
    return Gpu(uuid=uuid, pci_bus_id="0000:00:06.0", processes=[{"pid": pid, "memory_bytes": size, "gi": gi} for pid, size in used])


def cgroup(number, allocations, frees=0):
    return {"ids": {"v2": number, "v1": 0}, "allocations": allocations, "frees": frees}


def failure(number, count, operation="allocate", result=2):
    return {"cgroup": {"v2": number, "v1": 0}, "operation": operation, "result": result, "count": count}


def memory(cgroups=(), failures=(), owners=(), processes=()):
    owners = [[number, 0, owner] for number, owner in owners]
    return {"attached": True, "counters": {}, "cgroups": cgroups, "failures": failures, "owners": owners, "processes": processes}


def after(before, limit=10, now=100.0, gpus=(), **told):
    """As the next reading finds it in its file."""
    return json.loads(json.dumps(counted(before, {"cuda_mem": memory(**told)}, gpus, now, limit)))


def test_a_process_has_the_place_that_nvml_knows_and_what_is_beyond_its_requests_is_context():
    [one] = holdings([process(device=100, pool=20, handle=3, host=1000)], [gpu((7, 1123), (8, 5), gi=2)])
    assert (one["uuid"], one["gi"], one["container_id"], one["pod_uid"]) == ("GPU-a", 2, "4f" * 32, "a-pod")
    assert (one["requested_bytes"], one["host"], one["context_bytes"]) == (123, 1000, 1000), "memory of the host is none of the GPU's"


def test_a_process_on_several_gpus_has_no_place():
    """No call says for which of them it is; what NVML says of all of them is still more than what was asked for."""
    [one] = holdings([process(device=100)], [gpu((7, 80)), gpu((7, 50), uuid="GPU-b")])
    assert (one["uuid"], one["pci_bus_id"], one["gi"], one["context_bytes"]) == (None, None, None, 30)


@pytest.mark.parametrize(("held", "used"), [({"device": 100}, 99), ({"managed": 1}, 500), ({"device": 100}, None)])
def test_a_context_that_nobody_can_tell_has_no_figure(held, used):
    """NVML asked too early, memory that may be on the host, and a process that NVML does not know."""
    assert holdings([process(**held)], [gpu((7, used))])[0]["context_bytes"] is None


def test_a_pid_is_one_process():
    """Its earlier owner's end was not seen."""
    later = {**process(device=2), "started_boottime_ns": 9}
    assert [one["requested_bytes"] for one in holdings([later, process(device=1)], [])] == [2]


def test_counts_go_on_after_the_end_of_a_cgroup_and_of_the_probes():
    first = after(NONE, cgroups=[cgroup(11, 5, 2)], owners=[(11, UNIT)])
    assert first["calls"] == [[UNIT, [5, 2]]]
    assert after(first, cgroups=[cgroup(11, 5, 2)], owners=[(11, UNIT)])["calls"] == [[UNIT, [5, 2]]], "nothing counts twice"
    again = after(first, cgroups=[cgroup(11, 6, 3), cgroup(12, 10)], owners=[(11, None), (12, UNIT)])
    assert again["calls"] == [[UNIT, [16, 3]]], "the service was started again, and its first cgroup is gone"
    swept = after(again, cgroups=[cgroup(12, 11)], owners=[(12, UNIT)])
    assert swept["calls"] == [[UNIT, [17, 3]]]
    anew = after(swept, cgroups=[cgroup(12, 1)], owners=[(12, UNIT)])
    assert anew["calls"] == [[UNIT, [18, 3]]], "probes that were attached anew begin at zero"
    assert after(anew)["calls"] == [], "a container that is gone leaves no series"


def test_counts_stay_while_no_probe_is_attached_and_while_nothing_can_be_read():
    first = after(NONE, cgroups=[cgroup(11, 5)], owners=[(11, UNIT)], processes=[process()])
    assert silent(first)["calls"] == first["calls"] and silent(first)["held"] == [] != first["held"]
    gone = {name: {"attached": False, "owners": []} for name in ("cuda_mem", "gpu_xid")}
    detached = json.loads(json.dumps(counted(first, gone, [], 110.0, 10)))
    assert (detached["calls"], detached["held"], detached["attached"]) == (first["calls"], [], {"cuda_mem": False, "gpu_xid": False})
    assert after(detached, cgroups=[cgroup(11, 2)], owners=[(11, UNIT)])["calls"] == [[UNIT, [7, 0]]]


def test_who_comes_when_there_is_no_room_adds_to_the_others():
    """Whose sum never falls, or a rate would see a burst where a container ended."""
    first = after(NONE, 1, cgroups=[cgroup(11, 5), cgroup(12, 100)], owners=[(11, OWNER), (12, UNIT)])
    assert first["calls"] == [[OWNER, [5, 0]], [OTHER, [100, 0]]]
    later = after(first, 1, cgroups=[cgroup(12, 103)], owners=[(12, UNIT)])
    assert later["calls"] == [[OTHER, [100, 0]], [UNIT, [3, 0]]], "room was made, and what the others had stays theirs"


def test_failures_are_those_of_allocations():
    """A process that ends releases its context when the driver is gone already: CUresult 4, and no failure of anybody's."""
    failures = [failure(11, 3), failure(11, 1, "handle_create", 800), failure(11, 9, "primary_release", 4), failure(11, 2, "free", 1)]
    first = after(NONE, failures=failures, owners=[(11, OWNER)])
    assert first["failures"] == [[[*OWNER, "allocate", "2"], [3]], [[*OWNER, "handle_create", "800"], [1]]]
    later = after(first, 2, failures=[failure(11, 4), failure(11, 7, result=719)], owners=[(11, OWNER)])
    assert later["failures"] == [*([[*OWNER, "allocate", "2"], [4]], [[*OWNER, "handle_create", "800"], [1]]), [[*OTHER, None, None], [7]]]


def test_allocations_of_the_last_minute_are_told_by_place():
    gpus = [gpu((7, 1)), gpu((8, 1), uuid="GPU-b", gi=2)]

    def at(before, now, *allocations):
        return after(before, now=now, gpus=gpus, processes=[process(pid, count) for pid, count in zip((7, 8), allocations)])

    first = at(NONE, 100.0, 5000, 1)
    assert last_minute(first) == {}, "when those were made nobody knows"
    second = at(first, 130.0, 6500)
    third = at(second, 150.0, 6600, 40)
    assert last_minute(third) == {"GPU-a/": 1600, "GPU-b/2": 40}
    assert last_minute(at(third, 190.0, 6600, 41)) == {"GPU-a/": 100, "GPU-b/2": 41}, "the second reading is a minute old"


def test_an_xid_has_the_address_that_nvml_writes_and_counts_once_under_it():
    def xid(address, count):
        return {"pci_bus_id": address, "xid": 31, "count": count, "lines": 2 * count, "traces": count, "first": "", "last": ""}

    told = {"gpu_xid": {"attached": True, "counters": {"xids_full": 0}, "xids": [xid("0000:AB:06", 1), xid("0000:ab:06", 2), xid("?", 4)]}}
    assert [(one["pci_bus_id"], one["count"], one["lines"], one["traces"]) for one in counted(NONE, told, [], 1.0, 9)["xids"]] == [
        ("0000:ab:06.0", 3, 6, 3), ("?", 4, 8, 4),
    ]  # fmt: skip
