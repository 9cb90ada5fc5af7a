# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What is read of containers, on a simulated /proc."""

from __future__ import annotations

import os

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._isolation import containers, inside, memory
from ansible_collections.gpuops.remediation.plugins.module_utils._isolation.info import join
from ansible_collections.gpuops.remediation.plugins.module_utils._node.procfs import ProcFs
from ansible_collections.gpuops.remediation.plugins.module_utils._node.watchdog import Answer
from simulated_containers import ALL_CAPABILITIES, Containers

ID = "ab" * 32
DOCKER = f"/system.slice/docker-{ID}.scope"
MIG = {"gpu0/mig/gi2/access": 156, "gpu0/mig/gi2/ci0/access": 157, "mig/config": 1}


@pytest.fixture
def sim(tmp_path):
    for folder in ("proc", "dev/nvidia-caps"):
        (tmp_path / folder).mkdir(parents=True)
    for name in ("nvidia0", "nvidia1", "nvidiactl", *(f"nvidia-caps/nvidia-cap{number}" for number in MIG.values())):
        (tmp_path / "dev" / name).touch()
    for name, number in MIG.items():
        path = tmp_path / "proc/driver/nvidia/capabilities" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"DeviceFileMinor: {number}\n")
    return Containers(tmp_path / "proc", tmp_path / "dev", tmp_path / "fake")


def collected(sim, gpus=()):
    items = []
    containers.collect(ProcFs(str(sim.proc)), str(sim.dev), str(sim.cgroup_root), items.append)
    return join(Answer(items), gpus)


def kinds(devices):
    return [(one["kind"], one["minor"], one["gi"], one["ci"]) for one in devices]


def test_a_container_and_what_it_sees(sim):
    sim.process(
        4711,
        DOCKER,
        environment={"NVIDIA_VISIBLE_DEVICES": "0", "AWS_SECRET_KEY": "hush"},
        devices=["nvidia0", "nvidiactl"],
        opened=["nvidia1"],
    )
    [found] = collected(sim)
    assert {name: found[name] for name in ("cgroup", "runtime", "id", "pod_uid")} == {
        "cgroup": DOCKER,
        "runtime": "docker",
        "id": ID,
        "pod_uid": None,
    }
    assert (kinds(found["devices"]), kinds(found["open"])) == ([("gpu", 0, None, None)], [("gpu", 1, None, None)])
    assert (found["memory_max"], found["host_pid"], found["capabilities"], found["visible_devices"]) == (1 << 30, False, [], "0")
    assert found["environment_read"] and "hush" not in str(found)
    assert found["processes"] == [{"pid": 4711, "name": "train", "executable": None}]


def test_parts_of_a_gpu_and_the_device_that_cuts_it(sim):
    sim.process(4711, DOCKER, devices=["nvidia0", "nvidia-caps/nvidia-cap156", "nvidia-caps/nvidia-cap157", "nvidia-caps/nvidia-cap1"])
    [found] = collected(sim)
    seen = [("gpu", 0, None, None), ("gpu_instance", 0, 2, None), ("compute_instance", 0, 2, 0), ("mig_config", None, None, None)]
    assert sorted(kinds(found["devices"]), key=str) == sorted(seen, key=str)


def test_a_device_is_known_by_its_number_and_a_link_by_nothing(sim):
    own = sim.process(4711, DOCKER, devices=["nvidia1"])
    (own / "root/dev/nvidia1").rename(own / "root/dev/harmless")
    (own / "root/dev/nvidia0").symlink_to(sim.dev / "nvidia0")
    (own / "root/dev/nvidia-caps").rmdir()
    (own / "root/dev/nvidia-caps").symlink_to(sim.dev / "nvidia-caps")  # leads to the host's only for whoever has its root
    [found] = collected(sim)
    assert kinds(found["devices"]) == [("gpu", 1, None, None)]


def test_who_has_nothing_to_do_with_gpus_is_left_out(sim):
    sim.process(4711, DOCKER, devices=["nvidiactl"], environment={"NVIDIA_VISIBLE_DEVICES": "void"})
    sim.process(4712, "/system.slice/web.service")
    assert collected(sim) == []


def test_an_image_that_asks_for_gpus_is_told_of_though_it_has_none(sim):
    sim.process(4711, DOCKER, environment={"NVIDIA_VISIBLE_DEVICES": "all"})
    assert [found["visible_devices"] for found in collected(sim)] == ["all"]


@pytest.mark.parametrize(
    "mask, user, told",
    [
        (ALL_CAPABILITIES, "host", ["all"]),
        (ALL_CAPABILITIES, "own", []),  # of a user namespace: nothing on the host
        (f"{1 << 21 | 1 << 39:016x}", "host", ["sys_admin", "bpf"]),
        ("00000000a80425fb", "host", []),
    ],
)
def test_capabilities(sim, mask, user, told):
    sim.process(4711, DOCKER, devices=["nvidia0"], capabilities=mask, namespaces={"pid": "host", "user": user})
    [found] = collected(sim)
    assert (found["capabilities"], found["host_pid"]) == (told, True)


def test_where_the_first_process_is_closed_the_host_is_where_we_are(sim):
    first = sim.proc / "1/ns"
    for name in ("mnt", "pid", "user"):
        (first / name).unlink()
    (sim.proc / "self").symlink_to(sim.process(2, "/system.slice/ssh.service", namespaces={"pid": "here"}))
    sim.process(4711, DOCKER, devices=["nvidia0"], namespaces={"pid": "here"})
    assert [found["host_pid"] for found in collected(sim)] == [True]


def test_what_cannot_be_read_is_null(sim):
    own = sim.process(4711, DOCKER, devices=["nvidia0"])
    for name in ("status", "environ", "mountinfo", "ns/pid"):
        (own / name).unlink()
    (sim.cgroup_root / DOCKER[1:] / "memory.max").unlink()
    [found] = collected(sim)
    assert [found[name] for name in ("capabilities", "environment_read", "host_pid", "memory_max")] == [None, False, None, None]


def test_units_and_others_are_there_once_they_use_a_gpu(sim):
    sim.process(4711, "/system.slice/train.service", opened=["nvidia0"], memory_max="max")
    used = {"gi": None, "ci": None, "type": "compute", "source": "nvml"}
    processes = [{**used, "cgroup": "/system.slice/train.service"}, {**used, "cgroup": "/"}, {**used, "cgroup": None}]
    found = {one["cgroup"]: one for one in collected(sim, [{"uuid": "GPU-1", "processes": processes}])}
    assert set(found) == {"/system.slice/train.service", "/", None}
    unit = found["/system.slice/train.service"]
    assert (unit["unit"], unit["id"], unit["memory_max"], unit["devices"]) == ("train.service", None, "max", [])
    assert unit["uses"] == found[None]["uses"] == [{"gpu": "GPU-1", **used}]


def test_what_counts_is_what_a_container_was_started_with(sim):
    sim.process(4711, DOCKER, devices=["nvidia0"], environment={"NVIDIA_VISIBLE_DEVICES": "0"})
    sim.process(4712, DOCKER, environment={"NVIDIA_VISIBLE_DEVICES": "void", "CUDA_MPS_PIPE_DIRECTORY": "/run/own"})
    assert [(found["visible_devices"], found["mps_pipes"]) for found in collected(sim)] == [("0", ["/run/own"])]


# --- MPS


def daemon(sim, pid=900, cgroup="/system.slice/mps.service", folder=None):
    own = sim.process(pid, cgroup, name="nvidia-cuda-mps", environment={"CUDA_MPS_PIPE_DIRECTORY": folder} if folder else {})
    pipes = own / "root" / (folder or inside.DEFAULT_PIPES).strip("/")
    pipes.mkdir(parents=True)
    (pipes / "control").touch()
    return pipes


def let_see(pipes, own, folder):
    at = own / "root" / folder.strip("/")
    at.mkdir(parents=True)
    os.link(pipes / "control", at / "control")


@pytest.mark.parametrize(
    "folder, at, more",
    [
        (None, "/tmp/nvidia-mps", {}),
        ("/run/mps/0", "/run/pipes", {"environment": {"CUDA_MPS_PIPE_DIRECTORY": "/run/pipes"}}),
        ("/run/mps/0", "/mnt/pipes", {"mounts": ["/mnt/pipes"]}),
        (None, "/host tmp/nvidia-mps", {"mounts": ["/host\\040tmp"]}),
    ],
)
def test_a_daemon_that_is_reached(sim, folder, at, more):
    pipes = daemon(sim, folder=folder)
    let_see(pipes, sim.process(4711, DOCKER, **more), at)
    [found] = collected(sim)
    assert (found["cgroup"], found["mps_reached"]) == (DOCKER, [folder or "/tmp/nvidia-mps"])


def test_a_daemon_that_is_not_reached(sim):
    pipes = daemon(sim)
    own = sim.process(4711, DOCKER, devices=["nvidia0"], environment={"CUDA_MPS_PIPE_DIRECTORY": "/tmp/link"})
    (own / "root/tmp/nvidia-mps").mkdir()
    (own / "root/tmp/nvidia-mps/control").touch()  # another one's
    (own / "root/tmp/link").symlink_to(pipes)  # which leads nowhere from its own root
    assert [found["mps_reached"] for found in collected(sim)] == [[]]


def test_a_containers_own_daemon_is_its_own_affair(sim):
    daemon(sim, pid=4711, cgroup=DOCKER)
    assert collected(sim) == []


def test_the_daemons_are_told_of(sim):
    daemon(sim, folder="/run/mps/0")
    items = []
    containers.collect(ProcFs(str(sim.proc)), str(sim.dev), str(sim.cgroup_root), items.append)
    told = {"pid": 900, "name": "nvidia-cuda-mps", "cgroup": "/system.slice/mps.service", "pipe_directory": "/run/mps/0"}
    assert items[0] == {"daemons": [told]}


# --- memory


@pytest.fixture
def v2(tmp_path):
    (tmp_path / "cgroup.controllers").touch()
    return tmp_path


def limit(root, path, value, name="memory.max"):
    (root / path).mkdir(parents=True, exist_ok=True)
    (root / path / name).write_text(f"{value}\n")


def test_the_limit_above_holds_too(v2):
    limit(v2, "kubepods.slice", 9000)
    limit(v2, "kubepods.slice/pod.slice", "max")
    limit(v2, f"kubepods.slice/pod.slice/cri-containerd-{ID}.scope", "max")
    inner = {"": f"/kubepods.slice/pod.slice/cri-containerd-{ID}.scope/init.scope"}
    assert memory.limit_of(str(v2), inner) == 9000
    limit(v2, f"kubepods.slice/pod.slice/cri-containerd-{ID}.scope", 5000)
    assert memory.limit_of(str(v2), inner) == 5000


def test_the_root_is_no_limit_above(v2):
    limit(v2, "", 1)
    limit(v2, "a.service", "max")
    assert memory.limit_of(str(v2), {"": "/a.service"}) == "max"


def test_version_1_has_its_own_hierarchy_and_a_large_number_for_none(tmp_path):
    limit(tmp_path, "memory/docker/" + ID, 9223372036854771712, "memory.limit_in_bytes")
    memberships = {"memory": f"/docker/{ID}", "": "/"}
    assert memory.limit_of(str(tmp_path), memberships) == "max"
    limit(tmp_path, "memory/docker/" + ID, 7000, "memory.limit_in_bytes")
    assert memory.limit_of(str(tmp_path), memberships) == 7000
    assert memory.limit_of(str(tmp_path), {"": "/"}) is None
