# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.
"""The work on GPUs in watched children, one a GPU, most of it side by side: one whose driver hangs ends no other's."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Callable

from ansible_collections.gpuops.remediation.plugins.module_utils._gpu import nvml
from ansible_collections.gpuops.remediation.plugins.module_utils._mig import device_files
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.apply import Child, Told, heard
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.calls import Calls
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.device import Device
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.outcome import Work
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.reset import RESET_SECONDS, reset_gpu
from ansible_collections.gpuops.remediation.plugins.module_utils._node.journal import Journal
from ansible_collections.gpuops.remediation.plugins.module_utils._node.node import Node
from ansible_collections.gpuops.remediation.plugins.module_utils._node.watchdog import Answer, Collect, Emit, Watchdog

_LEAST_SECONDS = 5.0
_SHARE_SECONDS = 15.0  # what is kept for each GPU that is still to come; most need a few of them
_END_SECONDS = 2.0  # a child that runs out of time ends by itself, so much before it is ended


class Children:
    def __init__(self, node: Node, journal: Journal, keep_lock: Callable[[], None], nvidia_smi: str) -> None:
        self._node = node
        self._journal = journal
        self._keep_lock = keep_lock
        self._nvidia_smi = nvidia_smi

    def change(self, works: Sequence[Work], seconds: float) -> None:
        for work, told in self._side_by_side(works, seconds, lambda work, child: child.change(work.order)):
            work.made, work.reset_required = told.attempted, told.reset_required
            if told.problems:
                work.error = dict(told.problems[0])

    def take_back(self, works: Sequence[Work], seconds: float, *, allow_reset: bool) -> None:
        def back(work: Work, child: Child) -> None:
            child.take_back(work.uuid, work.made, work.prior, allow_reset)

        for work, told in self._side_by_side(works, seconds, back):
            if told.problems and work.error is not None:
                work.error["not_taken_back"] = [one["msg"] for one in told.problems]

    def make_device_files(self, works: Sequence[Work], nvidia_modprobe: str, seconds: float) -> None:
        """A layout without them is what was wanted all the same, so that this is a warning."""
        readings = {work.uuid: work.after or work.reading for work in works}
        paths = {uuid: device_files.missing(self._node.proc, self._node.dev_root, one) if one else [] for uuid, one in readings.items()}
        todo = [work for work in works if paths[work.uuid]]
        answers = self._collect({_modprobe(work): partial(device_files.make, nvidia_modprobe, paths[work.uuid]) for work in todo}, seconds)
        for work in todo:
            why = answers[_modprobe(work)].why
            if why is None:
                work.device_files = () if work.has_steps else paths[work.uuid]
            else:
                work.warnings.append(f"instances of {work.uuid} have no device file, and containers cannot open them: {why}")

    def _side_by_side(self, works: Sequence[Work], seconds: float, act: Callable[[Any, Child], None]) -> Iterator[tuple[Work, Told]]:
        """But one after the other, and last, where the mode changes or the GPU is reset: other clients of the driver can be in the way, also ours.

        What those leave of the time goes on to the next. One that hangs takes no more than leaves each of the others something, but a reset, which
        must not be killed midway, has what it may take.
        """
        ends = time.monotonic() + seconds
        alone = [work for work in works if work.changes_mode]
        groups = [[work for work in works if not work.changes_mode], *([work] for work in alone)]
        for later, group in zip((len(alone), *reversed(range(len(alone)))), groups):
            if group:
                left = ends - time.monotonic()
                share = left - later * min(_SHARE_SECONDS, left / (later + 1))
                if group[0].resets:
                    share = min(left, max(share, RESET_SECONDS + _SHARE_SECONDS))
                yield from self._at_once(group, max(share, _LEAST_SECONDS), act)

    def _at_once(self, works: Sequence[Work], seconds: float, act: Callable[[Any, Child], None]) -> Iterator[tuple[Work, Told]]:
        """Whatever is done to a GPU has one name, so that no second child follows one that hangs and cannot be killed."""
        until = time.monotonic() + seconds - _END_SECONDS
        answers = self._collect({f"mig {work.uuid}": partial(self._on_gpu, work, act, until) for work in works}, seconds)
        for work in works:
            answer = answers[f"mig {work.uuid}"]
            yield work, heard(answer.items, answer.why)

    def _collect(self, sources: dict[str, Collect], seconds: float) -> dict[str, Answer]:
        if not sources:
            return {}
        answers, _abandoned = Watchdog(self._node.state, max(seconds, _LEAST_SECONDS)).collect(sources)
        return answers

    def _on_gpu(self, work: Work, act: Callable[[Any, Child], None], until: float, emit: Emit) -> None:
        def reset(pci_bus_id: str) -> None:
            emit({"begins": "nvidia-smi --gpu-reset"})
            reset_gpu(self._nvidia_smi, pci_bus_id, until - time.monotonic(), emit)

        calls = Calls(nvml.start(self._node.nvml_library, lambda _version: None), lambda name: emit({"begins": name}))
        act(work, Child(Device(calls, work.uuid, reset), self._journal, self._keep_lock, emit, until))


def _modprobe(work: Work) -> str:
    return f"nvidia-modprobe {work.uuid}"
