# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""mps_daemon's unit under a real systemd: started, killed, with its limits each time, and ended."""

from __future__ import annotations

import json

import pytest
from cluster.objects import wait_until
from controller_machine import running_controller

NODE = "/srv/nodes/gpu-1"
CONTROL = f"{NODE}/sbin/nvidia-cuda-mps-control"
pytestmark = pytest.mark.timeout(600)


class Machine:
    def __init__(self, controller):
        self.controller, self.systemd = controller, controller.systemd
        self.device = controller.node("gpu-1")["gpus"][0]["uuid"]
        self.unit = f"gpuops-mps@{self.device}.service"
        self.pipes = f"/run/gpuops-mps/{self.device}"
        self.options = {"state_dir": f"{NODE}/var/lib/gpuops", "proc_root": f"{NODE}/proc", "mps_control": CONTROL}

    def run(self, *options, **params):
        """The module as a task, by Ansible, on this machine."""
        places = {"dev_root": f"{NODE}/dev", "kmsg_path": f"{NODE}/dev/kmsg", "nvml_library": f"{NODE}/lib/libnvidia-ml.so.1"}
        given = json.dumps({"device": self.device, **self.options, **places, **params})
        there = ["--inventory=/etc/gpuops/inventory.yml", "--vault-password-file=/etc/gpuops/vault", "-eansible_connection=local"]
        done = self.controller.program(
            "ansible", "gpu-1", *there, "--module-name=gpuops.remediation.mps_daemon", f"--args={given}", *options
        )
        assert "=> {" in done.output, done.output
        return json.JSONDecoder().raw_decode(done.output.split("=> ", 1)[1])[0]

    def ask(self, command):
        script = f"echo '{command}' | {CONTROL}"
        return self.systemd.run("sh", "-c", script, environment={"CUDA_MPS_PIPE_DIRECTORY": self.pipes}, check=False).stdout

    def mps(self, *order):
        return json.loads(self.controller._gpusim("mps", f"--pipe-directory={self.pipes}", *order))

    def files(self):
        places = ["/etc/gpuops/mps", "/etc/systemd/system/multi-user.target.wants", "/usr/local/lib/gpuops"]
        found = self.systemd.run("find", *places, "(", "-name", "*mps*", "-o", "-path", "*/mps/*", ")", "!", "-type", "d", check=False)
        return sorted(line.rsplit("/", 1)[1] for line in found.stdout.splitlines())


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    with running_controller(tmp_path_factory.mktemp("systemd") / "machine", ["gpu-1"]) as controller:
        yield Machine(controller)


def test_the_daemon_comes_with_its_limits_and_goes_when_nobody_uses_it(machine):
    want = {"memory_limit": "4G", "active_thread_percentage": 50}
    foretold = machine.run("--check", **want)
    assert foretold["changed"] and machine.files() == [], foretold
    first = machine.run(**want)
    assert (first["actions"], first["after"]) == (foretold["actions"], {**foretold["after"], "defaults": first["after"]["defaults"]}), first
    assert first["after"]["defaults"] == {"memory_limit_bytes": 4 << 30, "active_thread_percentage": 50.0, "client_priority": "normal"}
    assert not machine.run(**want)["changed"]
    assert machine.files() == sorted([f"{machine.device}.env", f"{machine.device}.json", machine.unit, "gpuops-mps"])
    assert machine.systemd.run("stat", "-c", "%a", machine.pipes).stdout.strip() == "755", "open, since the limits are in force"
    assert machine.systemd.systemctl("is-enabled", machine.unit) == "enabled"

    machine.systemd.systemctl("kill", "--signal=KILL", machine.unit)
    wait_until(lambda: machine.ask("get_default_device_pinned_mem_limit 0") == "4G\n", "the daemon again, with its limit", 60)

    assert machine.run(memory_limit="8G", active_thread_percentage=50)["changed"]
    client = machine.mps("connect", "--memory-mib=6000")
    refused = machine.run(state="absent")
    assert (refused["error_kind"], refused["clients"]) == ("has_clients", [client["pid"]])
    assert machine.ask("get_server_list") == f"{client['server']}\n", "it was not told to quit"
    machine.controller._gpusim("process", "gpu-1", "exit", f"--pid={client['pid']}")
    gone = machine.run(state="absent")
    assert gone["changed"] and machine.systemd.systemctl("is-active", machine.unit, check=False) == "inactive"
    assert machine.files() == ["gpuops-mps"], "the program may be another device's too"
    assert not machine.run(state="absent")["changed"]
    assert "Reloading" not in machine.systemd.journal("_PID=1"), "S13"


def test_a_daemon_that_does_not_have_its_limits_serves_nobody(machine):
    machine.run(memory_limit="4G")
    settings = machine.systemd.root / f"etc/gpuops/mps/{machine.device}.json"
    settings.write_text(settings.read_text().replace("4096", '"banana"'))
    machine.systemd.systemctl("restart", machine.unit, check=False)
    assert machine.systemd.systemctl("is-active", machine.unit, check=False) != "active"
    # a run may meet the daemon in one of the unit's own restarts, which ends, and says so
    wait_until(lambda: not machine.run(memory_limit="4G").get("failed"), "a run that mends it", 60)
    assert machine.ask("get_default_device_pinned_mem_limit 0") == "4G\n"
    machine.run(state="absent")
