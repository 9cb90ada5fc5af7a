# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A device filter on a unit that has systemd's own beside it. What a filter does by itself: tests/integration/bpf/test_devices.py."""

from __future__ import annotations

import pytest
from cluster.objects import wait_until

pytestmark = pytest.mark.timeout(900)  # its CPU is imitated, and others want the real ones
UNIT = "tenant-work.service"
SLICE = "/tenant.slice/tenant-a.slice"
PATH = f"{SLICE}/{UNIT}"
NULL, ZERO, KMSG, DISK = "/dev/null", "/dev/zero", "/dev/kmsg", "/dev/vda"
PROC = "/opt/driver"  # a driver whose capabilities are /dev/null and its like


@pytest.fixture
def unit(machine):
    machine.run(
        f"mkdir -p {PROC} && ln -sfn /proc/sys {PROC}/sys && printf 'Character devices:\\n  1 nvidia-caps\\n195 nvidia\\n' >{PROC}/devices; "
        "mkdir -p /run/systemd/system; "
        f"printf '[Service]\\nSlice=tenant-a.slice\\nDevicePolicy=closed\\nDeviceAllow={KMSG} rw\\nExecStart=sleep inf\\n' >/run/systemd/system/{UNIT}; "
        f"systemctl start {UNIT}"
    )
    yield UNIT
    machine.run(f"systemctl stop {UNIT} tenant-a.slice; rm -r /run/systemd/system/{UNIT} {PROC}", check=False)


def opens(machine, *paths):
    """Inside the unit, in the order of the paths."""
    each = " ".join(paths)
    return machine.run(
        f"sh -c 'echo $$ >/sys/fs/cgroup{PATH}/cgroup.procs; for one in {each}; do (exec 7<$one) 2>/dev/null && echo yes || echo no; done'"
    ).split()


def ask(machine, **options):
    answer = machine.module("cgroup_devices", proc_root=PROC, **options)
    assert not answer.get("failed"), answer
    return answer


def test_beside_systemds_own_filter_over_a_reload_and_until_the_unit_ends(machine, unit):
    assert opens(machine, NULL, ZERO, KMSG, DISK) == ["yes", "yes", "yes", "no"]
    wanted = {"unit": unit, "devices": [NULL, KMSG]}
    done = ask(machine, **wanted)
    assert done["after"]["cgroup"] == PATH
    with_both = ["yes", "no", "yes", "no"]
    assert opens(machine, NULL, ZERO, KMSG, DISK) == with_both
    machine.run(f"systemctl daemon-reload; systemctl set-property --runtime {unit} 'DeviceAllow={ZERO} rw'")
    assert opens(machine, NULL, ZERO, KMSG, DISK) == with_both
    again = ask(machine, **wanted)
    assert again["changed"] is False and again["denied"] == [{"device": "c 1:5", "path": "/dev/nvidia-caps/nvidia-cap5", "opens": 2}]
    machine.run(f"systemctl restart {unit}")
    assert opens(machine, ZERO) == ["yes"], "another cgroup"
    left = wait_until(lambda: ask(machine, check_mode=True, **wanted)["before"]["left_over"], "the end of the old one", 120)
    actions = [step["action"] for step in ask(machine, **wanted)["actions"]]
    assert (len(left), actions) == (1, ["remove", "attach"]) and opens(machine, NULL, ZERO) == ["yes", "no"]
    assert ask(machine, state="absent", unit=unit)["changed"] is True
    assert opens(machine, NULL, ZERO, KMSG, DISK) == ["yes", "yes", "yes", "no"]
    assert machine.run("ls /sys/fs/bpf | grep -c gpuops", check=False).strip() == "0"


def test_a_slice_keeps_its_filter_while_units_come_and_go(machine, unit):
    ask(machine, cgroup=SLICE, devices=[NULL, KMSG])
    machine.run(f"systemctl restart {unit}")
    assert opens(machine, NULL, ZERO) == ["yes", "no"]
    assert ask(machine, unit=unit, state="absent")["changed"] is False, "it has none of its own"
    assert ask(machine, cgroup=SLICE, state="absent")["changed"] is True
    assert opens(machine, ZERO) == ["yes"]
    assert ask(machine, unit="nowhere.service", state="absent")["before"]["cgroup"] is None
    refused = machine.module("cgroup_devices", proc_root=PROC, unit="ssh.service", gpus=[])
    assert refused["error_kind"] == "not_proven" and "never touched" in refused["msg"]
