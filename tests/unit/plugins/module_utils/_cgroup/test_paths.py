# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.paths import owner_of, parse_memberships, process_path

ID = "4f" * 32
OTHER = "a0" * 32
UID = "12345678-9abc-def0-1234-56789abcdef0"
UID_ = UID.replace("-", "_")


@pytest.mark.parametrize(
    ("path", "owner", "runtime", "pod"),
    [
        pytest.param(
            f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID_}.slice/cri-containerd-{ID}.scope",
            0, "containerd", UID, id="kubernetes, containerd, systemd"),
        pytest.param(f"/kubepods.slice/kubepods-pod{UID_}.slice/crio-{ID}.scope", 0, "cri-o", UID, id="kubernetes, cri-o, guaranteed"),
        pytest.param(
            f"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{UID_}.slice/docker-{ID}.scope",
            0, "docker", UID, id="kubernetes, cri-dockerd"),
        pytest.param(f"/kubepods/burstable/pod{UID}/{ID}", 0, None, UID, id="kubernetes, cgroupfs: the path does not name the runtime"),
        pytest.param(f"/kubepods/pod{UID}/crio-{ID}", 0, "cri-o", UID, id="kubernetes, cri-o, cgroupfs"),
        pytest.param(f"/kubepods/burstable/pod{'0123abcd' * 4}/{ID}", 0, None, "0123abcd" * 4, id="a static pod's hash"),
        pytest.param(f"/system.slice/containerd.service/kubepods-burstable-pod{UID_}.slice:cri-containerd:{ID}", 0, "containerd", UID, id="mixed drivers"),
        pytest.param(f"/docker/{ID}", 0, "docker", None, id="docker, cgroupfs"),
        pytest.param(f"/system.slice/docker-{ID}.scope", 0, "docker", None, id="docker, systemd"),
        pytest.param(f"/machine.slice/libpod-{ID}.scope", 0, "podman", None, id="podman, root"),
        pytest.param(f"/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope", 0, "podman", None, id="podman, rootless"),
        pytest.param(f"/machine.slice/libpod-{ID}.scope/container", 1, "podman", None, id="podman, below the scope"),
        pytest.param(f"/system.slice/nerdctl-{ID}.scope", 0, "containerd", None, id="nerdctl"),
        pytest.param(f"/system.slice/docker-{ID}.scope/init.scope", 1, "docker", None, id="a systemd inside the container"),
        pytest.param(f"/system.slice/docker-{ID}.scope/system.slice/app.service", 2, "docker", None, id="a unit inside the container"),
        pytest.param(f"/docker/{OTHER}/docker/{ID}", 0, "docker", None, id="docker in docker: the inner one"),
    ],
)  # fmt: skip
def test_containers(path, owner, runtime, pod):
    """`owner`: how many folders the container's own cgroup is above the process's."""
    found = owner_of(path)
    assert found.path == "/".join(path.split("/")[: len(path.split("/")) - owner])
    assert (found.container.runtime, found.container.id, found.container.pod_uid) == (runtime, ID, pod)
    assert found.name == "container 4f4f4f4f4f4f"


@pytest.mark.parametrize(
    ("path", "owner"),
    [
        ("/system.slice/train.service", "/system.slice/train.service"),
        ("/gpusim-1/node/system.slice/train.service/worker", "/gpusim-1/node/system.slice/train.service"),
        ("/user.slice/user-1000.slice/session-3.scope", "/user.slice/user-1000.slice/session-3.scope"),
        (
            "/user.slice/user-1000.slice/user@1000.service/app.slice/job.service",
            "/user.slice/user-1000.slice/user@1000.service/app.slice/job.service",
        ),
        (f"/machine.slice/libpod-conmon-{ID}.scope", f"/machine.slice/libpod-conmon-{ID}.scope"),
        ("/", None),
        ("/system.slice", None),
        (f"/kubepods.slice/kubepods-pod{UID_}.slice", None),
        (f"/kubepods/pod{UID}", None),
        (f"/docker/{ID[:40]}", None),
    ],
)
def test_units_and_nobody(path, owner):
    found = owner_of(path)
    assert (found and found.path) == owner
    if found:
        assert found.container is None and found.unit == owner.rsplit("/", 1)[1] == found.name


@pytest.mark.parametrize(
    ("text", "path"),
    [
        pytest.param("0::/system.slice/a.service\n", "/system.slice/a.service", id="v2"),
        pytest.param(f"9:name=systemd:/system.slice/a.service\n6:freezer:/docker/{ID}\n", f"/docker/{ID}", id="v1: the container's"),
        pytest.param(
            "9:name=systemd:/system.slice/a.service\n6:freezer:/\n", "/system.slice/a.service", id="v1: systemd does not use the freezer"
        ),
        pytest.param("4:memory:/odd:name\n0::/\n", "/odd:name", id="hybrid, a colon in the name"),
        pytest.param("3:cpu,cpuacct:/\n0::/\n", "/", id="nowhere"),
        pytest.param("", None, id="no cgroups"),
    ],
)
def test_a_process_is_where_its_owner_is_known(text, path):
    assert process_path(parse_memberships(text)) == path


def test_joined_controllers_are_named_one_by_one():
    assert parse_memberships("3:cpu,cpuacct:/a\n0::/b\n") == {"cpu": "/a", "cpuacct": "/a", "": "/b"}
