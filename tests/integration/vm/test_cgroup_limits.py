# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Limits as a real kernel and a real systemd keep them. What is decided: tests/unit."""

from __future__ import annotations

import itertools
import json
import subprocess

import pytest
from cluster.objects import wait_until

pytestmark = pytest.mark.timeout(900)  # its CPU is imitated, and others want the real ones
MIB = 1 << 20
WORK = """
import os, signal, sys, time

held = []
while True:
    with open(sys.argv[1] + ".in") as file:
        verb, number = file.read().split()
    said = "done"
    try:
        if verb == "anonymous":
            held.append(b"x" * (int(number) << 20))
        elif verb == "cached":
            with open("/var/tmp/data", "rb") as file:
                while file.read(1 << 20):
                    pass
        elif verb == "processes":
            for _one in range(int(number)):
                if os.fork() == 0:
                    signal.pause()
        elif verb == "busy":
            begun = time.monotonic(), time.process_time()
            while time.monotonic() < begun[0] + int(number):
                pass
            said = str((time.process_time() - begun[1]) / (time.monotonic() - begun[0]))
    except OSError as error:
        said = error.strerror
    with open(sys.argv[1] + ".out", "w") as file:
        file.write(said)
"""
numbers = itertools.count(1)


class Unit:
    """A transient service that does as it is told."""

    def __init__(self, machine, *properties):
        self.machine = machine
        self.name = f"work-{next(numbers)}.service"
        self.path = f"/system.slice/{self.name}"
        machine.run(f"mkfifo /run/{self.name}.in /run/{self.name}.out; [ -e /opt/work.py ] || cat >/opt/work.py <<'END'\n{WORK}\nEND")
        settings = " ".join(f"-p {one}" for one in properties)
        machine.run(f"systemd-run --quiet --unit={self.name} {settings} python3 /opt/work.py /run/{self.name}")

    def ask(self, what, number=0):
        self.machine.run(f"echo {what} {number} >/run/{self.name}.in")

    def do(self, what, number=0):
        self.ask(what, number)
        return self.machine.run(f"cat /run/{self.name}.out")

    def file(self, name, below=""):
        return self.machine.run(f"cat /sys/fs/cgroup{self.path}{below}/{name}")

    def events(self, file="memory.events"):
        return {key: int(value) for key, value in (line.split() for line in self.file(file).splitlines())}

    def show(self, what):
        return self.machine.run(f"systemctl show --value --property={what} {self.name}")

    def limit(self, check_mode=False, unit=None, **options):
        return self.machine.module("cgroup_limits", check_mode=check_mode, unit=unit or self.name, **options)

    def end(self):
        self.machine.run(
            f"systemctl kill --signal=KILL {self.name}; systemctl stop {self.name}; systemctl reset-failed {self.name}; "
            f"rm -rf /run/{self.name}.* /etc/systemd/system.control/{self.name}.d",
            check=False,
        )


@pytest.fixture
def unit(machine):
    own = Unit(machine)
    yield own
    own.end()


def test_what_is_asked_for_is_predicted_done_and_undone(unit):
    wanted = {
        "memory_max": "96M",
        "memory_high": "90M",
        "memory_low": "8M",
        "memory_swap_max": "0",
        "memory_oom_group": True,
        "cpu_max": "50%",
        "cpu_weight": 50,
        "pids_max": "77",
        "io_max": [{"device": "/dev/vda", "wbps": "1M", "riops": "500"}],
    }
    predicted = unit.limit(limits=wanted, check_mode=True)
    assert (predicted["changed"], unit.file("memory.max")) == (True, "max")
    done = unit.limit(limits=wanted)
    names = ("before", "after", "actions")
    assert [done.get(name) for name in names] == [predicted[name] for name in names], done
    files = ("memory.max", "memory.oom.group", "cpu.max", "cpu.weight", "pids.max", "io.max")
    assert [unit.file(name) for name in files] == [
        str(96 * MIB),
        "1",
        "50000 100000",
        "50",
        "77",
        "254:0 rbps=max wbps=1048576 riops=500 wiops=max",
    ]
    assert unit.limit(limits=wanted)["changed"] is False
    undone = unit.limit(limits=done["undo"])
    had = {name: value for name, value in done["before"]["limits"].items() if value is not None}
    assert {name: undone["after"]["limits"][name] for name in had} == had
    assert undone["after"]["limits"]["cpu_max"] == "max 100000", "systemd may not have had it enabled"


def test_memory_max_kills_at_the_limit_and_not_below(unit):
    unit.limit(limits={"memory_max": "64M"})
    assert unit.do("anonymous", 32) == "done"
    assert unit.events()["oom_kill"] == 0
    unit.ask("anonymous", 64)
    wait_until(lambda: unit.show("Result") == "oom-kill", "systemd's word for it", 120)


def test_cpu_max(unit):
    unit.limit(limits={"cpu_max": "20%"})
    assert float(unit.do("busy", 3)) < 0.4
    assert unit.events("cpu.stat")["nr_throttled"] > 3


def test_pids_max(unit):
    unit.limit(limits={"pids_max": "3"})
    assert unit.do("processes", 2) == "done"
    assert unit.do("processes", 1) == "Resource temporarily unavailable"
    assert unit.events("pids.events")["max"] == 1


def test_io_max(machine):
    """Written to the disk itself, so that no cache answers."""
    unit = Unit(machine)
    try:
        write = "dd if=/dev/zero of=/var/tmp/written bs=256k count=12 oflag=direct 2>/dev/null"
        inside = f"sh -c 'echo $$ >/sys/fs/cgroup{unit.path}/cgroup.procs; s=$(date +%s%N); {write}; echo $(( $(date +%s%N) - s ))'"
        free = int(machine.run(inside))
        unit.limit(limits={"io_max": [{"device": "/dev/vda", "wbps": "512K"}]})
        limited = int(machine.run(inside))
        assert limited > 4e9 and limited > free
    finally:
        machine.run("rm -f /var/tmp/written")
        unit.end()


def test_s15_nothing_is_killed_that_did_not_ask_for_more(unit):
    """Memory that cannot be reclaimed: there is no swap."""
    unit.do("anonymous", 64)
    before = unit.limit(limits={})["before"]
    refused = unit.limit(limits={"memory_max": "32M"})
    assert (refused["error_kind"], refused["limit_bytes"]) == ("limit_below_use", 32 * MIB)
    in_vain = unit.limit(limits={"memory_max": "32M"}, step_down=True, timeout_seconds=2)
    assert in_vain["error_kind"] == "limit_below_use" and "did not sink" in in_vain["msg"]
    assert unit.limit(limits={})["before"] == before
    assert unit.do("anonymous", 1) == "done" and unit.events()["oom_kill"] == 0
    unit.limit(limits={"memory_max": "32M"}, force=True)
    wait_until(lambda: unit.show("Result") == "oom-kill", "the kernel's answer to force", 120)


def test_s15_stepping_down_gives_the_page_cache_back(unit):
    unit.machine.run("dd if=/dev/zero of=/var/tmp/data bs=1M count=96 2>/dev/null; sync; echo 1 >/proc/sys/vm/drop_caches")
    unit.do("cached")
    assert int(unit.file("memory.current")) > 64 * MIB
    wanted = {"memory_max": "48M", "memory_high": "max"}
    assert unit.limit(limits=wanted)["error_kind"] == "limit_below_use"
    predicted = unit.limit(limits=wanted, step_down=True, check_mode=True)
    done = unit.limit(limits=wanted, step_down=True)
    assert [step["action"] for step in done["actions"]] == ["step_down", "set"]
    assert done["after"] == predicted["after"]
    assert (unit.file("memory.max"), unit.file("memory.high")) == (str(48 * MIB), "max")
    assert unit.machine.run(f"ls /run/systemd/transient/{unit.name}.d") == "50-MemoryMax.conf", "nothing is left of the way there"
    assert unit.events()["oom_kill"] == 0 and unit.do("cached") == "done"
    unit.machine.run("rm /var/tmp/data")


def test_s13_systemd_keeps_it_over_a_reload_and_a_restart_and_is_never_asked_to_reload(machine):
    machine.run("mkdir -p /run/systemd/system; printf '[Service]\\nExecStart=sleep inf\\n' >/run/systemd/system/kept.service")
    machine.run("systemctl start kept.service")

    def reloads():
        return machine.run("journalctl --sync; journalctl _PID=1 --output=cat").count("Reloading")

    def limit(**limits):
        return machine.module("cgroup_limits", unit="kept.service", **limits)

    def now():
        return [machine.run(f"cat /sys/fs/cgroup/system.slice/kept.service/{name}") for name in ("memory.max", "cpu.max")]

    before = reloads()
    runtime = limit(limits={"memory_max": "64M", "cpu_max": "50%"})
    assert runtime["after"]["kept"] == {"memory_max": "runtime", "cpu_max": "runtime"}
    persistent = limit(limits={"memory_max": "64M"}, persistent=True)
    assert persistent["after"]["kept"] == {"memory_max": "persistent"}
    assert limit(limits={"memory_max": "64M"}, persistent=True)["changed"] is False
    assert reloads() == before
    for what in ("daemon-reload", "restart kept.service"):
        machine.run(f"systemctl {what}")
        assert now() == [str(64 * MIB), "50000 100000"]
    assert reloads() == before + 1, "ours, which shows that they are seen"
    assert "MemoryMax=67108864" in machine.run("cat /etc/systemd/system.control/kept.service.d/50-MemoryMax.conf")
    assert limit(limits={"memory_max": "48M"})["after"]["kept"] == {"memory_max": "persistent"}, "a file in /run would lose to it"
    machine.run("systemctl stop kept.service; rm -r /run/systemd/system/kept.service /etc/systemd/system.control/kept.service.d")


def test_what_was_written_past_systemd_is_told_to_it(unit):
    unit.machine.run(f"echo {64 * MIB} >/sys/fs/cgroup{unit.path}/memory.max")
    assert unit.limit(limits={"memory_max": "64M"})["changed"] is True
    assert unit.show("MemoryMax") == str(64 * MIB)
    assert unit.limit(limits={"memory_max": "64M"})["changed"] is False


def test_a_slice_for_a_tenant(machine):
    def tenant(state, **options):
        return machine.module("cgroup_limits", cgroup="/tenant.slice/tenant-a.slice", state=state, **options)

    made = tenant("present", limits={"memory_max": "50%", "pids_max": "64"})
    assert [step["action"] for step in made["actions"]] == ["create", "set"]
    total = int(machine.run("grep MemTotal /proc/meminfo").split()[1]) * 1024
    assert made["after"]["limits"]["memory_max"] == total // 2 // 4096 * 4096
    assert tenant("present", limits={"memory_max": "50%"})["changed"] is False
    machine.run("systemd-run --quiet --unit=tenant-work --slice=tenant-a.slice sleep inf")
    assert "is not empty" in tenant("absent")["msg"]
    machine.run("systemctl stop tenant-work")
    assert tenant("absent")["changed"] is True
    assert machine.run("ls -d /sys/fs/cgroup/tenant.slice/tenant-a.slice", check=False).startswith("ls: cannot access")
    assert tenant("absent")["changed"] is False


def test_memory_oom_group_ends_all_of_a_cgroup_below_a_delegated_unit(machine):
    """Which the module made there, and which systemd leaves alone."""
    unit = Unit(machine, "Delegate=yes")
    job = f"{unit.path}/job"
    try:
        machine.run(f"cd /sys/fs/cgroup{unit.path}; mkdir own; cat cgroup.procs >own/cgroup.procs")
        made = machine.module("cgroup_limits", cgroup=job, state="present", limits={"memory_max": "48M", "memory_oom_group": True})
        assert made["after"]["managed_by"] == "cgroupfs" and unit.file("memory.max", "/job") == str(48 * MIB)
        takes = 'python3 -c "x = bytes(range(256)) * (64 << 12)"'
        machine.run(f"sh -c 'echo $$ >/sys/fs/cgroup{job}/cgroup.procs; sleep inf & sleep inf & {takes}; sleep inf'", check=False)
        wait_until(lambda: unit.file("cgroup.procs", "/job") == "", "the end of all four", 120)
        assert "oom_group_kill 1" in unit.file("memory.events", "/job")
        assert machine.module("cgroup_limits", cgroup=job, state="absent")["changed"] is True
    finally:
        unit.end()


def test_by_container_and_by_process(machine):
    container = "4f" * 32
    machine.run(f"systemd-run --quiet --scope --unit=docker-{container}.scope --slice=system.slice sleep inf </dev/null >/dev/null 2>&1 &")
    path = f"/system.slice/docker-{container}.scope"
    pid = int(
        wait_until(lambda: machine.run(f"cat /sys/fs/cgroup{path}/cgroup.procs 2>/dev/null", check=False).split(), "the container", 120)[-1]
    )
    try:
        done = machine.module("cgroup_limits", container=container[:12], limits={"pids_max": "9"})
        assert (done["after"]["cgroup"], done["after"]["managed_by"]) == (path, "systemd")
        assert machine.module("cgroup_limits", pid=pid, limits={"pids_max": "9"}, persistent=True)["changed"] is False, "it ends with it"
        assert machine.module("cgroup_limits", pid=pid, start_ticks=1, limits={"pids_max": "9"})["error_kind"] == "no_cgroup"
        assert machine.module("cgroup_limits", container="ab" * 6, limits={"pids_max": "9"})["error_kind"] == "no_cgroup"
    finally:
        machine.run(f"systemctl stop docker-{container}.scope")


@pytest.mark.parametrize(
    ("options", "kind", "why"),
    [
        ({"unit": "ssh.service"}, "not_proven", "never touched"),
        ({"cgroup": "/init.scope"}, "not_proven", "never touched"),
        ({"cgroup": "/system.slice"}, "not_proven", "systemd's own"),
        ({"unit": "nowhere.service"}, "no_cgroup", "does not run"),
        ({"cgroup": "/beside", "state": "present"}, "cgroup", "systemd manages what is above it"),
    ],
)
def test_s10_what_is_refused(machine, options, kind, why):
    refused = machine.module("cgroup_limits", limits={"pids_max": "500"}, **options)
    assert (refused.get("error_kind"), refused.get("changed", False)) == (kind, False), refused
    assert why in refused["msg"]


def test_by_ansible(machine, tmp_path):
    """As a playbook runs it: sent over SSH, run by the node's own Python."""
    (unit := Unit(machine)).do("processes")
    inventory = {"all": {"hosts": {"vm": machine.host_variables()}}}
    (tmp_path / "hosts.json").write_text(json.dumps(inventory))
    try:
        arguments = json.dumps({"unit": unit.name, "limits": {"memory_max": "64M"}})
        command = ["ansible", "vm", "-i", tmp_path / "hosts.json", "-m", "gpuops.remediation.cgroup_limits", "-a", arguments, "--diff"]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert ran.returncode == 0 and "CHANGED" in ran.stdout, ran.stdout + ran.stderr
        assert unit.file("memory.max") == str(64 * MIB)
    finally:
        unit.end()
