# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The life of MIG instances, through the unmodified nvidia-ml-py: what is created is found, and each refusal has its own code."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nvml_child
import pytest
from gpusim import capabilities, instances
from gpusim.node import MIB, Node, SimulatorError

Waiting = Callable[[Node, str, str], subprocess.Popen[str]]


def ask(node: Node, body: str) -> Any:
    return nvml_child.ask(node.nvml_library, nvml_child.MIG + body)


@pytest.fixture
def waiting() -> Iterator[Waiting]:
    """Clients that have done `before` and do `after` when they get a line."""
    clients = []

    def start(node: Node, before: str, after: str) -> subprocess.Popen[str]:
        body = f"{nvml_child.MIG}{before}\nprint('ready', flush=True)\nsys.stdin.readline()\n{after}"
        clients.append(nvml_child.start(node.nvml_library, body))
        assert clients[-1].stdout is not None
        clients[-1].stdout.readline()
        return clients[-1]

    yield start
    for client in clients:
        client.kill()
        client.communicate()


def answer(client: subprocess.Popen[str]) -> Any:
    return json.loads(client.communicate("\n", timeout=60)[0])


@pytest.fixture
def hopper(make_node: Callable[..., Node]) -> Node:
    return make_node(mig=True, gpus=2)


def test_what_is_created_is_found(hopper: Node) -> None:
    body = """
half, empty = create("3g.71gb", 4), create("1g.35gb", 0)
divide(half, 1, 0, 2)
divide(half, 0)
result = {"devices": [], "parents": [], "back": []}
for one in devices():
    memory, uuid = n.nvmlDeviceGetMemoryInfo(one), n.nvmlDeviceGetUUID(one)
    result["devices"].append([n.nvmlDeviceGetGpuInstanceId(one), n.nvmlDeviceGetComputeInstanceId(one), n.nvmlDeviceGetName(one), uuid,
        n.nvmlDeviceIsMigDeviceHandle(one).value, memory.total >> 20, memory.used, n.nvmlDeviceGetAttributes(one)])
    result["parents"].append(n.nvmlDeviceGetUUID(n.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(one)))
    result["back"].append(n.nvmlDeviceGetComputeInstanceId(n.nvmlDeviceGetHandleByUUID(uuid)))
room = (n.c_nvmlGpuInstance_t * 4)()
count = ctypes.c_uint()
n.nvmlDeviceGetGpuInstances(gpu(), profile("1g.35gb")["id"], room, ctypes.byref(count))
result["empty"] = [count.value, where(room[0]), where(n.nvmlDeviceGetGpuInstanceById(gpu(), 3)), where(empty)]
cis = (n.c_nvmlComputeInstance_t * 3)()
n.nvmlGpuInstanceGetComputeInstances(half, 0, cis, ctypes.byref(count))
result["compute"] = [count.value, where(cis[0]), where(n.nvmlGpuInstanceGetComputeInstanceById(half, 0))]
info = n.nvmlComputeInstanceGetInfo(cis[0])
result["of"] = [where(info.gpuInstance), n.nvmlDeviceGetIndex(info.device), info.profileId, n.nvmlGpuInstanceGetInfo(half).profileId]
result["other"] = devices(gpu(1))
"""
    found = ask(hopper, body)
    shared = {
        f"shared{engine}Count": count for engine, count in (("CopyEngine", 3), ("Decoder", 3), ("Encoder", 0), ("Jpeg", 3), ("Ofa", 0))
    }
    uuids = [one.pop(3) for one in found["devices"]]
    assert found["devices"] == [
        [2, ci, f"NVIDIA H200 MIG {slices}c.3g.71gb", 1, 71424, 0,
         {"multiprocessorCount": 16 * slices, **shared, "gpuInstanceSliceCount": 3, "computeInstanceSliceCount": slices, "memorySizeMB": 71424}]
        for ci, slices in ((0, 2), (1, 1))
    ]  # fmt: skip
    assert len(set(uuids)) == 2 and all(uuid.startswith("MIG-") for uuid in uuids)
    assert found["parents"] == [hopper.state()["gpus"][0]["uuid"]] * 2 and found["back"] == [0, 1]
    assert found["empty"] == [1, [3, 0, 2], [3, 0, 2], [3, 0, 2]], "without a compute instance it has no MIG device, and is there"
    assert found["compute"] == [1, [1, 2, 1], [0, 0, 2]]
    assert found["of"] == [[2, 4, 4], 0, 0, 9]
    assert found["other"] == []


def test_lists_are_empty_while_mig_is_off(make_node: Callable[..., Node]) -> None:
    """As an H200 answered, though NVML's header says that the call is refused then."""
    body = """
room, count = (n.c_nvmlGpuInstance_t * 8)(), ctypes.c_uint(7)
n.nvmlDeviceGetGpuInstances(gpu(), 0, room, ctypes.byref(count))
result = [n.nvmlDeviceGetMigMode(gpu()), count.value, outcome(n.nvmlDeviceGetGpuInstances, gpu(), 1, room, ctypes.byref(count))]
"""
    assert ask(make_node(gpus=1), body) == [[0, 0], 0, "InvalidArgument"]


def test_compute_instances_of_a_half(make_node: Callable[..., Node]) -> None:
    """Ids, numbers and multiprocessors as in the A100's listing."""
    body = """
half = create("3g.20gb", 4)
def infos():
    found = [ask(n.nvmlGpuInstanceGetComputeInstanceProfileInfo, half, query, 0) for query in range(8)]
    return [[one["id"], one["name"], n.nvmlGpuInstanceGetComputeInstanceRemainingCapacity(half, one["id"]), one["instanceCount"],
             one["multiprocessorCount"], one["sharedDecoderCount"], one["sharedCopyEngineCount"]] for one in found if "error" not in one]
def free():
    return [one[2] for one in infos()]
result = [infos(), placements(n.nvmlGpuInstanceGetComputeInstancePossiblePlacements, half, 1)]
made = divide(half, 0)
result += [where(made), free()]
n.nvmlComputeInstanceDestroy(made)
result += [where(divide(half, 2)), free(), n.nvmlDeviceGetName(devices()[0])]
"""
    assert ask(make_node(mig=True, model_name="a100-40", gpus=1), body) == [
        [[0, "MIG 1c.3g.20gb", 3, 3, 14, 2, 3], [1, "MIG 2c.3g.20gb", 1, 1, 28, 2, 3], [2, "MIG 3g.20gb", 1, 1, 42, 2, 3]], [[0, 2]],
        [0, 0, 1], [2, 0, 0], [0, 0, 3], [0, 0, 0], "NVIDIA A100-SXM4-40GB MIG 3g.20gb",
    ]  # fmt: skip


REFUSALS = {
    "no such profile": ("n.nvmlDeviceCreateGpuInstance, gpu(), 1", "InvalidArgument"),
    "no such place": ("create, '3g.71gb', 2", "InvalidArgument"),
    "no place": ("n.nvmlDeviceCreateGpuInstanceWithPlacement, gpu(), 9, None", "InvalidArgument"),
    "place is taken": ("create, '1g.18gb', 5", "InsufficientResources"),
    "no room": ("create, '7g.141gb'", "InsufficientResources"),
    "GPU without MIG": ("create, '7g.141gb', 0, gpu(1)", "NotSupported"),
    "no GPU instance without MIG": ("n.nvmlDeviceGetGpuInstanceById, gpu(1), 0", "NotFound"),
    "GPU instance is divided": ("n.nvmlGpuInstanceDestroy, half", "InUse"),
    "compute place is taken": ("divide, half, 1, 0, 2", "InUse"),
    "no compute room": ("divide, half, 2", "InsufficientResources"),
    "no such compute profile": ("divide, half, 4", "InvalidArgument"),
    "no such compute place": ("divide, half, 1, 1, 2", "InvalidArgument"),
    "no compute place": ("n.nvmlGpuInstanceCreateComputeInstanceWithPlacement, half, 0, None", "InvalidArgument"),
    "no such GPU instance": ("n.nvmlDeviceGetGpuInstanceById, gpu(), 3", "NotFound"),
    "no such compute instance": ("n.nvmlGpuInstanceGetComputeInstanceById, half, 3", "NotFound"),
    "no such MIG device": ("n.nvmlDeviceGetMigDeviceHandleByIndex, gpu(), 1", "NotFound"),
    "no room for the list": ("n.nvmlDeviceGetGpuInstances, gpu(), 9, None, ctypes.byref(ctypes.c_uint())", "InvalidArgument"),
    "no room for placements": ("n.nvmlDeviceGetGpuInstancePossiblePlacements, gpu(), 9, (n.c_nvmlGpuInstancePlacement_t * 1)(), "
                               "ctypes.byref(ctypes.c_uint(1))", "InsufficientSize"),
    "a compute profile that is not there": ("n.nvmlGpuInstanceGetComputeInstanceProfileInfo, half, 4, 0", "NotSupported"),
    "not a compute profile": ("n.nvmlGpuInstanceGetComputeInstanceProfileInfo, half, 8, 0", "InvalidArgument"),
    "not an engine profile": ("n.nvmlGpuInstanceGetComputeInstanceProfileInfo, half, 0, 1", "InvalidArgument"),
    "a GPU is no MIG device": ("n.nvmlDeviceGetComputeInstanceId, gpu()", "InvalidArgument"),
    "utilisation under MIG": ("n.nvmlDeviceGetUtilizationRates, gpu()", "NotSupported"),
    "a MIG device is no GPU": ("n.nvmlDeviceSetMigMode, devices()[0], 0", "NotSupported"),
    "GPU instance is gone": ("where, gone[0]", "InvalidArgument"),
    "compute instance is gone": ("n.nvmlComputeInstanceDestroy, gone[1]", "InvalidArgument"),
    "MIG device is gone": ("n.nvmlDeviceGetUUID, gone[2]", "InvalidArgument"),
    "another is where it was": ("n.nvmlGpuInstanceDestroy, gone[0]", "InvalidArgument"),
}  # fmt: skip


def test_each_refusal_has_its_code(hopper: Node) -> None:
    before = """
gone = [create("3g.71gb", 4)]
gone += [divide(gone[0], 2)]
gone += devices()
n.nvmlComputeInstanceDestroy(gone[1])
n.nvmlGpuInstanceDestroy(gone[0])
half = create("3g.71gb", 4)
divide(half, 0)
n.nvmlDeviceSetMigMode(gpu(1), 0)
"""
    calls = ", ".join(f"outcome({call})" for call, _code in REFUSALS.values())
    outcomes = ask(hopper, f"{before}result = [{calls}, where(half)]")
    assert dict(zip(REFUSALS, outcomes)) == {case: code for case, (_call, code) in REFUSALS.items()}
    assert outcomes[-1] == [2, 4, 4]


def test_a_uuid_names_a_place(hopper: Node) -> None:
    """What is created in the same place has the same one, whatever it is: equal UUIDs do not say that it was left alone."""
    body = """
def uuid(name, start, device, compute):
    made = create(name, start, device)
    part = divide(made, compute)
    found = n.nvmlDeviceGetUUID(devices(device)[0])
    n.nvmlComputeInstanceDestroy(part)
    n.nvmlGpuInstanceDestroy(made)
    return found
result = [uuid("3g.71gb", 0, gpu(), 2), uuid("3g.71gb", 0, gpu(), 2), uuid("4g.71gb", 0, gpu(), 3), uuid("3g.71gb", 4, gpu(), 2),
          uuid("3g.71gb", 0, gpu(1), 2)]
"""
    first, again, other_profile, other_place, other_gpu = ask(hopper, body)
    assert first == again == other_profile and len({first, other_place, other_gpu}) == 3


LISTS = """
result = [[[[p.pid, p.gpuInstanceId, p.computeInstanceId] for p in f(one)] for f in (n.nvmlDeviceGetComputeRunningProcesses_v3,
           n.nvmlDeviceGetMPSComputeRunningProcesses_v3)] for one in (gpu(), *devices())]
result.append([n.nvmlDeviceGetMemoryInfo(one).used >> 20 for one in devices()])
"""
DESTROY = """
gi = n.nvmlDeviceGetGpuInstanceById(gpu(), 1)
result = [outcome(n.nvmlComputeInstanceDestroy, n.nvmlGpuInstanceGetComputeInstanceById(gi, ci)) for ci in (0, 1)]
result.append(outcome(n.nvmlGpuInstanceDestroy, gi))
"""


def test_processes_in_instances(hopper: Node) -> None:
    """NVML lists each with its instances; memory is the GPU instance's, and compute instances share it."""
    assert instances.create(hopper, 0, "3g.71gb", 0, ("2c", "1c")) == 1
    one = hopper.start([0], "one", 1000 * MIB, gi=1, ci=0)
    two = hopper.start([0], "two", 500 * MIB, gi=1, ci=1, kind="mps")
    assert ask(hopper, LISTS) == [
        [[[one, 1, 0]], [[two, 1, 1]]],
        [[[one, 1, 0]], []],
        [[], [[two, 1, 1]]],
        [1500, 1500],
    ]
    with pytest.raises(SimulatorError, match="GPU instance 1 of GPU 0 has 69924 MiB free, not 69925"):
        hopper.grow(one, 69925 * MIB)
    assert ask(hopper, DESTROY) == ["InUse", "InUse", "InUse"]
    hopper.exit(one)
    assert ask(hopper, DESTROY) == ["ok", "InUse", "InUse"]


@pytest.mark.parametrize(("ci", "outcomes"), [(0, ["InUse", "ok", "InUse"]), (None, ["ok", "ok", "InUse"])])
def test_who_only_watches_is_in_no_list_and_in_the_way(hopper: Node, ci: int | None, outcomes: list[str]) -> None:
    instances.create(hopper, 0, "3g.71gb", 0, ("2c", "1c"))
    pid = hopper.start([0], "dcgm", 0, kind="monitor", gi=1, ci=ci)
    assert ask(hopper, LISTS)[0] == [[], []]
    held = {Path(file).resolve().name for file in Path(f"/proc/{pid}/fd").iterdir()}
    assert {"nvidia0", f"nvidia-cap{capabilities.minor(0, 1)}"} <= held
    assert ask(hopper, DESTROY) == outcomes


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ({}, "is in MIG mode: work needs a GPU instance and a compute instance"),
        ({"gi": 1}, "only a monitor can hold all of a GPU instance"),
        ({"gi": 2, "ci": 0}, "GPU 0 has no GPU instance 2"),
        ({"gi": 1, "ci": 3}, "GPU 0 has no GPU instance 1 with a compute instance 3"),
        ({"gpus": [0, 1], "gi": 1, "ci": 0}, "one GPU instance of one GPU"),
    ],
)
def test_where_no_process_can_be(hopper: Node, where: dict[str, Any], message: str) -> None:
    instances.create(hopper, 0, "3g.71gb", 0)
    with pytest.raises(SimulatorError, match=message):
        hopper.start(**{"gpus": [0], "name": "train", "memory_bytes": MIB, **where})


def test_the_first_instance_needs_an_idle_gpu(hopper: Node) -> None:
    """It divides the memory of the GPU. With instances there, more can be created beside what is at work."""
    body = "result = outcome(create, '3g.71gb', 0)"
    pid = hopper.start([0], "Xorg", MIB, kind="graphics")
    assert ask(hopper, body) == "InUse"
    hopper.exit(pid)
    hopper.start([0], "dcgm", 0, kind="monitor")
    assert ask(hopper, body) == "ok"
    hopper.start([0], "Xorg", MIB, kind="graphics")
    assert ask(hopper, "result = outcome(create, '3g.71gb', 4)") == "ok"


@pytest.mark.parametrize(("model", "status"), [("h200-141", 0), ("a100-40", 16)])
def test_mode_waits_for_the_last_instance(make_node: Callable[..., Node], model: str, status: int) -> None:
    node = make_node(mig=True, model_name=model, gpus=1)
    body = """
info = ask(n.nvmlDeviceGetGpuInstanceProfileInfo, gpu(), 2)
made = n.nvmlDeviceCreateGpuInstance(gpu(), info["id"])
result = [n.nvmlDeviceSetMigMode(gpu(), 0), n.nvmlDeviceGetMigMode(gpu())]
n.nvmlGpuInstanceDestroy(made)
result += [n.nvmlDeviceSetMigMode(gpu(), 0), n.nvmlDeviceGetMigMode(gpu())]
"""
    in_use = 19
    assert ask(node, body) == [in_use, [1, 0], status, [int(status != 0), 0]]


def test_capability_files_say_which_device_opens_an_instance(hopper: Node) -> None:
    top = hopper.path / "proc/driver/nvidia/capabilities"
    assert (top / "mig/config").read_text(encoding="ascii") == "DeviceFileMinor: 1\nDeviceFileMode: 256\nDeviceFileModify: 1\n"
    lines = (hopper.path / "proc/driver/nvidia-caps/mig-minors").read_text(encoding="ascii").splitlines()
    minors = dict(line.split() for line in lines)
    assert (
        lines[:4] == ["config 1", "monitor 2", "gpu0/gi0/access 3", "gpu0/gi0/ci0/access 4"] and lines[-1] == "gpu31/gi14/ci7/access 4322"
    )
    ask(hopper, "made = create('3g.71gb', 4, gpu(1))\ndivide(made, 2)\nresult = 0")
    files = {file: (top / "gpu1/mig" / file).read_text(encoding="ascii").split()[1] for file in ("gi2/access", "gi2/ci0/access")}
    assert files == {file: minors[f"gpu1/{file}"] for file in files}
    number = int(files["gi2/ci0/access"])
    with pytest.raises(RuntimeError, match=f"nvidia-cap{number - 1}: No such file"):
        hopper.start([1], "train", MIB, gi=2, ci=0)
    for file in files:
        subprocess.run([hopper.modprobe, "-f", f"/proc/driver/nvidia/capabilities/gpu1/mig/{file}"], check=True)
    pid = hopper.start([1], "train", MIB, gi=2, ci=0)
    held = {Path(file).resolve().name for file in Path(f"/proc/{pid}/fd").iterdir()}
    assert {"nvidiactl", "nvidia1", f"nvidia-cap{number - 1}", f"nvidia-cap{number}"} <= held
    hopper.exit(pid)
    instances.destroy(hopper, 1, 2, 0)
    assert not (top / "gpu1/mig/gi2/ci0").exists() and (top / "gpu1/mig/gi2/access").exists()
    instances.destroy(hopper, 1, 2)
    assert not (top / "gpu1/mig/gi2").exists()


@pytest.mark.parametrize(("model", "mode"), [("h200-141", [0, 0]), ("a100-40", [1, 1])])
def test_a_reboot_loses_layouts_and_a_reset_keeps_the_mode(
    make_node: Callable[..., Node], waiting: Waiting, model: str, mode: list[int]
) -> None:
    """Where the mode needs no reset it is the driver's, and lost with it; else it is the board's."""
    node = make_node(mig=True, model_name=model, gpus=1)
    largest = instances.create(node, 0, {"h200-141": "7g.141gb", "a100-40": "7g.40gb"}[model])
    state = "result = [n.nvmlDeviceGetMigMode(gpu()), devices()]"
    files = node.path / "proc/driver/nvidia/capabilities/gpu0/mig/gi0"
    client = waiting(node, "one = devices()[0]\nbefore = n.nvmlDeviceGetUUID(one)", "result = [before, outcome(n.nvmlDeviceGetUUID, one)]")
    assert largest == 0 and files.exists()
    node.reset(0)
    assert not files.exists() and ask(node, state) == [[1, 1], []]
    uuid, outcome = answer(client)
    assert outcome == "InvalidArgument"
    instances.create(node, 0, {"h200-141": "7g.141gb", "a100-40": "7g.40gb"}[model])
    assert ask(node, "result = n.nvmlDeviceGetUUID(devices()[0])") == uuid
    node.reboot()
    assert ask(node, state) == [mode, []]
    assert {file.name for file in (node.path / "dev/nvidia-caps").iterdir()} == {"nvidia-cap1", "nvidia-cap2"}


def test_a_call_fails_the_nth_time_whoever_makes_it(hopper: Node) -> None:
    hopper.fail("nvmlDeviceCreateGpuInstanceWithPlacement", "INSUFFICIENT_RESOURCES", at=3)
    body = "result = [outcome(create, '1g.18gb', start) for start in (%s)]"
    assert ask(hopper, body % "0, 1") == ["ok", "ok"]
    assert ask(hopper, body % "2, 2") == ["InsufficientResources", "ok"]
    assert [one["start"] for one in hopper.state()["gpus"][0]["mig"]["instances"]] == [0, 1, 2], "the call that failed did nothing"


def test_calls_fail_for_ever_on_one_gpu_until_cleared(hopper: Node) -> None:
    """Also those that take an instance's handle."""
    hopper.fail("nvmlGpuInstanceDestroy", "UNKNOWN", at=2, times=None, index=0)
    body = "result = [outcome(n.nvmlGpuInstanceDestroy, create('7g.141gb', 0, gpu(%d))) for _turn in range(%d)]"
    assert ask(hopper, body % (1, 3)) == ["ok"] * 3
    assert ask(hopper, body % (0, 2)) == ["ok", "Unknown"]
    gone = "result = outcome(n.nvmlGpuInstanceDestroy, n.nvmlDeviceGetGpuInstanceById(gpu(), 0))"
    assert ask(hopper, gone) == "Unknown"
    hopper.clear(0)
    assert ask(hopper, gone) == "ok"


def test_two_processes_at_once_get_what_there_is_once(hopper: Node, waiting: Waiting) -> None:
    """Neither loses what the other made, and no place is given twice."""
    work = """
made = []
while True:
    try:
        made.append(where(create("1g.18gb"))[1])
    except n.NVMLError_InsufficientResources:
        break
result = made + [outcome(create, "7g.141gb", 0, gpu(1))]
"""
    clients = [waiting(hopper, "", work) for _client in range(2)]
    for client in clients:
        assert client.stdin is not None
        client.stdin.write("\n")
        client.stdin.flush()
    answers = [answer(client) for client in clients]
    assert sorted(answers[0][:-1] + answers[1][:-1]) == [0, 1, 2, 3, 4, 5, 6]
    assert sorted(one[-1] for one in answers) == ["InsufficientResources", "ok"]
    assert [[one["start"] for one in gpu["mig"]["instances"]] for gpu in hopper.state()["gpus"]] == [[0, 1, 2, 3, 4, 5, 6], [0]]


def test_changes_are_events(hopper: Node, waiting: Waiting) -> None:
    before = "events = n.nvmlEventSetCreate()\nn.nvmlDeviceRegisterEvents(gpu(), n.nvmlEventMigConfigChange, events)"
    client = waiting(hopper, before, "result = [n.nvmlEventSetWait(events, 10000).eventType for _event in range(4)]")
    instances.create(hopper, 0, "1g.18gb", 0)
    instances.destroy(hopper, 0, 7)
    assert answer(client) == [0x100] * 4
