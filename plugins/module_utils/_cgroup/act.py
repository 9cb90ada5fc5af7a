# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Freeze, thaw or kill a cgroup, end a GPU's holders, or wait until it has none: reads, asks for the proof, acts, reads again."""

from __future__ import annotations

import contextlib
import os
import posixpath
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Callable

from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup import around, proof
from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.paths import owner_of
from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.proof import Target
from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.state import CgroupError, Cgroups, wait
from ansible_collections.gpuops.remediation.plugins.module_utils._converge import Step
from ansible_collections.gpuops.remediation.plugins.module_utils._errors import RemediationError
from ansible_collections.gpuops.remediation.plugins.module_utils._gpu import info
from ansible_collections.gpuops.remediation.plugins.module_utils._node import pidfd
from ansible_collections.gpuops.remediation.plugins.module_utils._node.journal import Journal
from ansible_collections.gpuops.remediation.plugins.module_utils._node.node import Node
from ansible_collections.gpuops.remediation.plugins.module_utils._node.procfs import ProcFs, parse_seconds

_NVML_SECONDS = 10.0
_RENEW_SECONDS = 5.0
_KILL_SECONDS = 5.0  # for one cgroup, so that one which does not end leaves time for the others


class StillHeld(RemediationError):
    """What was to end has not ended in time."""

    kind = "still_held"


class UnknownGpu(RemediationError):
    kind = "unknown_gpu"


@dataclass(frozen=True)
class Want:
    """`cgroup` or `pids` narrow what is touched to one container or process; without them it is every holder of the GPU."""

    state: str
    gpu: str | None = None
    cgroup: str | None = None
    pids: Sequence[Mapping[str, int]] = ()
    fault_time: float | None = None
    stage_started_at: float | None = None
    allowed_holders: Sequence[str] = ()
    protect: Sequence[str] = ()
    grace_seconds: float = 30.0

    @classmethod
    def from_params(cls, params: Mapping[str, Any]) -> Want:
        def seconds(name: str) -> float | None:
            return parse_seconds(params[name]) if params[name] else None

        if params["pids"] == []:
            raise proof.NotProven("pids names nobody, which is not everybody", suspects=[])
        return cls(
            **{name: params[name] for name in ("state", "gpu", "allowed_holders", "protect", "grace_seconds")},
            pids=params["pids"] or (),
            cgroup=posixpath.normpath("/" + params["cgroup"].strip("/")) if params["cgroup"] else None,
            fault_time=seconds("fault_time"),
            stage_started_at=seconds("stage_started_at"),
        )

    @property
    def rules(self) -> proof.Rules:
        narrow = self.cgroup or self.pids
        return proof.Rules(self.fault_time if narrow else self.stage_started_at, self.protect)

    def names(self, process: Mapping[str, Any]) -> bool:
        """Whether it is one of those meant. A pid whose start differs is another process by now."""
        if self.pids and not any((one["pid"], one["start_ticks"]) == (process["pid"], process["start_ticks"]) for one in self.pids):
            return False
        return not self.cgroup or f"{process['cgroup']}/".startswith(f"{self.cgroup.rstrip('/')}/")


@dataclass(frozen=True)
class State:
    gpu: Mapping[str, Any] | None
    targets: Sequence[Target]
    start_of: Mapping[int, float] = field(default_factory=dict)

    def show(self) -> dict[str, Any]:
        return {
            "gpu": (self.gpu["uuid"] or self.gpu["pci_bus_id"] or self.gpu["device_path"]) if self.gpu else None,
            "cgroups": [
                {
                    "path": target.path,
                    "frozen": target.frozen,
                    "processes": sorted(member.pid for member in target.members),
                    "holders": [process["pid"] for process in target.holders],
                }
                for target in sorted(self.targets, key=lambda target: target.path)
            ],
        }


class CgroupTask:
    """One run. `guard` is called before each write and while something is waited for."""

    def __init__(self, node: Node, want: Want, journal: Journal, guard: Callable[[], None], timeout_seconds: float) -> None:
        self._node = node
        self._want = want
        self._journal = journal
        self._guard = guard
        self._deadline = time.monotonic() + timeout_seconds
        self._cgroups = Cgroups.at(node.cgroup_root)
        self._pidfds: dict[tuple[int, int], int] = {}
        self._grace_ends: float | None = None
        self._terminated: set[str] = set()
        self._acted_on: set[str] = set()

    @contextlib.contextmanager
    def holding(self) -> Iterator[CgroupTask]:
        """Every process that was looked at is held by a descriptor until all is done."""
        try:
            yield self
        finally:
            for descriptor in self._pidfds.values():
                os.close(descriptor)

    # --- read ---

    def read(self) -> State:
        """Once something was done, NVML is given the time that is left to notice; and so are holders that are only waited for."""
        self._guard()
        state = self._read()
        while self._waits_for(state) and time.monotonic() < self._deadline:
            time.sleep(0.5)
            self._guard()
            state = self._read()
        return state

    def _waits_for(self, state: State) -> bool:
        if self._want.state == "free":
            return any(target.holders for target in state.targets)
        return bool(self._acted_on) and any(self._ending(target) for target in state.targets)

    def _ending(self, target: Target) -> bool:
        """Not there yet, and ours to wait for: it was acted on, or NVML still lists what /proc has no more."""
        gone = any(process["start_ticks"] is None for process in target.holders)
        return self._differs(target) and (target.path in self._acted_on or gone)

    def _read(self) -> State:
        if self._want.state == "thawed":
            return State(None, [self._target(str(self._want.cgroup), [])])
        gpu = self._gpu()
        holders = [one for one in gpu["processes"] if proof.counts(one, self._want.allowed_holders) and self._want.names(one)]
        paths: dict[str, list[Mapping[str, Any]]] = {path: [] for path in {*self._acted_on, self._want.cgroup} if path}
        for process in holders:
            owner = owner_of(process["cgroup"] or "")
            paths.setdefault(self._want.cgroup or (owner.path if owner else process["cgroup"] or "/"), []).append(process)
        start_of = {process["pid"]: start for process in holders for start in [self._hold(process)] if start is not None}
        return State(gpu, [self._target(path, found) for path, found in paths.items()], start_of)

    def _gpu(self) -> Mapping[str, Any]:
        name = str(self._want.gpu)
        by_path = name.startswith("/")
        limit = max(1.0, min(_NVML_SECONDS, self._deadline - time.monotonic()))
        told = info.read(self._node, [] if by_path else [name], timeout_seconds=limit, with_kernel_log=False, remember=False)
        found = [gpu for gpu in told["gpus"] if (gpu["device_path"] == name if by_path else gpu["uuid"] or gpu["pci_bus_id"])]
        if len(found) != 1:
            if any(one["source"] == "nvml" for one in told["missing"]):
                raise proof.NotProven(
                    f"NVML does not answer, and without it nobody knows which GPU is {name}", missing=told["missing"], suspects=[]
                )
            raise UnknownGpu(f"there is no GPU {name} on this node", missing=told["missing"])
        return dict(found[0])

    def _hold(self, process: Mapping[str, Any]) -> float | None:
        """Its start, once a descriptor holds it and /proc still tells the same of it as when it was listed."""
        key = (process["pid"], process["start_ticks"])
        if process["start_ticks"] is None:
            return None
        if key not in self._pidfds:
            descriptor = pidfd.open_pid(process["pid"])
            if descriptor is None:
                return None
            self._pidfds[key] = descriptor
        found = self._node.proc.process(process["pid"])
        return found.start_time if found and found.start_ticks == process["start_ticks"] else None

    def _target(self, path: str, holders: Sequence[Mapping[str, Any]]) -> Target:
        if owner_of(path) is None:  # refused whoever is in it, so that the whole tree need not be walked
            return Target(path, holders, [])
        return Target(path, holders, around.members(self._cgroups, path), self._cgroups.frozen(path))

    # --- plan ---

    def plan(self, state: State) -> list[Step]:
        todo = [target for target in state.targets if self._differs(target)]
        if self._acted_on or self._want.state == "free":
            return self._judge_end(state, todo)
        if self._want.cgroup and owner_of(self._want.cgroup) is None:
            raise proof.NotProven(f"{self._want.cgroup} is neither one container's nor one unit's", suspects=[])
        if self._want.state == "thawed":
            return [Step("thaw", target.path, {"frozen": True}, {"frozen": False}) for target in todo]
        if state.gpu is None:
            raise proof.NotProven("without a GPU there is no proof", suspects=[])
        if todo or state.gpu["processes_source"] is None or self._strays(state):
            self._prove(state, state.gpu, todo)
        if self._want.state == "frozen":
            return [Step("freeze", target.path, {"frozen": False}, {"frozen": True}) for target in todo]
        gentle = [target for target in todo if not self._want.cgroup and not target.frozen and self._want.grace_seconds]
        return [
            *(Step("terminate", target.path, {"processes": [one["pid"] for one in target.holders]}, None) for target in gentle),
            *(Step("kill", target.path, {"processes": sorted(one.pid for one in target.members)}, {"processes": []}) for target in todo),
        ]

    def _judge_end(self, state: State, left: Sequence[Target]) -> list[Step]:
        if left:
            names = ", ".join(f"{one['pid']} ({one['name']})" for target in left for one in self._left(target)["processes"])
            acted = bool(self._acted_on)
            raise StillHeld(f"not {self._want.state} in time: {names}", changed=acted, left=[self._left(target) for target in left])
        if state.gpu is not None and state.gpu["processes_source"] is None:
            raise StillHeld("neither NVML nor the device file says whether the GPU is free", changed=bool(self._acted_on), left=[])
        return []

    def _differs(self, target: Target) -> bool:
        if self._want.state == "free":
            return bool(target.holders)
        if self._want.state != "killed":
            return target.frozen != (self._want.state == "frozen") and bool(target.members or target.holders)
        whole = target.path in self._acted_on or (self._want.cgroup is not None and not self._want.pids)
        return bool(target.holders) or (whole and bool(target.members))

    def _strays(self, state: State) -> list[dict[str, Any]]:
        """Suspects that live and are not on the GPU."""
        listed = {process["pid"] for target in state.targets for process in target.holders}
        alive = [one for one in self._want.pids if one["pid"] not in listed and self._node.proc.alive(one["pid"], one["start_ticks"])]
        return [{"pid": one["pid"], "start_ticks": one["start_ticks"], **self._node.proc.describe(one["pid"])} for one in alive]

    def _prove(self, state: State, gpu: Mapping[str, Any], todo: Sequence[Target]) -> None:
        proof.require_witness(gpu)
        proof.refuse_mps(gpu)
        strays = self._strays(state)
        if strays or any(not target.holders for target in todo):
            where = f"no process of {self._want.cgroup}" if not strays else "pid " + ", ".join(str(one["pid"]) for one in strays)
            raise proof.NotProven(f"{where} is on GPU {self._want.gpu}", suspects=proof.suspects(strays, "is not on that GPU"))
        proof.require(todo, around.this_task(), self._want.rules, state.start_of)

    def _left(self, target: Target) -> dict[str, Any]:
        proc = ProcFs("/proc")
        found = [proc.process(pid) for pid in {one.pid for one in target.members} | {one["pid"] for one in target.holders}]
        return {
            "cgroup": target.path,
            "frozen": target.frozen,
            "processes": [{"pid": one.pid, "name": one.name, "state": one.state, "start_ticks": one.start_ticks} for one in found if one],
            "holders": [process["pid"] for process in target.holders],
        }

    @staticmethod
    def predict(state: State, steps: Sequence[Step]) -> State:
        done = {step.target: step.action for step in steps}
        return replace(state, targets=[_predicted(target, done.get(target.path)) for target in state.targets])

    # --- apply ---

    def apply(self, step: Step) -> None:
        self._guard()
        self._journal.intended(step.action, step.target, step.before, step.after)
        self._acted_on.add(step.target)
        if step.action == "terminate":
            self._terminate(step)
        elif step.action == "kill":
            self._kill(step)
        else:
            self._cgroups.set_frozen(step.target, step.action == "freeze", self._deadline)
        seen = self._target(step.target, [])
        self._journal.applied(
            step.action, step.target, step.before, {"frozen": seen.frozen, "processes": sorted(one.pid for one in seen.members)}
        )

    def _terminate(self, step: Step) -> None:
        """All holders get the same grace period: it begins with the first."""
        for (pid, _ticks), descriptor in self._pidfds.items():
            if pid in step.before["processes"]:
                pidfd.send(descriptor, signal.SIGTERM)
        self._terminated.add(step.target)
        if self._grace_ends is None:
            self._grace_ends = min(time.monotonic() + self._want.grace_seconds, self._deadline - _KILL_SECONDS)

    def _kill(self, step: Step) -> None:
        def empty() -> bool:
            return not self._cgroups.members(step.target)

        ends = self._grace_ends if step.target in self._terminated and self._grace_ends else time.monotonic()
        while not wait(empty, min(ends, time.monotonic() + _RENEW_SECONDS)) and time.monotonic() < ends:
            self._guard()
        if not empty():
            self._guard()
            with contextlib.suppress(CgroupError):  # reading again tells what came of it
                self._cgroups.kill(step.target, min(self._deadline, time.monotonic() + _KILL_SECONDS))


def _predicted(target: Target, action: str | None) -> Target:
    if action == "kill":
        return Target(target.path, [], [], False)
    return replace(target, frozen=action == "freeze") if action else target
