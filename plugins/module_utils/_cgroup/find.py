# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Which cgroup is meant, by its path, a unit, a container or a process, and whether it may be touched."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Mapping
from typing import Any

from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup import around, proof
from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.paths import owner_of, process_path
from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.state import CgroupError, Cgroups
from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.systemd import Systemd, Unit, unit_name
from ansible_collections.gpuops.remediation.plugins.module_utils._node.procfs import ProcFs

_ID = re.compile(r"^[0-9a-f]{12,64}$")
_UNIT = re.compile(r"\.(?:service|scope|slice|socket|mount|swap)$")


class NoCgroup(CgroupError):
    """There is none of that name, or more than one."""

    kind = "no_cgroup"


class NotThere(NoCgroup):
    """The name is a good one, and nothing runs under it."""


class Finder:
    def __init__(self, cgroup_root: str, proc: ProcFs, systemd: Systemd | None) -> None:
        self._root = cgroup_root
        self._proc = proc
        self._systemd = systemd

    def find(self, params: Mapping[str, Any]) -> tuple[str, Unit | None]:
        """The cgroup's path, and the unit whose own it is. By one of the options `cgroup`, `unit`, `container` and `pid`."""
        if params["unit"] is not None:
            unit = self._running(params["unit"])
            return unit.cgroup, unit
        path = self._path(params)
        return path, self._unit_at(path)

    def require_touchable(self, path: str, protect: list[str]) -> None:
        proof.require_touchable(path, around.members(Cgroups.at(self._root), path), around.this_task(), protect)

    def _path(self, params: Mapping[str, Any]) -> str:
        if params["cgroup"] is not None:
            return str(posixpath.normpath("/" + params["cgroup"].strip("/")))
        if params["container"] is not None:
            return self._path_of_container(params["container"])
        return self._path_of_process(params["pid"], params["start_ticks"])

    def _running(self, name: str) -> Unit:
        if self._systemd is None:
            raise NoCgroup(f"systemd does not run here, so {name} is no unit")
        if not _UNIT.search(name):
            raise NoCgroup(f"{name} is no unit's whole name, such as {name}.service, or of no kind that has a cgroup")
        unit = self._systemd.read(name)
        if not unit.cgroup:
            raise NotThere(f"{name} does not run here")
        return unit

    def _path_of_container(self, name: str) -> str:
        if not _ID.match(name):
            raise NoCgroup(f"{name!r} is no container's id, or fewer than 12 digits of one")
        found = set()
        for here, folders, _files in os.walk(self._root):
            path = "/" + os.path.relpath(here, self._root)
            owner = owner_of(path)
            if owner and owner.container:
                folders.clear()
                if owner.container.id.startswith(name):
                    found.add(owner.path)
        if len(found) != 1:
            raise (NoCgroup if found else NotThere)(f"{len(found)} containers here have an id that begins with {name}")
        return found.pop()

    def _path_of_process(self, pid: int, start_ticks: int | None) -> str:
        process = self._proc.process(pid)
        if process is None or start_ticks not in (None, process.start_ticks):
            raise NotThere(f"there is no process {pid}{' any more' if process is None else ': it is another one by now'}")
        path = process_path(process.cgroups) or "/"
        owner = owner_of(path)
        if owner is None:
            raise proof.NotProven(f"pid {pid} is in {path}, which is neither one container's nor one unit's", suspects=[])
        return owner.path

    def _unit_at(self, path: str) -> Unit | None:
        """The unit whose own cgroup this is, or would be; below a unit systemd leaves the files to others."""
        name = unit_name(path)
        if self._systemd is None or not _UNIT.search(name):
            return None
        unit = self._systemd.read(name)
        return unit if path in (unit.cgroup, slice_path(name)) else None


def slice_path(name: str) -> str | None:
    """Where systemd puts a slice: a-b.slice is below a.slice."""
    if not name.endswith(".slice") or name == "-.slice":
        return None
    parts = name[: -len(".slice")].split("-")
    return "".join(f"/{'-'.join(parts[: depth + 1])}.slice" for depth in range(len(parts)))
