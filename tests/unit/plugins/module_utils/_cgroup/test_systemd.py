# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What busctl is told, and what it tells. The same with a real systemd: tests/integration/vm."""

from __future__ import annotations

import json

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup import systemd
from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.limits import MAX, BadLimit
from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.systemd import (
    Systemd,
    SystemdError,
    Unit,
    from_properties,
    to_properties,
    unit_name,
)

INFINITY = (1 << 64) - 1
UNSET = {name: [] if name.startswith("IO") else 0 if name == "MemoryLow" else INFINITY for name in systemd._ALL}
UNLIMITED = {
    "memory_max": MAX,
    "memory_high": MAX,
    "memory_low": 0,
    "memory_swap_max": MAX,
    "cpu_max": "max 100000",
    "cpu_weight": 100,
    "pids_max": MAX,
    "io_max": {},
}


@pytest.mark.parametrize(
    ("told", "values"),
    [
        ({}, {}),
        ({"MemoryMax": 4097, "MemorySwapMax": 0, "TasksMax": 7}, {"memory_max": 4096, "memory_swap_max": 0, "pids_max": 7}),
        ({"CPUQuotaPerSecUSec": 1_500_000, "CPUWeight": 50}, {"cpu_max": "150000 100000", "cpu_weight": 50}),
        ({"CPUQuotaPerSecUSec": 500_000, "CPUQuotaPeriodUSec": 20_000}, {"cpu_max": "10000 20000"}),
        (
            {"IOReadBandwidthMax": [["1:3", 5], ["1:5", INFINITY], ["/nowhere", 7], ["/dev/null", 7]], "IOWriteIOPSMax": [["1:3", 6]]},
            {"io_max": {"1:3": {"rbps": 5, "wbps": MAX, "riops": MAX, "wiops": 6}}},
        ),
    ],
)
def test_properties_as_the_kernel_has_them(told, values):
    assert from_properties({**UNSET, **told}) == {**UNLIMITED, **values}


@pytest.mark.parametrize(
    ("values", "properties"),
    [
        ({"memory_max": MAX, "cpu_weight": 5}, [("MemoryMax", "t", [str(INFINITY)]), ("CPUWeight", "t", ["5"])]),
        ({"cpu_max": "max 100000"}, [("CPUQuotaPerSecUSec", "t", [str(INFINITY)]), ("CPUQuotaPeriodUSec", "t", ["100000"])]),
        ({"cpu_max": "10000 20000"}, [("CPUQuotaPerSecUSec", "t", ["500000"]), ("CPUQuotaPeriodUSec", "t", ["20000"])]),
        (
            {"io_max": {"1:3": {"rbps": 5, "wiops": MAX}, "1:5": {"rbps": 6}}},
            [
                ("IOReadBandwidthMax", "a(st)", ["2", "/dev/block/1:3", "5", "/dev/block/1:5", "6"]),
                ("IOWriteIOPSMax", "a(st)", ["1", "/dev/block/1:3", str(INFINITY)]),
            ],
        ),
    ],
)
def test_properties_of_limits(values, properties):
    assert to_properties(values) == properties


def test_a_share_of_a_cpu_that_systemd_would_round_is_refused():
    """It writes whole percents down, and reads these after its next reload."""
    with pytest.raises(BadLimit, match="no whole percentage"):
        to_properties({"cpu_max": "33333 100000"})


@pytest.fixture
def busctl(tmp_path):
    """It writes down its arguments and says what is in `answer`."""
    program = tmp_path / "busctl"
    program.write_text(
        f'#!/bin/sh\nprintf "%s\\n" "$@" >{tmp_path}/asked\ncat {tmp_path}/answer || {{ echo "Access denied" >&2; exit 1; }}\n'
    )
    program.chmod(0o755)
    return program


def asked(busctl):
    return busctl.with_name("asked").read_text().split()[3:]


def test_a_unit_is_read_in_one_call(busctl):
    values = ["/x.slice/a-b.service", True, *({**UNSET, "MemoryMax": 8192}[name] for name in systemd._ALL)]
    busctl.with_name("answer").write_text("".join(json.dumps({"type": "?", "data": value}) + "\n" for value in values))
    unit = Systemd(str(busctl)).read("a-b@1.service")
    assert unit == Unit("a-b.service", "/x.slice/a-b.service", True, {**UNLIMITED, "memory_max": 8192}), "by its own name, not the alias"
    assert asked(busctl)[:4] == [
        "get-property",
        "org.freedesktop.systemd1",
        "/org/freedesktop/systemd1/unit/a_2db_401_2eservice",
        "org.freedesktop.systemd1.Service",
    ]


@pytest.mark.parametrize(("persistent", "runtime"), [(True, "false"), (False, "true")])
def test_properties_are_set_in_one_call(busctl, persistent, runtime):
    busctl.with_name("answer").touch()
    Systemd(str(busctl)).set("a.service", {"memory_max": 8192, "pids_max": 5}, persistent)
    expected = ["SetUnitProperties", "sba(sv)", "a.service", runtime, "2", "MemoryMax", "t", "8192", "TasksMax", "t", "5"]
    assert asked(busctl)[4:] == expected


def test_what_systemd_refuses_is_told_in_its_words(busctl):
    with pytest.raises(SystemdError, match="Access denied"):
        Systemd(str(busctl)).start("a.slice")


def test_which_limits_outlive_a_boot(tmp_path, monkeypatch):
    monkeypatch.setattr(systemd, "_PERSISTENT", str(tmp_path))
    (tmp_path / "a.service.d").mkdir()
    for name in ("MemoryMax", "CPUQuota", "IOWriteIOPSMax"):
        (tmp_path / "a.service.d" / f"50-{name}.conf").touch()
    assert Systemd("busctl").persistent("a.service") == {"memory_max", "cpu_max", "io_max"}
    assert Systemd("busctl").persistent("b.service") == set()


def test_a_machine_without_systemd(tmp_path, monkeypatch):
    monkeypatch.setattr(systemd, "_RUNNING", str(tmp_path / "no"))
    assert Systemd.running("/sys/fs/cgroup") is None
    monkeypatch.setattr(systemd, "_RUNNING", str(tmp_path))
    assert Systemd.running("/simulated/cgroup") is None, "its units are others"
    monkeypatch.setattr(systemd.shutil, "which", lambda *args, **options: None)
    with pytest.raises(SystemdError, match="busctl"):
        Systemd.running("/sys/fs/cgroup")


@pytest.mark.parametrize(("path", "name"), [("/system.slice/a.service", "a.service"), ("/_memory.slice", "memory.slice")])
def test_the_unit_of_a_cgroup(path, name):
    assert unit_name(path) == name
