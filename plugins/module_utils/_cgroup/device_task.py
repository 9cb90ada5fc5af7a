# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Brings the device filter of one cgroup to where it is wanted, and removes those whose cgroups have ended."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Callable

from ansible_collections.gpuops.remediation.plugins.module_utils._bpf import device_filter
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.device_filter import DeviceFilters
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.device_program import REST
from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.devices import Device, Policy
from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.find import Finder, NotThere
from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.limit_files import require_v2
from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.state import Cgroups
from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.systemd import Systemd
from ansible_collections.gpuops.remediation.plugins.module_utils._converge import Step, converge
from ansible_collections.gpuops.remediation.plugins.module_utils._gpu import open_files
from ansible_collections.gpuops.remediation.plugins.module_utils._gpu.device_nodes import DeviceNodes, device_of
from ansible_collections.gpuops.remediation.plugins.module_utils._node.journal import Journal
from ansible_collections.gpuops.remediation.plugins.module_utils._node.lock import guard
from ansible_collections.gpuops.remediation.plugins.module_utils._node.node import Node
from ansible_collections.gpuops.remediation.plugins.module_utils._node.procfs import NodeUnreadable

_ATTACH, _REPLACE, _REMOVE = "attach", "replace", "remove"
_LOCK = "cgroup_devices.lock"


@dataclass(frozen=True)
class State:
    """`cgroup` and `id` are None where there is no such cgroup, `policy` where it has no filter.

    `current`: the filter's program is that of this version. `left_over` are the ids of cgroups whose filter ended with them.
    """

    cgroup: str | None
    id: int | None
    policy: Policy | None
    current: bool
    left_over: tuple[int, ...]


class DeviceTask:
    """One run. `keep_lock` is called before what is there is read and before each write."""

    def __init__(
        self, node: Node, params: Mapping[str, Any], systemd: Systemd | None, journal: Journal, keep_lock: Callable[[], None]
    ) -> None:
        self._node, self._params, self._journal, self._guard = node, params, journal, keep_lock
        self._finder = Finder(node.cgroup_root, node.proc, systemd)
        self._filters = DeviceFilters(params["bpffs_dir"])
        self._ids: dict[str, int] = {}  # by the target of a step
        self._ended: set[int] | None = None  # those of the first look: others may end while this run lasts
        self._denied: Mapping[bytes, int] = {}
        self._want: Policy | None = None
        self._nodes = DeviceNodes.read(node.proc)
        if params["state"] == "present":
            require_v2(Path(node.cgroup_root))
            self._want = Policy.of(self._nodes.wanted(params), self._nodes.guarded, params["deny_others"])
        if self._want or self._filters.ids():
            device_filter.require(params["bpffs_dir"])

    # --- read ---

    def read(self) -> State:
        self._guard()
        cgroup = self._find()
        own = self._folder(cgroup).stat().st_ino if cgroup else None
        filters = {number: self._filters.read(number) for number in self._filters.ids()}
        found = filters.get(own) if own else None
        if found:
            self._denied = found.denied
        if self._ended is None:
            self._ended = {number for number, one in filters.items() if one is None}
        left_over = tuple(number for number, one in filters.items() if one is None and number in self._ended)
        self._ids = {_left_over(number): number for number in left_over}
        if cgroup and own:
            self._ids[cgroup] = own
        return State(cgroup, own, Policy.from_entries(found.rules) if found else None, bool(found and found.current), left_over)

    def _find(self) -> str | None:
        try:
            cgroup, _unit = self._finder.find(self._params)
            if not self._folder(cgroup).is_dir():
                raise NotThere(f"there is no cgroup {cgroup} below {self._node.cgroup_root}")
        except NotThere:
            if self._want:
                raise
            return None
        return cgroup

    def _folder(self, cgroup: str) -> Path:
        return Path(self._node.cgroup_root, cgroup.strip("/"))

    # --- plan ---

    def plan(self, state: State) -> list[Step]:
        steps = [Step(_REMOVE, _left_over(number), None, None) for number in state.left_over]
        if state.cgroup is None or (state.policy == self._want and (state.current or not self._want)):
            return steps
        if self._want:
            self._finder.require_touchable(state.cgroup, self._params["protect"])
        action = _REMOVE if self._want is None else _REPLACE if state.policy else _ATTACH
        return [*steps, Step(action, state.cgroup, self._show_policy(state.policy), self._show_policy(self._want))]

    def predict(self, state: State, steps: Sequence[Step]) -> State:
        wanted = self._want if state.cgroup else None
        return replace(state, policy=wanted, current=bool(wanted), left_over=())

    # --- apply ---

    def apply(self, step: Step) -> None:
        self._guard()
        own = self._ids[step.target]
        self._journal.intended(step.action, step.target, step.before, step.after)
        if step.action == _REMOVE or not self._want:
            self._filters.remove(own)
        elif step.action == _ATTACH:
            self._filters.attach(own, str(self._folder(step.target)), self._want.entries())
        else:
            self._filters.replace(own, self._want.entries())
        self._journal.applied(step.action, step.target, step.before, step.after)

    # --- show ---

    def show(self, state: State) -> dict[str, Any]:
        return {
            "cgroup": state.cgroup,
            "filter": self._show_policy(state.policy),
            "left_over": [str(number) for number in state.left_over],
        }

    def _show_policy(self, policy: Policy | None) -> dict[str, Any] | None:
        if policy is None:
            return None
        return {
            "allowed": [self._show_device(device) for device in sorted(policy.allowed, key=_order)],
            "guarded_majors": sorted(policy.guarded),
            "deny_others": policy.deny_others,
        }

    def _show_device(self, device: Device) -> dict[str, str | None]:
        return {"device": str(device), "path": self._nodes.path(device)}

    def denied(self) -> list[dict[str, Any]]:
        """By the filter that is there, or was there before it was removed. Devices that had no room of their own come last, as one."""
        counted = {Device.from_key(key): count for key, count in self._denied.items() if key != REST}
        rest = [{"device": None, "path": None, "opens": count} for count in [self._denied.get(REST, 0)] if count]
        return [{**self._show_device(device), "opens": counted[device]} for device in sorted(counted, key=_order)] + rest

    def still_open(self, cgroup: str | None) -> list[dict[str, Any]]:
        """What processes of the cgroup have open though it is denied: a filter asks only when something is opened."""
        if cgroup is None or self._want is None:
            return []
        members = Cgroups.at(self._node.cgroup_root).members(cgroup)
        return [found for member in members for found in self._still_open(member.pid, self._want)]

    def _still_open(self, pid: int, policy: Policy) -> Iterator[dict[str, Any]]:
        process = self._node.proc.process(pid)
        if process is None:
            return
        told = {"pid": pid, "start_ticks": process.start_ticks, "name": process.name}
        try:
            opened = {(path, device_of(found)) for path, found in open_files.opened(str(self._node.proc.root / str(pid) / "fd"))}
        except FileNotFoundError:
            return
        except OSError as error:
            raise NodeUnreadable(f"cannot read what pid {pid} has open: {error}") from error
        for path, device in sorted(opened, key=str):
            if device and not policy.allows(device):
                yield {**told, "device": str(device), "path": path}


def filter_devices(params: Mapping[str, Any], check_mode: bool) -> dict[str, Any]:
    """From the options of cgroup_devices to its result."""
    node = Node.from_params(params)
    with contextlib.nullcontext() if check_mode else node.state.alone(_LOCK, params["timeout_seconds"]):
        keep_lock = guard(node, params, check_mode=check_mode)
        task = DeviceTask(node, params, Systemd.running(node.cgroup_root), Journal.from_params(node, params), keep_lock)
        outcome = converge(task.read, task.plan, task.predict, task.apply, check_mode=check_mode)
        return {
            **outcome.result(task.show),
            "denied": task.denied(),
            "still_open": task.still_open(outcome.after.cgroup),
            "undo": _undo(outcome.before.policy),
        }


def _undo(policy: Policy | None) -> dict[str, Any]:
    if policy is None:
        return {"state": "absent"}
    return {
        "state": "present",
        "devices": [str(device) for device in sorted(policy.allowed, key=_order)],
        "deny_others": policy.deny_others,
    }


def _left_over(number: int) -> str:
    return f"the filter of cgroup {number}, which has ended"


def _order(device: Device) -> tuple[str, int, int]:
    return device.kind, device.major, -1 if device.minor is None else device.minor
