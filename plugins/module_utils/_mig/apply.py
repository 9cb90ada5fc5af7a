# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.
"""The steps of a plan, done one by one in a child, and taken back if one fails. What the child was about to do it says and writes down first.

A call that hangs ends the child. What it did until then its parent knows, and takes back in another one.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Callable, Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._errors import RemediationError
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.errors import LockLost
from ansible_collections.gpuops.remediation.plugins.module_utils._mig import steps as step
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.device import Device
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.errors import MigError, NotAsWanted, Refused, TimeIsUp
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.layout import Layout
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.planner import GPU, Plan, plan
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.reading import Reading, step_from_data
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.reset import RESET_SECONDS
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.wants import Want
from ansible_collections.gpuops.remediation.plugins.module_utils._node.journal import Journal
from ansible_collections.gpuops.remediation.plugins.module_utils._node.watchdog import Emit


@dataclass(frozen=True)
class Order:
    """What one GPU shall have, and what must not be touched for it."""

    uuid: str
    want: Want
    busy: Collection[str] = ()
    may_move: bool = True
    allow_reset: bool = False

    def plan(self, reading: Reading) -> Plan:
        """What is busy and has gone by itself is in nobody's way."""
        if reading.model is None or reading.layout is None:
            raise LookupError("a GPU without MIG has no plan")
        busy = [name for name in self.busy if name == GPU or name in step.names(reading.layout)]
        return plan(reading.model, reading.layout, self.want, busy, resetless=reading.resetless, may_move=self.may_move)


@dataclass
class Told:
    """What a child has told.

    `made` are the steps that are certain. `open` is the one that it began, and never told the end of nor that it was refused before anything was done.
    """

    made: list[step.MigStep] = field(default_factory=list)
    open: Optional[step.MigStep] = None
    reset_required: bool = False
    problems: list[dict[str, Any]] = field(default_factory=list)

    @property
    def attempted(self) -> list[step.MigStep]:
        return [*self.made, *([self.open] if self.open else [])]


def heard(items: Iterable[Mapping[str, Any]], why: Optional[str]) -> Told:
    told, call = Told(), None
    for item in items:
        call = item.get("begins")
        if "intended" in item:
            told.open = step_from_data(item["intended"])
        elif "made" in item:
            told.made.append(step_from_data(item["made"]))
            told.open = None
        elif "refused" in item:
            told.open = None
        elif "problem" in item:
            told.problems.append(item["problem"])
        elif "reset_required" in item:
            told.reset_required = True
    if why is not None:
        told.problems.append(Refused(f"{call}: {why}" if call else why, call=call).failure())
    return told


class Child:
    """Works on one GPU. `keep_lock` is called before each write."""

    def __init__(self, device: Device, journal: Journal, keep_lock: Callable[[], None], emit: Emit, until: float) -> None:
        self._device = device
        self._journal = journal
        self._keep_lock = keep_lock
        self._emit = emit
        self._until = until

    def change(self, order: Order) -> None:
        """Planned again where only the driver knows better, which is once there is an instance of that kind to ask about."""
        try:
            reading = self._device.read()
            again = True
            while again:
                again = False
                made = order.plan(reading)
                for todo in made.steps:
                    if todo.action == step.RESET and not order.allow_reset:
                        self._emit({"reset_required": True})
                        return
                    reading = self._do(order.uuid, todo, reading)
                    if todo.action == step.CREATE and _misplaced(todo, made, reading):
                        again = True
                        break
        except RemediationError as error:
            self._emit({"problem": error.failure()})

    def take_back(self, uuid: str, attempted: Sequence[step.MigStep], prior: Layout, allow_reset: bool) -> None:
        """Only what these steps did, in the places where it was. What does not work is told, and the rest done all the same."""
        try:
            reading = self._device.read()
            if prior.mig:
                reading = self._mode_back(uuid, attempted, prior, reading, allow_reset)
            layout = reading.layout or Layout(False)
            for one in step.undo(layout, attempted) if layout.mig else ():
                reading = self._try(uuid, one, reading)
            if not prior.mig:
                self._mode_back(uuid, attempted, prior, reading, allow_reset)
        except RemediationError as error:
            self._emit({"problem": error.failure()})

    def _mode_back(self, uuid: str, attempted: Sequence[step.MigStep], prior: Layout, reading: Reading, allow_reset: bool) -> Reading:
        """The mode, and then the one that was pending before; both only where this run set one."""
        if all(one.instance for one in attempted):
            return reading
        layout = reading.layout or Layout(False)
        if layout.mig != prior.mig:
            for one in step.mode_steps(layout.mig, layout.to_be, prior.mig, reading.resetless):
                if one.action != step.RESET or allow_reset:
                    reading = self._try(uuid, one, reading)
        layout = reading.layout or Layout(False)
        if layout.mig == prior.mig and layout.to_be != prior.to_be:
            reading = self._try(uuid, step.set_mode(layout.to_be, prior.to_be, reading.resetless), reading)
        return reading

    def _try(self, uuid: str, todo: step.MigStep, reading: Reading) -> Reading:
        try:
            return self._do(uuid, todo, reading)
        except (LockLost, TimeIsUp):
            raise
        except RemediationError as error:
            self._emit({"problem": error.failure()})
            return self._device.read()

    def _do(self, uuid: str, todo: step.MigStep, before: Reading) -> Reading:
        if time.monotonic() + (RESET_SECONDS if todo.action == step.RESET else 0) >= self._until:
            raise TimeIsUp(f"no time is left to {todo.action} {todo.target}")
        self._keep_lock()
        target = f"{uuid} {todo.target}"
        self._journal.intended(todo.action, target, todo.before, todo.after)
        self._emit({"intended": asdict(todo)})
        try:
            self._device.do(todo, before)
        except MigError as error:
            if error.clean and todo.instance is not None:  # a mode may be pending though the driver would not set it
                self._emit({"refused": todo.action})
            raise
        after = self._device.read()
        self._emit({"made": asdict(_made(todo, before, after))})
        self._check(todo, before, after)
        self._journal.applied(todo.action, target, todo.before, todo.after)
        return after

    @staticmethod
    def _check(todo: step.MigStep, before: Reading, after: Reading) -> None:
        if before.layout is None or after.layout is None:
            raise NotAsWanted("the GPU says that it has no MIG any more", differs=[])
        if todo.instance is None:
            waits = todo.action != step.RESET and not before.resetless
            if (after.layout.to_be if waits else after.layout.mig) == todo.after:
                return
            raise NotAsWanted("the mode is not what it was set to", differs=[])
        expected = step.predict(before.layout, [todo])
        if expected != after.layout:
            differs = step.differences(expected, after.layout)
            raise NotAsWanted(f"after {todo.action} {todo.target}: {', '.join(differs)}", differs=differs)


def _made(todo: step.MigStep, before: Reading, after: Reading) -> step.MigStep:
    """What the step did: a driver that takes no places may have put a compute instance elsewhere."""
    if todo.action != step.CREATE_COMPUTE or todo.instance is None or before.layout is None or after.layout is None:
        return todo
    old = step.names(before.layout)
    there = next((one for one in after.layout.instances if one.name == todo.instance.name), todo.instance)
    new = [part for part in there.compute if there.compute_name(part) not in old]
    return todo if len(new) != 1 else step.create_compute(todo.instance, new[0])


def _misplaced(created: step.MigStep, made: Plan, now: Reading) -> bool:
    """Whether the plan puts compute instances into the new GPU instance where this driver has no places for them."""
    instance = created.instance
    profile = now.model.profile(instance.profile) if now.model and instance else None
    starts = dict(profile.compute_starts) if profile else {}
    return any(
        one.action == step.CREATE_COMPUTE and one.instance == instance and one.compute and one.compute.start not in starts.get(one.compute.slices, ())
        for one in made.steps
    )  # fmt: skip
