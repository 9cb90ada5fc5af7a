# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Whether a process may be touched, and with it its cgroup: the proof, in one place. Nothing is read here.

What cannot be proven is not done; the answer then names who was suspected and what was lacking.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.paths import Owner, owner_of
from ansible_collections.gpuops.remediation.plugins.module_utils._errors import RemediationError
from ansible_collections.gpuops.remediation.plugins.module_utils._names import EXPORTER_CGROUPS

_MPS = "nvidia-cuda-mps"  # the control daemon's and the server's name, as far as the kernel keeps it
# Units that carry the node, other people's sessions or other people's containers.
_NEVER = (
    "init.scope",
    "session-*.scope",
    "user@*.service",
    "systemd-*",
    "dbus*",
    "ssh*",
    "kubelet*",
    "k3s*",
    "rke2*",
    "k0s*",
    "containerd*",
    "docker*.service",
    "cri-docker*",
    "crio.service",
    "podman*.service",
    "slurm*",  # one scope holds the jobs of all users
    "condor*",
    "pbs*",
    "*conmon*",
    "libvirtd*",
)
_NEVER_SLICES = ("/system.slice", "/user.slice")
_KUBEPODS = re.compile(r"(?:^|[/-])kubepods")  # also below a cgroup root of the kubelet's own
_NEVER_RUNS = ("systemd", "sshd", "kubelet", "containerd", "containerd-shim*", "dockerd", "crio", "conmon")
Process = Mapping[str, Any]


class NotProven(RemediationError):
    kind = "not_proven"


@dataclass(frozen=True)
class MemberInfo:
    """One process of the target cgroup; `path` is its own cgroup."""

    pid: int
    path: str
    executable: str | None


@dataclass(frozen=True)
class Target:
    """One cgroup, the GPU's holders in it, and everyone else in it."""

    path: str
    holders: Sequence[Process]
    members: Sequence[MemberInfo]
    frozen: bool = False


@dataclass(frozen=True)
class Task:
    """The task that asks: it must not end itself."""

    ancestors: Sequence[int]
    cgroup: str


@dataclass(frozen=True)
class Rules:
    started_before: float | None
    protect: Sequence[str] = ()


def program(process: Process) -> str:
    return str(process.get("executable") or process.get("name") or "").rsplit("/", 1)[-1]


def is_mps(process: Process) -> bool:
    """The server of MPS or its control daemon; clients are of any name."""
    return _MPS in (program(process)[: len(_MPS)], process.get("name"))


def is_own_reader(process: Process) -> bool:
    """Whether it is the exporter's, which is no work. By its whole cgroup: anybody may call a unit of his own by its name."""
    return process.get("cgroup") in EXPORTER_CGROUPS


def counts(process: Process, allowed: Iterable[str]) -> bool:
    """Whether it is a holder; `allowed` names programs, or cgroups by pattern (with a slash)."""
    return not is_own_reader(process) and not any(
        fnmatchcase(process.get("cgroup") or "", pattern) if "/" in pattern else fnmatchcase(program(process), pattern)
        for pattern in allowed
    )


def require_witness(gpu: Mapping[str, Any]) -> None:
    """NVML's own list of the GPU's processes, or, for a GPU that NVML has lost, its open device file. A hang is no loss."""
    if gpu["processes_source"] == "nvml" or (gpu["lost"] and gpu["processes_source"] == "device_file"):
        return
    why = "; ".join(f"{error['call']}: {error['error']}" for error in gpu["errors"]) or "it gave no answer"
    told = ", ".join(f"pid {one['pid']} ({one['name']})" for one in gpu["processes"])
    raise NotProven(
        f"NVML does not say who uses {_name(gpu)} ({why}){'; its device file is open in ' + told if told else ''}",
        suspects=suspects(gpu["processes"], "only has the device file open"),
    )


def refuse_mps(gpu: Mapping[str, Any]) -> None:
    """Killing one client while its work runs takes the server's other clients with it, and an Xid names any of them."""
    servers = [one for one in gpu["processes"] if is_mps(one)]
    clients = [one for one in gpu["processes"] if one["type"] == "mps"]
    if servers or clients:
        server = f"pid {servers[0]['pid']}" if servers else f"serving pid {clients[0]['pid']}"
        raise NotProven(
            f"an MPS server is in use on {_name(gpu)} ({server}): its clients must be terminated through it",
            suspects=suspects(gpu["processes"], "runs beside an MPS server"),
            mps_server={"pid": servers[0]["pid"] if servers else None, "clients": [one["pid"] for one in clients]},
        )


def _name(gpu: Mapping[str, Any]) -> str:
    return str(gpu["uuid"] or gpu["pci_bus_id"] or gpu["device_path"])


def suspects(processes: Iterable[Process], why: str) -> list[dict[str, Any]]:
    names = ("pid", "start_time", "start_ticks", "name", "cgroup", "container")
    return [{**{name: process.get(name) for name in names}, "why": why} for process in processes]


def require(targets: Sequence[Target], task: Task, rules: Rules, start_of: Mapping[int, float]) -> None:
    """All targets or none. `start_of` has the start of each holder whose process is held by a descriptor."""
    lacking = []
    for target in targets:
        for process in target.holders:
            why = _against_process(process, rules, start_of) or _against_cgroup(target, task, rules)
            if why:
                lacking += suspects([process], why)
    if lacking:
        told = "; ".join(f"pid {one['pid']} ({one['name']}) {one['why']}" for one in lacking)
        raise NotProven(f"nothing was done: {told}", suspects=lacking)


def require_touchable(path: str, members: Sequence[MemberInfo], task: Task, protect: Sequence[str]) -> None:
    """A limit or a filter touches whoever is in the cgroup, now and later: never the system's own, nor the task that asks."""
    why = _against_all_of(path, members, task, protect)
    if why:
        raise NotProven(f"{path} is left alone: it {why}", suspects=[])


def _against_all_of(path: str, members: Sequence[MemberInfo], task: Task, protect: Sequence[str]) -> str | None:
    if path == "/":
        return "is the root"
    if path in _NEVER_SLICES:
        return "is systemd's own"
    if _KUBEPODS.search(path) and owner_of(path) is None:
        return "is the kubelet's, which manages it itself"
    why = _against_owner(path, owner_of(path), protect)
    if why:
        return why
    if _holds_task(path, members, task):
        return "is where this very task runs"
    for member in members:
        owner = owner_of(member.path)
        if owner and (_is_never(owner) or _runs_system(member, owner)):
            return f"holds {member.executable or owner.name} (pid {member.pid} of {owner.name})"
    return None


def _against_process(process: Process, rules: Rules, start_of: Mapping[int, float]) -> str | None:
    start = start_of.get(process["pid"])
    if start is None:
        return "cannot be found under its pid"
    if rules.started_before is None:
        return "cannot be judged: it is not known when the fault (or, for a whole GPU, the stage) began"
    if start >= rules.started_before:
        return "started after the fault (or, for a whole GPU, after the stage)"
    return None


def _against_cgroup(target: Target, task: Task, rules: Rules) -> str | None:
    owner = owner_of(target.path)
    if owner is None:
        return f"is in {target.path}, which is neither one container's nor one unit's"
    why = _against_owner(target.path, owner, rules.protect)
    if why:
        return f"is in {owner.unit if not owner.container else target.path}, which {why}"
    if _holds_task(target.path, target.members, task):
        return f"is in {target.path}, where this very task runs"
    return _against_members(target, owner)


def _against_owner(path: str, owner: Owner | None, protect: Sequence[str]) -> str | None:
    if owner and not owner.container and (_is_never(owner) or any(fnmatchcase(str(owner.unit), pattern) for pattern in protect)):
        return "is never touched"
    if (owner is None or owner.container) and any(fnmatchcase(path, pattern) for pattern in protect):
        return "is protected"
    return None


def _is_never(owner: Owner) -> bool:
    return owner.container is None and any(fnmatchcase(str(owner.unit), pattern) for pattern in _NEVER)


def _runs_system(member: MemberInfo, owner: Owner) -> bool:
    program = (member.executable or "").rsplit("/", 1)[-1]
    return owner.container is None and any(fnmatchcase(program, name) for name in _NEVER_RUNS)


def _holds_task(path: str, members: Sequence[MemberInfo], task: Task) -> bool:
    return any(member.pid in task.ancestors for member in members) or f"{task.cgroup}/".startswith(f"{path}/")


def _against_members(target: Target, owner: Owner) -> str | None:
    for member in target.members:
        other = owner_of(member.path)
        if other is None or other.path != owner.path:
            return f"shares {target.path} with pid {member.pid} of {other.name if other else member.path}"
        if _runs_system(member, owner):
            return f"shares {target.path} with {member.executable} (pid {member.pid})"
    return None
