# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.proof import (
    MemberInfo,
    NotProven,
    Rules,
    Target,
    Task,
    counts,
    refuse_mps,
    require,
    require_touchable,
    require_witness,
)

ID, OTHER = "4f" * 32, "a0" * 32
POD = "/kubepods.slice/kubepods-pod12345678_9abc_def0_1234_56789abcdef0.slice"
CONTAINER = f"{POD}/cri-containerd-{ID}.scope"
UNIT = "/system.slice/train.service"
GPU = {"uuid": "GPU-a", "pci_bus_id": "0000:01:00.0", "device_path": "/dev/nvidia0", "lost": False, "errors": [], "processes": []}


def process(pid=7, **more):
    return {"pid": pid, "type": "compute", "name": "train", "executable": "/opt/train", "cgroup": UNIT, "start_ticks": 5, **more}


def target(path=UNIT, *others, holders=(7,)):
    members = [MemberInfo(pid, path, "/opt/train") for pid in holders]
    return Target(path, [process(pid, cgroup=path) for pid in holders], [*members, *others])


def judge(*targets, task=None, started_before=100.0, protect=(), start_of=None):
    starts = {one["pid"]: 50.0 for each in targets for one in each.holders}
    require(
        targets,
        task or Task([900, 1], "/system.slice/sshd.service"),
        Rules(started_before, protect),
        starts if start_of is None else start_of,
    )


@pytest.mark.parametrize(
    "proven",
    [
        pytest.param(target(), id="a unit's"),
        pytest.param(target(CONTAINER), id="a container's"),
        pytest.param(
            target(CONTAINER, MemberInfo(8, f"{CONTAINER}/init.scope", "/usr/lib/systemd/systemd")), id="a systemd inside the container"
        ),
        pytest.param(target(CONTAINER, MemberInfo(8, CONTAINER, "/usr/sbin/sshd")), id="an sshd inside the container"),
        pytest.param(target(f"{UNIT}/worker"), id="part of a unit"),
        pytest.param(target("/user.slice/user-1000.slice/user@1000.service/app.slice/job.service"), id="a user's unit"),
        pytest.param(target(f"/docker/{ID}"), id="docker on cgroupfs"),
    ],
)
def test_s10_proven(proven):
    judge(proven)


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/", "neither one container's nor one unit's"),
        ("/system.slice", "neither one container's nor one unit's"),
        (POD, "neither one container's nor one unit's"),
        (f"/kubepods/pod{'0123abcd' * 4}", "neither one container's nor one unit's"),
        ("/slurm/uid_1000/job_1/step_0", "neither one container's nor one unit's"),
        *(
            (path, "never touched")
            for path in (
                "/init.scope",
                "/user.slice/user-1000.slice/session-3.scope",
                "/user.slice/user-1000.slice/user@1000.service/init.scope",
                "/user.slice/user-1000.slice/user@1000.service",
                "/system.slice/kubelet.service",
                "/system.slice/containerd.service",
                "/system.slice/docker.service",
                "/system.slice/k3s.service",
                "/system.slice/crio.service",
                f"/machine.slice/libpod-conmon-{ID}.scope",
                f"{POD}/crio-conmon-{ID}.scope",
                "/system.slice/sshd.service",
                "/system.slice/system-sshd.slice/sshd@3.service",
                "/system.slice/ssh.service",
                "/system.slice/systemd-journald.service",
                "/system.slice/slurmstepd.scope/job_1/step_0/user/task_0",
            )
        ),
    ],
)
def test_s10_never(path, why):
    with pytest.raises(NotProven, match=why) as refused:
        judge(target(path))
    assert [one["pid"] for one in refused.value.details["suspects"]] == [7]


@pytest.mark.parametrize(
    ("given", "options", "why"),
    [
        pytest.param(target(), {"started_before": 50.0}, "started after the fault", id="started with it"),
        pytest.param(target(), {"started_before": None}, "it is not known when", id="no time"),
        pytest.param(target(), {"start_of": {}}, "cannot be found under its pid", id="gone, or another process by now"),
        pytest.param(
            target(UNIT, MemberInfo(8, f"{UNIT}/docker/{OTHER}", "/bin/x")),
            {},
            r"shares .* pid 8 of container a0a0",
            id="a container below",
        ),
        pytest.param(
            target(CONTAINER, MemberInfo(8, f"{CONTAINER}/docker/{OTHER}", "/bin/x")), {}, "shares", id="a container inside the container"
        ),
        pytest.param(target(UNIT, MemberInfo(8, f"{UNIT}/a/b.service", "/bin/x")), {}, "shares", id="a unit below"),
        pytest.param(target(UNIT, MemberInfo(8, UNIT, "/usr/sbin/sshd")), {}, "with /usr/sbin/sshd", id="an sshd in the unit"),
        pytest.param(
            target(UNIT, MemberInfo(8, UNIT, "/usr/bin/containerd-shim-runc-v2")),
            {},
            "containerd-shim",
            id="a container's shim in the unit",
        ),
        pytest.param(target(UNIT, MemberInfo(900, UNIT, "/usr/bin/python3")), {}, "this very task", id="the task itself"),
        pytest.param(target(), {"task": Task([900], f"{UNIT}/child")}, "this very task", id="the task is below"),
        pytest.param(target(), {"protect": ["tr*.service"]}, "never touched", id="protected unit"),
        pytest.param(target(CONTAINER), {"protect": ["*-4f4f4f*"]}, "protected", id="protected container"),
    ],
)
def test_s10_not_proven(given, options, why):
    with pytest.raises(NotProven, match=why):
        judge(given, **options)


def test_s10_all_or_nothing():
    with pytest.raises(NotProven) as refused:
        judge(target(), target("/init.scope", holders=(8, 9)))
    assert [(one["pid"], one["cgroup"]) for one in refused.value.details["suspects"]] == [(8, "/init.scope"), (9, "/init.scope")]
    assert refused.value.kind == "not_proven"


@pytest.mark.parametrize(
    ("changes", "proven"),
    [
        ({"processes_source": "nvml"}, True),
        ({"processes_source": "nvml", "lost": True}, True),
        ({"processes_source": "device_file", "lost": True}, True),
        ({"processes_source": "device_file"}, False),
        ({"processes_source": None, "lost": True}, False),
        ({"processes_source": None, "errors": [{"call": "nvmlDeviceGetHandleByIndex", "error": "did not answer within 5 s"}]}, False),
    ],
)
def test_s10_the_device_file_tells_only_of_a_lost_gpu(changes, proven):
    """Programs open the device files of all GPUs when they start: of one that merely hangs, an open file proves nothing."""
    if proven:
        return require_witness({**GPU, **changes})
    with pytest.raises(NotProven, match="NVML does not say who uses GPU-a"):
        require_witness({**GPU, **changes})


@pytest.mark.parametrize(
    ("others", "told", "server"),
    [
        ([process(9, executable="/usr/bin/nvidia-cuda-mps-server")], "pid 9", {"pid": 9, "clients": []}),
        ([process(8, type="mps"), process(9, name="nvidia-cuda-mps", executable=None)], "pid 9", {"pid": 9, "clients": [8]}),
        ([process(8, type="mps")], "serving pid 8", {"pid": None, "clients": [8]}),
    ],
)
def test_s10_while_an_mps_server_is_on_the_gpu_nothing_is_done(others, told, server):
    with pytest.raises(NotProven, match=rf"MPS server .*\({told}\)") as refused:
        refuse_mps({**GPU, "processes": [process(7), *others]})
    assert refused.value.details["mps_server"] == server
    refuse_mps({**GPU, "processes": [process(7)]})


@pytest.mark.parametrize(
    ("allowed", "expected"),
    [
        ([], True),
        (["nv-hostengine"], True),
        (["train"], False),
        (["tr*"], False),
        (["/system.slice/*"], False),
        (["/opt/train"], True),
        (["*/train.service"], False),
    ],
)
def test_allowed_holders_do_not_count(allowed, expected):
    assert counts(process(), allowed) is expected
    assert counts(process(executable=None, cgroup=None), ["train"]) is False


def test_the_exporters_readers_are_no_holders_and_who_takes_their_name_is():
    assert not counts(process(cgroup="/system.slice/gpuops-exporter.service"), [])
    assert not counts(process(cgroup="/system.slice/gpuops-node-state.service"), [])
    assert counts(process(cgroup="/user.slice/user-1000.slice/user@1000.service/gpuops-exporter.service"), [])


@pytest.mark.parametrize(
    ("path", "members"),
    [
        pytest.param(UNIT, [MemberInfo(7, UNIT, "/opt/train")], id="a unit"),
        pytest.param(
            CONTAINER, [MemberInfo(7, f"{CONTAINER}/init.scope", "/usr/lib/systemd/systemd")], id="a container with its own systemd"
        ),
        pytest.param("/tenants.slice", [MemberInfo(7, f"/tenants.slice{UNIT}", "/opt/train")], id="a slice with somebody's units"),
        pytest.param("/tenants.slice", [], id="an empty slice"),
        pytest.param("/slurm/uid_1000/job_1", [MemberInfo(7, "/slurm/uid_1000/job_1/step_0", "/opt/train")], id="a job, by its name"),
    ],
)
def test_s10_what_may_be_limited(path, members):
    require_touchable(path, members, Task([900, 1], "/system.slice/sshd.service"), [])


@pytest.mark.parametrize(
    ("path", "members", "why"),
    [
        pytest.param("/", [], "is the root", id="root"),
        pytest.param("/init.scope", [], "never touched", id="process 1"),
        pytest.param("/system.slice/kubelet.service", [], "never touched", id="kubelet"),
        pytest.param("/system.slice/kubelet.service/below", [], "never touched", id="below the kubelet's"),
        pytest.param("/kubepods.slice", [], "the kubelet's", id="all pods"),
        pytest.param(POD, [], "the kubelet's", id="a pod"),
        pytest.param("/kubelet.slice/kubelet-kubepods.slice", [], "the kubelet's", id="pods below a root of the kubelet's"),
        pytest.param("/user.slice", [], "systemd's own", id="all users, of whom none is here"),
        pytest.param("/kubepods/burstable", [], "the kubelet's", id="pods on cgroupfs"),
        pytest.param(
            "/node.slice", [MemberInfo(7, "/node.slice/containerd.service", "/bin/x")], "holds /bin/x", id="a slice with a runtime"
        ),
        pytest.param("/node.slice", [MemberInfo(7, "/node.slice/own.service", "/usr/sbin/sshd")], "sshd", id="a slice with an sshd"),
        pytest.param(UNIT, [MemberInfo(900, UNIT, "/usr/bin/python3")], "this very task", id="the task's own"),
        pytest.param("/own.slice", [], "this very task", id="above the task's own"),
        pytest.param("/system.slice/kept.service", [], "never touched", id="a protected unit"),
        pytest.param("/kept.slice", [], "is protected", id="a protected slice"),
    ],
)
def test_s10_what_is_never_limited(path, members, why):
    with pytest.raises(NotProven, match=why):
        require_touchable(path, members, Task([900, 1], "/own.slice/task.service"), ["kept.service", "/kept.slice"])
