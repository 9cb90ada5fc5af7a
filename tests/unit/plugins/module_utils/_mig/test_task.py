# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""How long bringing a GPU to its layout takes where everything takes as long as it may, by a clock of the test's own."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from types import SimpleNamespace

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._mig import task as tasks
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.device_id import DeviceId
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.errors import TimeIsUp
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.layout import Layout
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.reading import Reading
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.requests import one_less
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.survey import GpuState, Survey
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.tables import model_named
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.task import LayoutTask, Options
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.watched import GpuAnswer, NodeAnswer
from mig import layout

H200 = model_named("h200-141")
HALVES = tuple(
    replace(one, id=number, compute=tuple(replace(part, id=0) for part in one.compute))
    for number, one in enumerate(layout(H200, "3g.71gb@0", "3g.71gb@4").instances, start=1)
)
READING = Reading(0, "GPU-a", "0000:06:00.0", 0, "GPU", DeviceId(0), True, H200, Layout(True, HALVES))
ANSWER = GpuAnswer(0, "GPU-a", "0000:06:00.0", READING)
HOLDER = {"pid": 7, "name": "train", "cgroup": "/work", "start_ticks": 1, "source": "nvml"}


class World:
    """Everything takes all of its time: another run, NVML's answers, whoever is to end, and the driver. Who is drained has gone after it."""

    def __init__(self, monkeypatch, alone=1.0):
        self.now, self.spent, self.held, self.alone_share = 1000.0, [], True, alone
        clock = SimpleNamespace(monotonic=lambda: self.now, time=lambda: self.now, sleep=lambda seconds: self.takes("sleep", seconds))
        monkeypatch.setattr(tasks, "time", clock)
        monkeypatch.setattr(tasks, "survey", self.survey)
        monkeypatch.setattr(tasks, "CgroupTask", self.drain)
        monkeypatch.setattr(tasks, "converge", lambda *_steps, check_mode: None)
        monkeypatch.setattr(tasks, "Children", lambda *_: self)
        monkeypatch.setattr(tasks.watched, "read_node", self.read_node)
        state = SimpleNamespace(alone=self.alone)
        self.node = SimpleNamespace(state=state, proc=None, dev_root="")

    def takes(self, what, seconds):
        self.spent.append((what, seconds))
        self.now += seconds

    def alone(self, _name, seconds):
        self.takes("alone", seconds * self.alone_share)
        return contextlib.nullcontext()

    def survey(self, _node, _wanted, seconds):
        self.takes("survey", seconds)
        holders = {(2, 0): [HOLDER]} if self.held else {}
        return Survey(None, (GpuState(ANSWER, holders, []),), None)

    def drain(self, _node, want, _journal, _keep_lock, seconds):
        assert want.grace_seconds < seconds
        self.takes("drain", seconds)
        self.held = False
        return SimpleNamespace(holding=contextlib.nullcontext, read=None, plan=None, predict=None, apply=None)

    def change(self, works, seconds):
        self.takes("change", seconds)

    def take_back(self, _works, seconds, *, allow_reset):
        self.takes("take_back", max(0.0, seconds))

    def read_node(self, _node, _wanted, *, timeout_seconds):
        self.takes("read", timeout_seconds)
        return NodeAnswer(None, (ANSWER,))

    def make_device_files(self, _works, _program, _seconds):
        pass

    def run(self, **options):
        asked = {
            "gpus": ["GPU-a"],
            "busy": "drain",
            "busy_timeout_seconds": 40.0,
            "grace_seconds": 30.0,
            "protect": (),
            "given": (),
            "may_move": True,
            "allow_reset": False,
            "timeout_seconds": 40.0,
            "nvidia_smi": "",
            "nvidia_modprobe": "",
            **options,
        }
        began = self.now
        with contextlib.suppress(TimeIsUp):
            LayoutTask(self.node, one_less("3g.71gb", 4), Options(**asked), None, lambda: None).run(check_mode=False)
        return self.now - began


@pytest.mark.parametrize("busy", ["drain", "wait"])
@pytest.mark.parametrize("alone", [0.0, 0.5, 1.0])
def test_all_of_it_ends_at_the_deadline(monkeypatch, busy, alone):
    """But for a few seconds to read what came of it."""
    world = World(monkeypatch, alone)
    assert world.run(deadline_seconds=80.0, busy=busy) <= 80 + tasks._LEAST_SECONDS, world.spent
    assert alone == 1 or {"drain", "sleep"} & {what for what, _seconds in world.spent}
    assert World(monkeypatch).run() > 80 + tasks._LEAST_SECONDS, "each of them has its own time else"


def test_who_is_ended_is_not_ended_in_vain(monkeypatch):
    world = World(monkeypatch, alone=0.75)
    world.run(deadline_seconds=80.0)
    spent = dict(world.spent)
    assert spent["drain"] > 10 and spent["change"] > 5, world.spent


def test_nothing_is_begun_once_there_is_no_time_left(monkeypatch):
    world = World(monkeypatch)
    world.run(deadline_seconds=30.0)
    assert [what for what, _seconds in world.spent] == ["alone"]
