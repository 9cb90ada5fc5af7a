# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._converge import converge
from ansible_collections.gpuops.remediation.plugins.module_utils._mps import daemon, device
from ansible_collections.gpuops.remediation.plugins.module_utils._mps.errors import (
    BadValue,
    ComputeModeRefused,
    HasClients,
    MpsError,
    NoDaemon,
    ServerFault,
)
from fake_mps import UUID, FakeMps

WANT = {"memory_limit_mib": 4096, "active_thread_percentage": 50.0, "client_priority": 1}


class Journal:
    def __init__(self):
        self.lines = []

    def intended(self, action, *_rest):
        self.lines.append(action)

    def applied(self, *_rest):
        pass


class Units:
    def __init__(self, mps):
        self.mps, self.calls = mps, []

    def read(self, unit):
        from ansible_collections.gpuops.remediation.plugins.module_utils._mps.units import Unit

        return Unit(self.mps.fake["running"], False)

    def start(self, unit):
        self.calls.append(("start", unit))
        self.mps.fake["running"] = True
        self.mps.set_defaults(WANT)

    def stop(self, unit):
        self.calls.append(("stop", unit))


class Mode:
    def __init__(self, value="default", found=None):
        self.value = value
        self.real = device.ComputeMode(None, found or device.Device(UUID, UUID, False, 1024), 1)
        self.refuse, self.refuse_change = self.real.refuse, self.real.refuse_change

    def read(self):
        return self.value

    def set(self, wanted):
        self.value = wanted


def bring(mps, settings=None, check_mode=False, present=True, unit=None, mode=None, compute_mode=None):
    units = Units(mps) if unit else None
    want = daemon.Want(present, UUID, WANT if settings is None else settings, unit, compute_mode)
    task = daemon.DaemonTask(want, mps, mode, units, Journal(), lambda: None)
    outcome = converge(task.read, task.plan, task.predict, task.apply, check_mode=check_mode)
    return outcome, units


def test_check_mode_foretells_what_the_run_does_and_says_nothing_to_the_daemon():
    mps = FakeMps({7: ("ACTIVE", [8, 9])})
    foretold, _units = bring(mps, check_mode=True)
    assert not [one for one in mps.asked if one.startswith("set_")]
    done, _units = bring(mps)
    assert done.result(daemon.State.show) == foretold.result(daemon.State.show)
    assert daemon.seen_by(done.steps, done.before) == [
        {"action": "set_defaults", "target": "next_server", "takes_effect": "next_server", "servers_as_before": [7]},
        {"action": "set_server", "target": "server 7", "takes_effect": "new_clients", "clients_as_before": [8, 9]},
    ]
    again, _units = bring(mps)
    assert not again.steps


def test_a_running_server_is_not_asked_for_a_priority():
    outcome, _units = bring(FakeMps({7: ("ACTIVE", [])}), {"client_priority": 1})
    assert [step.action for step in outcome.steps] == ["set_defaults"]


def test_a_server_in_fault_is_not_given_limits():
    with pytest.raises(ServerFault) as caught:
        bring(FakeMps({7: ("FAULT", [8])}))
    assert caught.value.details["clients"] == [8]


def test_a_daemon_of_others_is_not_started():
    with pytest.raises(NoDaemon):
        bring(FakeMps(running=False))


def test_ours_is_started_by_its_unit_which_sets_the_limits():
    mps = FakeMps(running=False)
    assert bring(mps, unit="gpuops-mps@x.service", check_mode=True)[0].steps[0].action == "start" and not mps.fake["running"]
    outcome, units = bring(mps, unit="gpuops-mps@x.service")
    assert (units.calls, outcome.after.daemon.defaults["memory_limit_mib"]) == ([("start", "gpuops-mps@x.service")], 4096)
    assert [one["takes_effect"] for one in daemon.seen_by(outcome.steps, outcome.before)] == ["now"]


def test_one_with_clients_is_not_told_to_quit():
    mps = FakeMps({7: ("ACTIVE", [8])})
    with pytest.raises(HasClients):
        bring(mps, {}, present=False, unit="gpuops-mps@x.service")
    assert "quit" not in mps.asked


def test_one_without_is_told_and_then_its_unit_is_stopped():
    mps = FakeMps({7: ("ACTIVE", [])})
    assert bring(mps, {}, present=False, unit="u.service", check_mode=True)[0].after.daemon.running is False and mps.fake["running"]
    outcome, units = bring(mps, {}, present=False, unit="u.service")
    assert not mps.fake["running"] and units.calls == [("stop", "u.service")] and len(outcome.steps) == 1
    assert not bring(mps, {}, present=False, unit="u.service")[0].steps


def test_the_compute_mode():
    mode = Mode()
    assert bring(FakeMps(), {}, mode=mode, compute_mode="exclusive_process", check_mode=True)[0].after.compute_mode == "exclusive_process"
    outcome, _units = bring(FakeMps(), {}, mode=mode, compute_mode="exclusive_process")
    assert mode.value == "exclusive_process" and outcome.result(daemon.State.show)["after"]["compute_mode"] == "exclusive_process"
    assert not bring(FakeMps(), {}, mode=mode, compute_mode="exclusive_process")[0].steps


@pytest.mark.parametrize(
    "found",
    [device.Device("MIG-1", UUID, True, 1024), device.Device(UUID, UUID, False, 1024, [{"name": "notebook", "pid": 5}])],
)
def test_exclusive_is_refused_in_mig_mode_and_beside_others(found):
    with pytest.raises(ComputeModeRefused):
        bring(FakeMps(), {}, mode=Mode(found=found), compute_mode="exclusive_process")


GPU = {
    "uuid": UUID,
    "memory_total_bytes": 8 << 30,
    "mig": {"current": False, "instances": None},
    "processes": [
        {"type": "compute", "name": "nvidia-cuda-mps", "executable": "/usr/bin/nvidia-cuda-mps-server", "pid": 1, "cgroup": "/a"},
        {"type": "mps", "name": "train", "executable": "/bin/train", "pid": 2, "cgroup": "/b"},
        {"type": "compute", "name": "notebook", "executable": "/bin/notebook", "pid": 3, "cgroup": "/c"},
    ],
    "processes_source": "nvml",
    "errors": [],
}


@pytest.fixture
def told(monkeypatch):
    return lambda *gpus: monkeypatch.setattr(device.info, "read", lambda *_args, **_options: {"gpus": list(gpus), "missing": []})


def test_the_device_is_the_gpu_or_a_mig_device(told):
    told(GPU)
    found = device.read(None, UUID, 1)
    assert (found.memory_mib, found.in_mig_mode, [one["pid"] for one in found.others]) == (8192, False, [3])
    instance = {"uuid": "MIG-1", "memory_total_bytes": 1 << 30}
    cut = {**GPU, "mig": {"current": True, "instances": [{"uuid": None}, instance]}}
    told(cut)
    found = device.read(None, "MIG-1", 1)
    assert (found.memory_mib, found.in_mig_mode, found.gpu_uuid) == (1024, True, UUID)
    with pytest.raises(BadValue):
        device.read(None, UUID, 1)


@pytest.mark.parametrize("lacking", [{"memory_total_bytes": None}, {"processes_source": "device_file"}, {"uuid": "GPU-other"}])
def test_without_nvmls_word_nothing_is_judged(told, lacking):
    told({**GPU, **lacking})
    with pytest.raises(MpsError):
        device.read(None, UUID, 1)


@pytest.mark.parametrize("name", ["0", "GPU-", "GPU-0/../x", "gpu-0", "MIG-1 2", "GPU-1\n"])
def test_names_that_are_no_uuid(name):
    with pytest.raises(BadValue):
        device.require_uuid(name)
