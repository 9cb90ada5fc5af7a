# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Set the limits of one cgroup: finds it, reads, asks whether it may be touched, writes through whoever manages it, reads again."""

from __future__ import annotations

import os
import posixpath
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Callable

from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup import around, limits, proof
from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.limit_files import LimitFiles, controllers_of, device_numbers
from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.limits import KEPT, State, Value, Want
from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.paths import owner_of, process_path
from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.state import CgroupError, Cgroups, wait
from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.systemd import Systemd, Unit, to_properties, unit_name
from ansible_collections.gpuops.remediation.plugins.module_utils._converge import Step
from ansible_collections.gpuops.remediation.plugins.module_utils._node.journal import Journal
from ansible_collections.gpuops.remediation.plugins.module_utils._node.node import Node

_RENEW_SECONDS = 5.0
_SETTLE_SECONDS = 10.0  # systemd answers first and writes then
_CLEARS_SECONDS = 1.0
_STRIDE_BYTES = 1 << 30  # of a step down: a write waits until the kernel has reclaimed
_ID = re.compile(r"^[0-9a-f]{12,64}$")
_UNIT = re.compile(r"\.(?:service|scope|slice|socket|mount|swap)$")


class NoCgroup(CgroupError):
    """There is none of that name, or more than one."""

    kind = "no_cgroup"


class LimitTask:
    """One run. `guard` is called before each write and while something is waited for."""

    def __init__(self, node: Node, params: Mapping[str, Any], systemd: Systemd | None, journal: Journal, guard: Callable[[], None]) -> None:
        self._node = node
        self._params = params
        self._systemd = systemd
        self._journal = journal
        self._guard = guard
        self._deadline = time.monotonic() + params["timeout_seconds"]
        self._unit: str | None = None  # whose own cgroup it is
        self._high_before: Value | None = None  # of a step down
        self._files = LimitFiles(node.cgroup_root)
        given = params["limits"] or {}
        self._files.require(controllers_of({name: value for name, value in given.items() if value is not None}))
        self.want = Want(
            limits.parse(given, node.proc.memory_bytes() if _has_percent(given) else 0, device_numbers),
            **{name: params[name] for name in ("state", "persistent", "force", "step_down")},
        )

    # --- read ---

    def read(self) -> State:
        self._guard()
        path, unit = self._find()
        exists = self._files.exists(path)
        if not exists and self.want.state == "existing":
            raise NoCgroup(f"there is no cgroup {path} below {self._files.root}")
        self._unit = unit.name if unit else None
        if unit and unit.transient:  # its limits end with it, whatever is said
            self.want = replace(self.want, persistent=False)
        return State(
            path,
            exists,
            self._files.limits(path) if exists else {},
            self._files.usage(path) if exists else {},
            "systemd" if unit else "cgroupfs",
            self._kept(unit) if unit else None,
        )

    def _find(self) -> tuple[str, Unit | None]:
        """The cgroup's path, and the unit whose own it is."""
        if self._params["unit"] is not None:
            unit = self._running(self._params["unit"])
            return unit.cgroup, unit
        path = self._path()
        return path, self._unit_at(path)

    def _path(self) -> str:
        if self._params["cgroup"] is not None:
            return str(posixpath.normpath("/" + self._params["cgroup"].strip("/")))
        if self._params["container"] is not None:
            return self._path_of_container(self._params["container"])
        return self._path_of_process(self._params["pid"], self._params["start_ticks"])

    def _running(self, name: str) -> Unit:
        if self._systemd is None:
            raise NoCgroup(f"systemd does not run here, so {name} is no unit")
        if not _UNIT.search(name):
            raise NoCgroup(f"{name} is no unit's whole name, such as {name}.service, or of no kind that has a cgroup")
        unit = self._systemd.read(name)
        if not unit.cgroup:
            raise NoCgroup(f"{name} does not run here")
        return unit

    def _path_of_container(self, name: str) -> str:
        if not _ID.match(name):
            raise NoCgroup(f"{name!r} is no container's id, or fewer than 12 digits of one")
        found = set()
        for here, folders, _files in os.walk(self._files.root):
            path = "/" + os.path.relpath(here, str(self._files.root))
            owner = owner_of(path)
            if owner and owner.container:
                folders.clear()
                if owner.container.id.startswith(name):
                    found.add(owner.path)
        if len(found) != 1:
            raise NoCgroup(f"{len(found)} containers here have an id that begins with {name}")
        return found.pop()

    def _path_of_process(self, pid: int, start_ticks: int | None) -> str:
        process = self._node.proc.process(pid)
        if process is None or start_ticks not in (None, process.start_ticks):
            raise NoCgroup(f"there is no process {pid}{' any more' if process is None else ': it is another one by now'}")
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

    def _kept(self, unit: Unit) -> dict[str, str]:
        persistent = self._systemd.persistent(unit.name) if self._systemd else set()
        return {
            name: "persistent" if name in persistent else "runtime"
            for name, value in self.want.limits.items()
            if unit.cgroup and name in KEPT and not limits.changes({name: unit.limits.get(name)}, {name: value})
        }

    # --- plan ---

    def plan(self, state: State) -> list[Step]:
        steps = limits.plan(state, self.want)
        if steps:
            self._refuse(state)
            self._refuse_values(state, [step for step in steps if step.action == "set"])
        return steps

    def _refuse(self, state: State) -> None:
        members = around.members(Cgroups.at(self._node.cgroup_root), state.path)
        proof.require_limitable(state.path, members, around.this_task(), self._params["protect"])
        if self._systemd and state.managed_by == "cgroupfs":
            self._refuse_place(self._systemd, state)
        if self.want.state == "absent" and state.exists:
            if state.managed_by == "systemd" and not state.path.endswith(".slice"):
                raise CgroupError(f"{state.path} is a unit's, which ends with its unit")
            if not self._files.empty(state.path):
                raise CgroupError(f"{state.path} is not empty, and removing a cgroup ends nobody")

    @staticmethod
    def _refuse_place(systemd: Systemd, state: State) -> None:
        """What is made beside systemd's units, systemd does not know and may remove; below a unit it takes the controllers away again."""
        owner = owner_of(state.path if state.exists else posixpath.dirname(state.path))
        if owner is None:
            delegated = state.exists  # by those who do without systemd
        elif owner.container:
            delegated = True
        else:
            unit = systemd.read(unit_name(owner.path))
            delegated = unit.delegates and unit.cgroup == owner.path
        if delegated:
            return
        if state.exists:
            raise CgroupError(
                f"{state.path} is not delegated: it is below a unit without Delegate=yes, or another systemd than the node's manages it, such as a user's"
            )
        raise CgroupError(
            f"{state.path} cannot be made: systemd manages what is above it. Name a slice, or a cgroup below a unit with Delegate=yes"
        )

    def _refuse_values(self, state: State, steps: Sequence[Step]) -> None:
        """What systemd, or the cgroup, cannot keep."""
        names = {name for step in steps for name in step.after}
        if self._unit:
            to_properties({name: value for name, value in self.want.limits.items() if name in names})
        elif state.exists:
            for name in names:
                self._files.require_file(state.path, name)

    def predict(self, state: State, steps: list[Step]) -> State:
        return limits.predict(state, steps, self.want)

    # --- apply ---

    def apply(self, step: Step) -> None:
        try:
            self._apply(step)
        except BaseException:
            if self._high_before is not None:  # else a soft limit that nobody asked for would stay
                self._files.write(step.target, "memory_high", self._high_before)
            raise

    def _apply(self, step: Step) -> None:
        self._guard()
        self._journal.intended(step.action, step.target, step.before, step.after)
        if step.action == "create":
            self._create(step.target)
        elif step.action == "remove":
            self._remove(step.target)
        elif step.action == "step_down":
            self._step_down(step)
        else:
            self._set(step)
        seen = self._files.limits(step.target) if step.action == "set" else step.after
        self._journal.applied(step.action, step.target, step.before, {name: limits.shown(seen.get(name)) for name in step.after})

    def _create(self, path: str) -> None:
        if self._unit and self._systemd:
            self._systemd.start(self._unit)
            wait(lambda: self._files.exists(path), time.monotonic() + _SETTLE_SECONDS)
        else:
            self._files.create(path, controllers_of(self.want.limits))

    def _remove(self, path: str) -> None:
        if self._unit and self._systemd:
            self._systemd.stop(self._unit)
            wait(lambda: not self._files.exists(path), time.monotonic() + _SETTLE_SECONDS)
        else:
            self._files.remove(path)

    def _step_down(self, step: Step) -> None:
        """Below the soft limit the kernel reclaims, and slows down who takes more; nobody is killed. In vain, it is taken back.

        It is written past systemd, also where systemd manages the cgroup: it passes, and all of systemd would wait for the kernel.
        """
        limit, soft = step.after["memory_current"], step.after["memory_high"]
        self._high_before = step.before["memory_high"]
        high = self._used(step.target)
        while high > soft:
            high = max(soft, high - _STRIDE_BYTES)
            self._files.write(step.target, "memory_high", high)
            self._in_time(step.target, limit)
        while not wait(lambda: self._used(step.target) <= limit, min(self._deadline, time.monotonic() + _RENEW_SECONDS)):
            self._in_time(step.target, limit)

    def _in_time(self, path: str, limit: int) -> None:
        self._guard()
        if time.monotonic() >= self._deadline and self._used(path) > limit:
            raise limits.LimitBelowUse(
                f"what is in use of {path}, {self._used(path)} bytes, did not sink to {limit} within "
                f"{self._params['timeout_seconds']:.0f} s; its limits are as before",
                limit_bytes=limit,
                usage=self._files.usage(path),
            )

    def _used(self, path: str) -> int:
        return self._files.usage(path).get("memory_current", 0)

    def _set(self, step: Step) -> None:
        """The soft memory limit last: after a step down it holds until the hard one stands."""
        wanted = {name: self.want.limits[name] for name in step.after}
        most, high = wanted.get("memory_max"), wanted.pop("memory_high", None)
        if isinstance(most, int) and most < self._used(step.target) and not self.want.force:  # it grew since it was read
            raise limits.below_use(State(step.target, True, {}, self._files.usage(step.target)), "memory_max", most)
        self._write(step.target, wanted)
        if high is not None:
            self._write(step.target, {"memory_high": high})
        elif self._high_before is not None:
            self._files.write(step.target, "memory_high", self._high_before)
        self._high_before = None

    def _write(self, path: str, values: Mapping[str, Value]) -> None:
        kept = {name: value for name, value in values.items() if self._unit and name in KEPT}
        rest = {name: value for name, value in values.items() if name not in kept}
        if self._unit and self._systemd and kept:
            clears = any(name in limits.MEMORY for name in kept)  # systemd writes it anew with each memory property
            if clears and self._grouped(path):
                rest.setdefault("memory_oom_group", True)
            held = self._systemd.persistent(self._unit)  # a file in /etc goes before one in /run
            for persistent in (False, True):
                some = {name: value for name, value in kept.items() if (self.want.persistent or name in held) is persistent}
                if some:
                    self._systemd.set(self._unit, some, persistent)
            wait(lambda: not limits.changes(self._files.limits(path), kept), time.monotonic() + _SETTLE_SECONDS)
            if clears and rest.get("memory_oom_group"):
                wait(lambda: not self._grouped(path), time.monotonic() + _CLEARS_SECONDS)
        for name, value in rest.items():
            self._files.write(path, name, value)

    def _grouped(self, path: str) -> bool:
        return self._files.limits(path)["memory_oom_group"] is True


def _has_percent(given: Mapping[str, Any]) -> bool:
    return any("%" in str(given.get(name) or "") for name in limits.MEMORY)


def slice_path(name: str) -> str | None:
    """Where systemd puts a slice: a-b.slice is below a.slice."""
    if not name.endswith(".slice") or name == "-.slice":
        return None
    parts = name[: -len(".slice")].split("-")
    return "".join(f"/{'-'.join(parts[: depth + 1])}.slice" for depth in range(len(parts)))
