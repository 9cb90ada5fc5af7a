# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""cgroup_state on a systemd unit of a machine that has cgroup v2 alone, with its own processes on a simulated GPU."""

from __future__ import annotations

import json

import pytest
from cluster.objects import wait_until
from vm.machine import INSIDE

pytestmark = pytest.mark.timeout(900)  # its CPU is imitated, and others want the real ones
UNIT = "train.service"
PATH = f"/system.slice/{UNIT}"
# One child in the unit's own cgroup, one below it, as a program with cgroups of its own has them.
TRAIN = f"""
import os, signal
os.mkdir("/sys/fs/cgroup{PATH}/worker")
for below in ("", "/worker"):
    if os.fork() == 0:
        with open("/sys/fs/cgroup{PATH}" + below + "/cgroup.procs", "w") as file:
            file.write("0")
        signal.pause()
while True:
    signal.pause()
"""
ON_GPU = """
import json, sys
from pathlib import Path
from gpusim import build
from gpusim.node import Node
from gpusim.state import start_ticks

build.nvml_library = lambda cache: Path({inside!r}, build.SONAME)
node = Node(Path("/opt/nodes"), "vm")
if not node.exists:
    node.create(gpus=1)
pid = int(sys.argv[1])
with node.change() as state:
    state["processes"].append(dict(
        pid=pid, start_ticks=start_ticks(pid), supervisor=0, supervisor_ticks=None, name="train", executable="/usr/bin/python3", type="compute",
        gpus=[0], memory_bytes=1 << 30, gi=None, ci=None, cgroup_path="/nowhere", ends="normal", pod=None))
print(json.dumps(dict(gpu=node.state()["gpus"][0]["uuid"], nvml_library=str(node.nvml_library))))
"""


@pytest.fixture
def on_gpu(machine):
    """The unit's processes, and the options that name its GPU; its first process is on it."""
    machine.serve()
    machine.run(f"cat >/opt/train.py <<'END'\n{TRAIN}\nEND\ncat >/opt/on_gpu.py <<'END'\n{ON_GPU.format(inside=INSIDE)}\nEND")
    machine.run(f"systemd-run --quiet --unit={UNIT} -p Delegate=yes python3 /opt/train.py")
    wait_until(lambda: len(members(machine)) == 3, "the unit's three processes", 120)
    first = machine.run(f"systemctl show --value --property=MainPID {UNIT}")
    yield json.loads(machine.run(f"PYTHONPATH={INSIDE} python3 /opt/on_gpu.py {first}"))
    machine.run(f"systemctl stop {UNIT}; systemctl reset-failed {UNIT}; rm -rf /opt/nodes", check=False)


def members(machine):
    return machine.run(f"find /sys/fs/cgroup{PATH} -name cgroup.procs -exec cat {{}} + 2>/dev/null", check=False).split()


def test_a_unit_is_frozen_thawed_and_killed_with_all_below_it(machine, on_gpu):
    def ask(state, **options):
        now = machine.run("date -u +%FT%T.%NZ")
        answer = machine.module("cgroup_state", state=state, cgroup=PATH, fault_time=now, timeout_seconds=60, **options)
        assert not answer.get("failed"), answer
        return answer

    assert len(ask("frozen", **on_gpu)["actions"]) == 1
    states = machine.run(f"cat /sys/fs/cgroup{PATH}/cgroup.events /sys/fs/cgroup{PATH}/worker/cgroup.events")
    assert states.count("frozen 1") == 2
    assert ask("thawed")["after"]["cgroups"][0]["frozen"] is False
    killed = ask("killed", **on_gpu)
    assert (len(killed["before"]["cgroups"][0]["processes"]), killed["after"]["cgroups"][0]["processes"]) == (3, [])
    assert members(machine) == []
    assert machine.run(f"systemctl show --value --property=Result {UNIT}") == "signal"
