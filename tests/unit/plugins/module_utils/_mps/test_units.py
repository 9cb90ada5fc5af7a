# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._mps import bring, device, units
from ansible_collections.gpuops.remediation.plugins.module_utils._mps.errors import BadValue, UnitError
from fake_mps import UUID, FakeMps


@pytest.fixture
def systemctl(tmp_path, monkeypatch):
    monkeypatch.setattr(units, "_RUNNING", str(tmp_path))

    def make(script):
        path = tmp_path / "systemctl"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return units.Units(str(path), timeout_seconds=20)

    return make


def test_what_systemd_says(systemctl, tmp_path):
    told = systemctl(f'echo "$*" >>{tmp_path}/calls; printf "ActiveState=active\\nNeedDaemonReload=yes\\n"')
    assert told.read("u.service") == units.Unit(True, True)
    told.start("u.service")
    told.stop("u.service")
    calls = (tmp_path / "calls").read_text()
    assert (
        "--no-ask-password start u.service" in calls
        and "--no-ask-password stop u.service" in calls
        and "reload" not in calls.lower().replace("needdaemonreload", "")
    )


def test_what_it_refuses_is_passed_on(systemctl, monkeypatch, tmp_path):
    with pytest.raises(UnitError, match="no such unit"):
        systemctl("echo no such unit >&2; exit 5").start("u.service")
    with pytest.raises(UnitError):
        units.Units(str(tmp_path / "gone")).start("u.service")
    monkeypatch.setattr(units, "_RUNNING", str(tmp_path / "none"))
    with pytest.raises(UnitError, match="managed_by=other"):
        units.Units("systemctl")


class Manager:
    """systemd, and the daemon that its unit is."""

    def __init__(self, mps):
        self.mps = mps

    def read(self, _unit):
        return units.Unit(self.mps.fake["running"], False)

    def start(self, _unit):
        self.mps.fake["running"] = True
        self.mps.set_defaults({"memory_limit_mib": 512})

    def stop(self, _unit):
        pass


@pytest.fixture
def run(tmp_path, monkeypatch):
    mps = FakeMps(running=False)
    object.__setattr__(mps, "pipe_directory", f"/run/gpuops-mps/{UUID}")
    monkeypatch.setattr(bring.device, "read", lambda *_args: device.Device(UUID, UUID, False, 1024))
    monkeypatch.setattr(bring, "Control", lambda program, *_rest: mps)
    monkeypatch.setattr(bring, "find_program", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(bring.units, "Units", lambda: Manager(mps))
    places = {"config_dir": "etc/mps", "program": "lib/gpuops-mps", "unit_dir": "etc/systemd", "state_dir": "state"}
    unasked = ("pipe_directory", "memory_limit", "tenant", "active_thread_percentage", "client_priority", "compute_mode", "incident_id")
    given = {
        **{name: str(tmp_path / place) for name, place in places.items()},
        **dict.fromkeys((*unasked, "lock_token", "lock_holder")),
        **dict.fromkeys(("kmsg_path", "cgroup_root", "nvml_library"), ""),
        "proc_root": "/proc",
        "dev_root": "/dev",
        "device": UUID,
        "state": "present",
        "managed_by": "systemd",
        "mps_control": "control",
        "control_timeout_seconds": 1,
        "why": "it",
    }

    def go(check_mode=False, **params):
        return bring.bring({**given, **params}, check_mode)

    go.mps = mps
    return go


def test_the_files_come_and_go_with_the_daemon(run, tmp_path):
    foretold = run(check_mode=True, memory_limit="512M")
    assert foretold["changed"] and not run.mps.fake["running"] and list(tmp_path.iterdir()) == []
    done = run(memory_limit="512M")
    assert done["actions"] == foretold["actions"] and [one["action"] for one in done["actions"]] == ["write"] * 4 + ["enable", "start"]
    link = tmp_path / f"etc/systemd/multi-user.target.wants/gpuops-mps@{UUID}.service"
    assert link.resolve() == (tmp_path / "etc/systemd/gpuops-mps@.service").resolve()
    settings = json.loads((tmp_path / f"etc/mps/{UUID}.json").read_text())
    assert settings["settings"] == {"memory_limit_mib": 512}
    environment = (tmp_path / f"etc/mps/{UUID}.env").read_text()
    assert f"CUDA_VISIBLE_DEVICES={UUID}\nCUDA_MPS_PIPE_DIRECTORY=/run/gpuops-mps/{UUID}\n" in environment
    assert not run(memory_limit="512M")["changed"]
    assert run(check_mode=True, state="absent")["changed"] and link.is_symlink()
    gone = run(state="absent")
    assert [one["action"] for one in gone["actions"]] == ["remove", "remove", "disable", "stop"]
    assert not link.is_symlink() and not run(state="absent")["changed"]
    assert (tmp_path / "etc/systemd/gpuops-mps@.service").exists(), "another device's daemon may be an instance of it"


def test_what_is_refused_is_refused_before_a_file_is_written(run, tmp_path):
    run.mps.fake.update(running=True, servers={7: ("FAULT", [8])})
    with pytest.raises(Exception, match="FAULT"):
        run(memory_limit="512M")
    assert not (tmp_path / "etc").exists()


@pytest.mark.parametrize(
    "params", [{"pipe_directory": "/x"}, {"managed_by": "other", "state": "absent"}, {"memory_limit": "2G"}, {"device": "GPU-../x"}]
)
def test_what_does_not_go_together(run, params):
    with pytest.raises(BadValue):
        run(**params)


def test_the_unit_keeps_its_pipes_closed_until_its_program_has_run():
    text = units.unit_text("/usr/bin/control", "/lib/program", "/etc/mps")
    assert "RuntimeDirectoryMode=0700\n" in text and "ExecStart=/usr/bin/control -f\nExecStartPost=/lib/program /etc/mps/%i.json\n" in text
    assert units.unit_of(UUID) == f"gpuops-mps@{UUID}.service"
