# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Every container and unit of a node as /proc has it, and what of a GPU it can see. Runs in a watched child, which streams.

Of a process's environment two variables are told and nothing else: the others are people's secrets.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Optional, Union

from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.paths import Owner, owner_of, process_path
from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.proof import is_mps
from ansible_collections.gpuops.remediation.plugins.module_utils._gpu import open_files
from ansible_collections.gpuops.remediation.plugins.module_utils._gpu.open_files import Identity
from ansible_collections.gpuops.remediation.plugins.module_utils._isolation import inside
from ansible_collections.gpuops.remediation.plugins.module_utils._isolation.memory import limit_of
from ansible_collections.gpuops.remediation.plugins.module_utils._mps.control import DEFAULT_PIPES, PIPE
from ansible_collections.gpuops.remediation.plugins.module_utils._node.procfs import ProcessInfo, ProcFs
from ansible_collections.gpuops.remediation.plugins.module_utils._node.watchdog import Emit

VISIBLE = "NVIDIA_VISIBLE_DEVICES"
_ENVIRONMENT_BYTES = 1 << 20
_MOST_LOOKED_INTO = 64  # processes of a container; the first has what the image and the runtime set
_LONGEST_VALUE = 1024
_CAPABILITIES = {2: "dac_read_search", 16: "sys_module", 17: "sys_rawio", 19: "sys_ptrace", 21: "sys_admin", 38: "perfmon", 39: "bpf"}
_EFFECTIVE = re.compile(r"^CapEff:\s*([0-9a-f]+)$", re.MULTILINE)


def collect(proc: ProcFs, dev_root: str, cgroup_root: str, emit: Emit) -> None:
    """`daemons` of MPS, then each container and unit, then what their environments say.

    Environments come last: whoever reads that of a process which hangs in the driver may have to wait.
    """
    known = inside.devices_of_node(proc, dev_root)
    owners = _owners(proc)
    daemons = _daemons(proc, owners)
    emit({"daemons": [{name: value for name, value in daemon.items() if name != "control"} for daemon in daemons]})
    first, own = _namespaces(proc, 1), _namespaces(proc, "self")
    host = {kind: first[kind] or own[kind] for kind in first}  # the first process may be closed even to root; we are on the host too
    for owner, members in owners:
        emit({"owner": {**_identity(owner), **_facts(proc, owner, members, host, known, cgroup_root)}})
    for owner, members in owners:
        if owner.container:
            emit({"path": owner.path, **_environment(proc, members, daemons, owner)})
    emit({"open": []})
    for pid, held in open_files.holders(proc, known):
        path = _path(proc.process(pid))
        emit({"open": [{"path": path, "devices": [one.record() for one in sorted(held, key=str)]}]})


def _path(process: Optional[ProcessInfo]) -> Optional[str]:
    path = process_path(process.cgroups) if process else None
    owner = owner_of(path) if path else None
    return owner.path if owner else path


def _owners(proc: ProcFs) -> list[tuple[Owner, list[ProcessInfo]]]:
    """With their processes, the oldest first."""
    found: dict[str, tuple[Owner, list[ProcessInfo]]] = {}
    for process in filter(None, map(proc.process, proc.pids())):
        owner = owner_of(process_path(process.cgroups) or "/")
        if owner:
            found.setdefault(owner.path, (owner, []))[1].append(process)
    return [(owner, sorted(members, key=lambda one: (one.start_ticks, one.pid))) for owner, members in found.values()]


def _identity(owner: Owner) -> dict[str, Any]:
    container = owner.container
    return {
        "cgroup": owner.path,
        "unit": owner.unit,
        "runtime": container.runtime if container else None,
        "id": container.id if container else None,
        "pod_uid": container.pod_uid if container else None,
    }


def _facts(
    proc: ProcFs,
    owner: Owner,
    members: Sequence[ProcessInfo],
    host: Mapping[str, Optional[str]],
    known: Mapping[Identity, inside.Device],
    cgroup_root: str,
) -> dict[str, Any]:
    first = members[0]
    roots = _roots(proc, members) if owner.container else []
    seen = {device for _pid, root in roots for device in inside.devices_seen(root, known)}
    own = _namespaces(proc, first.pid)
    capabilities = _capabilities(proc, first.pid)
    return {
        "processes": [{"pid": one.pid, "name": one.name, "executable": one.executable} for one in members[:_MOST_LOOKED_INTO]],
        "memory_max": limit_of(cgroup_root, first.cgroups),
        "devices": [device.record() for device in sorted(seen, key=str)],
        "host_pid": None if None in (own["pid"], host["pid"]) else own["pid"] == host["pid"],
        # those of a user namespace of its own say nothing of the host
        "capabilities": [] if None not in (own["user"], host["user"]) and own["user"] != host["user"] else capabilities,
    }


def _roots(proc: ProcFs, members: Sequence[ProcessInfo]) -> list[tuple[int, str]]:
    """A process and its root for each mount namespace; of those of which it cannot be told which they are in, the first."""
    found: dict[Optional[str], tuple[int, str]] = {}
    for process in members[:_MOST_LOOKED_INTO]:
        found.setdefault(_namespaces(proc, process.pid)["mnt"], (process.pid, str(proc.root / str(process.pid) / "root")))
    return list(found.values())


def _namespaces(proc: ProcFs, pid: Union[int, str]) -> dict[str, Optional[str]]:
    found: dict[str, Optional[str]] = {}
    for kind in ("mnt", "pid", "user"):
        try:
            found[kind] = os.readlink(proc.root / str(pid) / "ns" / kind)
        except OSError:
            found[kind] = None
    return found


def _capabilities(proc: ProcFs, pid: int) -> Optional[list[str]]:
    """`all` is what a privileged container has; else those by which one leaves a container."""
    own, highest = _effective(proc, pid), _effective(proc, 1)
    if own is None:
        return None
    if highest and own & highest == highest:
        return ["all"]
    return [name for bit, name in _CAPABILITIES.items() if own >> bit & 1]


def _effective(proc: ProcFs, pid: int) -> Optional[int]:
    try:
        told = _EFFECTIVE.search((proc.root / str(pid) / "status").read_text(errors="replace"))
    except OSError:
        return None
    return int(told.group(1), 16) if told else None


def _environment(proc: ProcFs, members: Sequence[ProcessInfo], daemons: Sequence[Mapping[str, Any]], owner: Owner) -> dict[str, Any]:
    first, *others_said = [variables(proc, one.pid) for one in members[:_MOST_LOOKED_INTO]]
    begun = first or {}  # what image and runtime have set; what somebody sets later gives nobody a GPU
    named = sorted({one[PIPE] for one in (begun, *filter(None, others_said)) if PIPE in one})
    others = {daemon["control"]: daemon["pipe_directory"] for daemon in daemons if daemon["control"] and daemon["cgroup"] != owner.path}
    reached = {
        pipe
        for pid, root in (_roots(proc, members) if others else ())
        for pipe in inside.pipes_seen(root, named, inside.mount_points(proc, pid), others)
    }
    return {
        "environment_read": first is not None,
        "visible_devices": begun.get(VISIBLE),
        "mps_pipes": named,
        "mps_reached": sorted(reached),
    }


def variables(proc: ProcFs, pid: int) -> Optional[dict[str, str]]:
    """The two that are of use here."""
    try:
        with open(proc.root / str(pid) / "environ", "rb") as file:
            entries = file.read(_ENVIRONMENT_BYTES).split(b"\0")
    except OSError:
        return None
    pairs = (entry.decode(errors="replace").partition("=") for entry in entries)
    return {name: value[:_LONGEST_VALUE] for name, _equals, value in pairs if name in (VISIBLE, PIPE)}


def _daemons(proc: ProcFs, owners: Iterable[tuple[Owner, Sequence[ProcessInfo]]]) -> list[dict[str, Any]]:
    """MPS control daemons and servers. `control` is what the daemon's pipe is known by."""
    found = []
    for owner, members in owners:
        for process in members:
            if is_mps({"name": process.name, "executable": process.executable}):
                folder = (variables(proc, process.pid) or {}).get(PIPE, DEFAULT_PIPES)
                control = inside.control_pipe(str(proc.root / str(process.pid) / "root"), folder)
                found.append({"pid": process.pid, "name": process.name, "cgroup": owner.path, "pipe_directory": folder, "control": control})
    return found
