# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.
"""Brings the GPUs of a node to the layouts that are wanted. One that fails is taken back, and hides no other."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Callable, Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.act import CgroupTask
from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.act import Want as CgroupWant
from ansible_collections.gpuops.remediation.plugins.module_utils._converge import converge
from ansible_collections.gpuops.remediation.plugins.module_utils._errors import RemediationError
from ansible_collections.gpuops.remediation.plugins.module_utils._gpu import records
from ansible_collections.gpuops.remediation.plugins.module_utils._mig import device_files, outcome, watched
from ansible_collections.gpuops.remediation.plugins.module_utils._mig import steps as step
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.apply import Order
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.children import Children
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.errors import (
    Busy,
    Fragmented,
    NotAsWanted,
    Refused,
    TimeIsUp,
    UnknownGpu,
)
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.layout import Layout
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.outcome import Work
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.planner import GPU, Plan
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.reading import Reading, show
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.requests import Request
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.reset import RESET_SECONDS
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.survey import GpuState, Survey, overlap, survey
from ansible_collections.gpuops.remediation.plugins.module_utils._node.journal import Journal
from ansible_collections.gpuops.remediation.plugins.module_utils._node.node import Node

_LOCK = "mig.lock"
_READ_SECONDS = 20.0
_POLL_SECONDS = 1.0
_CHANGE_SHARE = 0.6  # of the time; the rest is for taking back and for reading what came of it
_READ_SHARE = 0.1
_DRAIN_SHARE = 0.5  # of what is left until the deadline: without time for the change holders would be ended in vain
_LOOK_SHARE = 0.25
_GRACE_SHARE = 0.75  # of the time of a drain, so that there is some to kill in
_LEAST_SECONDS = 5.0  # to read what came of it, however late it is
_MORE_SECONDS = 2 * RESET_SECONDS  # of all the time, for each GPU that is reset: its share for changes is more than a reset may take
_HARMLESS = (step.CREATE, step.CREATE_COMPUTE)


@dataclass(frozen=True)
class Options:
    """The modules' options, by their names. `gpus` are all that are named, and `every_gpu` is whether something is said of the others too.

    `allocated` is like `given`, but may name what is there no more.
    """

    gpus: Sequence[str]
    busy: str
    busy_timeout_seconds: float
    grace_seconds: float
    protect: Sequence[str]
    given: Sequence[str]
    may_move: bool
    allow_reset: bool
    timeout_seconds: float
    nvidia_smi: str
    nvidia_modprobe: str
    every_gpu: bool = False
    allocated: Sequence[str] = ()
    deadline_seconds: Optional[float] = None

    @classmethod
    def from_params(cls, params: Mapping[str, Any]) -> Options:
        named = [one["gpus"] for one in params.get("layouts") or [params]]
        own: dict[str, Any] = {
            "gpus": sorted({name for names in named for name in names}),
            "every_gpu": not all(named),
            "allocated": params.get("allocated", ()),
        }
        return cls(**own, **{one.name: params[one.name] for one in fields(cls) if one.name not in own})


class LayoutTask:
    """`keep_lock` is called before each write and while something is waited for."""

    def __init__(self, node: Node, request: Request, options: Options, journal: Journal, keep_lock: Callable[[], None]) -> None:
        self._node = node
        self._request = request
        self._options = options
        self._journal = journal
        self._keep_lock = keep_lock
        self._started = time.time()
        self._ends = math.inf
        self._drained: dict[str, Sequence[str]] = {}
        self._undrained: dict[str, RemediationError] = {}

    def run(self, *, check_mode: bool) -> tuple[dict[str, Any], list[str]]:
        """The module's result, and its warnings."""
        if self._options.deadline_seconds is not None:
            self._ends = time.monotonic() + self._options.deadline_seconds
        with contextlib.nullcontext() if check_mode else self._node.state.alone(_LOCK, self._within(self._options.timeout_seconds)):
            works, found = self._settle(check_mode)
            planned = [work for work in works if work.plan is not None and work.error is None]
            if check_mode:
                for work in planned:
                    outcome.predict(work, allow_reset=self._options.allow_reset)
                    if work.reading is not None and not work.has_steps:
                        work.device_files = device_files.missing(self._node.proc, self._node.dev_root, work.reading)
            else:
                self._apply(planned)
        names = records.normalise(self._options.gpus)
        unknown = [name for name in names if not any(one.answer.is_one_of([name]) for one in found.gpus)]
        return outcome.result(works, unknown, found.why), [one for work in works for one in work.warnings]

    def _within(self, seconds: float, share: float = 1.0) -> float:
        """So much at most, of what is left of all the time."""
        return min(seconds, max(0.0, self._ends - time.monotonic()) * share)

    # --- what is to be done, once what is busy lets it ---

    def _settle(self, check_mode: bool) -> tuple[list[Work], Survey]:
        ends = time.monotonic() + self._within(self._options.busy_timeout_seconds, _DRAIN_SHARE)
        while True:
            self._keep_lock()
            found = self._survey()
            works = [self._work(state, check_mode) for state in found.gpus]
            if not self._freed([work for work in works if work.blocked], check_mode, ends):
                return works, found

    def _survey(self) -> Survey:
        options = self._options
        given = [name for name in records.normalise(options.given) if not (name.startswith("MIG-") or "@" in name)]
        if not self._within(_READ_SECONDS):
            raise TimeIsUp(f"no time is left of {options.deadline_seconds:g} s, and nothing was begun")
        found = survey(self._node, [] if options.every_gpu else [*options.gpus, *given], self._within(_READ_SECONDS, _LOOK_SHARE))
        if found.why is not None and not found.gpus:
            raise Refused(f"NVML does not answer: {found.why}")
        for name in given:
            if not any(one.answer.is_one_of([name]) for one in found.gpus):
                raise UnknownGpu(f"{name} is given to somebody, and is neither an instance nor a GPU of this node{_untold(found)}")
        wanted = [] if options.every_gpu else records.normalise(options.gpus)
        return replace(found, gpus=tuple(one for one in found.gpus if one.answer.uuid is None or one.answer.is_one_of(wanted)))

    def _freed(self, blocked: Sequence[Work], check_mode: bool, ends: float) -> bool:
        """Whether it is worth looking again."""
        if self._options.busy == "drain":
            new = [work for work in blocked if work.uuid not in self._drained]
            for work in new:
                self._drain(work, check_mode)
            return bool(new)
        if self._options.busy == "fail" or check_mode or not blocked or time.monotonic() >= ends:
            return False
        time.sleep(_POLL_SECONDS)
        return True

    def _work(self, state: GpuState, check_mode: bool) -> Work:
        work, reading = Work(state), state.answer.reading
        if state.answer.error is not None or reading is None:
            work.error = dict(state.answer.error or Refused("the GPU told nothing").failure())
            return work
        try:
            freed = self._drained.get(work.uuid, ()) if check_mode and work.uuid not in self._undrained else ()
            work.order = self._order(state, reading, freed)
            work.plan = self._plan(state, reading, work.order, freed) if work.order else None
            work.clients = state.holders_of([GPU]) if work.changes_mode else ()
        except (Busy, Fragmented) as error:
            names = list(error.details["instances"])
            holders = state.holders_of(names)
            given = [name for name in names if any(overlap(name, one) for one in self._given(reading))]
            cause = self._undrained.get(work.uuid, error)
            work.fail(cause, msg=f"{cause}{_held_by(holders)}", instances=names, holders=holders, given=given)
            work.blocked = names if holders and not given else ()
            if work.error is not None and work.blocked and self._options.busy == "wait":
                work.error["once_free"] = self._once_free(work, reading)
        except RemediationError as error:
            work.fail(error)
        return work

    def _once_free(self, work: Work, reading: Reading) -> Optional[dict[str, Any]]:
        """The layout that the GPU will have once its holders have gone, for whoever has to know it before they are waited for."""
        with contextlib.suppress(RemediationError):
            if work.order is not None:
                return show(replace(work.order, busy=sorted(self._given(reading))).plan(reading).layout, reading)
        return None

    def _order(self, state: GpuState, reading: Reading, freed: Sequence[str]) -> Optional[Order]:
        want = self._request(reading)
        if want is None or reading.model is None:
            return None
        busy = {name for name in state.busy() if not any(overlap(name, one) for one in freed)} | self._given(reading)
        return Order(reading.uuid, want, sorted(busy), self._options.may_move, self._options.allow_reset)

    def _plan(self, state: GpuState, reading: Reading, order: Order, freed: Sequence[str]) -> Plan:
        made = order.plan(reading)
        if state.unseen and any(one.action not in _HARMLESS for one in made.steps):
            raise Refused(f"nothing is destroyed, because nobody can say who uses it ({'; '.join(state.unseen)})")
        resets = order.allow_reset and any(one.action == step.RESET for one in made.steps)
        if resets and state.holders_of([GPU]) and GPU not in freed:
            raise Busy("the GPU cannot be reset while it has clients", instances=[GPU])
        return made

    def _given(self, reading: Reading) -> set[str]:
        """What is allocated to somebody, of this GPU, by name. Who has the GPU has all that is on it."""
        names, given = set(step.names(reading.layout or Layout(False))), set(self._options.given) | set(self._options.allocated)
        if {reading.uuid, reading.pci_bus_id} & set(records.normalise(given)):
            return {GPU, *names}
        by_uuid = {uuid: name for name, uuid in reading.mig_uuids.items()}
        return {by_uuid.get(one, one) for one in given} & names

    def _drain(self, work: Work, check_mode: bool) -> None:
        """By cgroup_state's own rules and proof (S10), of exactly those that are in the way. In check mode the proof is asked for too."""
        holders = [one for one in work.state.holders_of(work.blocked) if one["start_ticks"] is not None]
        seconds = self._within(self._options.busy_timeout_seconds, _DRAIN_SHARE)
        grace = (
            self._options.grace_seconds
            if self._options.deadline_seconds is None
            else min(self._options.grace_seconds, seconds * _GRACE_SHARE)
        )
        suspects = [{name: one[name] for name in ("pid", "start_ticks")} for one in holders]
        want = CgroupWant(
            "killed",
            work.uuid,
            pids=suspects,
            fault_time=self._started,
            protect=self._options.protect,
            grace_seconds=grace,
        )
        task = CgroupTask(self._node, want, self._journal, self._keep_lock, seconds)
        self._drained[work.uuid] = work.blocked
        try:
            with task.holding():
                converge(task.read, task.plan, task.predict, task.apply, check_mode=check_mode)
        except RemediationError as error:
            self._undrained[work.uuid] = error

    # --- doing it ---

    def _apply(self, works: Sequence[Work]) -> None:
        options, todo = self._options, [work for work in works if work.has_steps]
        seconds = self._within(options.timeout_seconds) + _MORE_SECONDS * sum(work.resets for work in todo)
        ends = time.monotonic() + seconds
        children = Children(self._node, self._journal, self._keep_lock, options.nvidia_smi)
        children.change(todo, seconds * _CHANGE_SHARE)
        failed = [work for work in todo if work.error is not None]
        children.take_back(failed, ends - time.monotonic() - seconds * _READ_SHARE, allow_reset=options.allow_reset)
        if todo:
            found = watched.read_node(
                self._node, [work.uuid for work in todo], timeout_seconds=max(_LEAST_SECONDS, ends - time.monotonic())
            )
            answers = {answer.uuid: answer for answer in found.gpus}
            for work in todo:
                self._judge(work, answers.get(work.uuid), found.why)
        done = [work for work in works if work.error is None]
        children.make_device_files(done, options.nvidia_modprobe, ends - time.monotonic())

    def _judge(self, work: Work, answer: Optional[watched.GpuAnswer], why: Optional[str]) -> None:
        work.after = answer.reading if answer else None
        if work.after is None or work.after.layout is None:
            told = (answer.error or {}).get("msg") if answer else why
            unread = f"the GPU cannot be read: {told or 'it is not there'}"
            work.error = {**(work.error or NotAsWanted(unread).failure()), "differs": [unread]}
        elif work.error is not None:
            work.error["differs"] = step.differences(work.prior, work.after.layout)
            if work.error["error_kind"] == Busy.kind:
                self._name_holders(work, work.error)
        elif work.order is not None and not work.reset_required:
            try:
                differs = [f"{one.action} {one.target}" for one in work.order.plan(work.after).steps]
            except RemediationError as error:  # somebody else was there meanwhile
                differs = [str(error)]
            if differs:
                work.fail(NotAsWanted(f"the change did not hold: {', '.join(differs)}", differs=differs))

    def _name_holders(self, work: Work, error: dict[str, Any]) -> None:
        """Of what the driver said is in use. Nobody was seen in it before, so that whoever has just the GPU's device file open may be it."""
        for state in survey(self._node, [work.uuid], max(_LEAST_SECONDS, self._within(_READ_SECONDS))).gpus:
            holders = state.holders_of(error["instances"]) or state.holders_of([GPU])
            error.update(holders=holders, msg=f"{error['msg']}{_held_by(holders)}")


def _untold(found: Survey) -> str:
    return f", as far as NVML told ({found.why})" if found.why else ""


def _held_by(holders: Sequence[Mapping[str, Any]]) -> str:
    told = ", ".join(f"{one['name']} ({one['pid']})" for one in holders)
    return f"; held by {told}" if told else ""
