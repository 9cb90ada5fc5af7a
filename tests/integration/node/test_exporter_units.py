# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the role gpu_exporter installs, under a real systemd: the units in their sandbox, killed, deployed again, changed."""

from __future__ import annotations

import contextlib
import json
import time

import pytest
from cluster.objects import wait_until
from controller_machine import OURS, PROGRAMS, running_controller
from node_exporter import parsed
from ports import free_port

EXPORTER, STATE, TIMER = "gpuops-exporter.service", "gpuops-node-state.service", "gpuops-node-state.timer"
SCRAPE = "import urllib.request; print(urllib.request.urlopen('http://127.0.0.1:{}/metrics', timeout=10).read().decode())"
pytestmark = pytest.mark.timeout(600)


class Machine:
    def __init__(self, controller):
        self.controller, self.systemd, self.port = controller, controller.systemd, free_port()

    def deploy(self, *options, **more):
        reached = {"ansible_connection": "local", "ansible_pipelining": True}
        variables = json.dumps({**reached, "gpuops_nodes": "gpu-1", "gpuops_exporter_port": self.port, **more})
        there = ["--inventory=/etc/gpuops/inventory.yml", "--vault-password-file=/etc/gpuops/vault", f"-e{variables}"]
        return self.controller.program("ansible-playbook", "gpuops.remediation.deploy_node", *there, *options)

    def page(self):
        """None while nobody answers."""
        done = self.systemd.run("/usr/bin/python3", "-c", SCRAPE.format(self.port), check=False)
        return parsed(done.stdout) if done.returncode == 0 else None

    def figure(self, name, **labels):
        page = self.page() or {}
        return sum((value for (metric, found), value in page.items() if metric == name and labels.items() <= dict(found).items()), 0)

    def persistence(self):
        return {value for (metric, _labels), value in (self.page() or {}).items() if metric == "gpuops_gpu_persistence_mode"}

    def set_persistence(self, mode):
        code = f"from gpusim.node import Node\nwith Node(Path('/srv/nodes'), 'gpu-1').change() as state: state['gpus'][0]['persistence'] = {mode}"
        environment = {"PYTHONPATH": f"{OURS}/roles/simulated_gpu_node/files"}
        self.systemd.run(f"{PROGRAMS}/bin/python", "-c", f"from pathlib import Path\n{code}", environment=environment)

    def main_pid(self):
        return int(self.systemd.show(EXPORTER, "MainPID"))


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    with running_controller(tmp_path_factory.mktemp("systemd") / "machine", ["gpu-1"]) as controller:
        yield Machine(controller)


@pytest.fixture(scope="module")
def deployed(machine):
    foretold = machine.deploy("--check", "--diff")
    assert foretold.ok and not (machine.systemd.root / "etc/gpuops-exporter").exists(), foretold.output
    first, again = machine.deploy(), machine.deploy()
    assert (first.ok, again.ok, again.changed("gpu-1")) == (True, True, 0), first.output + again.output
    wait_until(lambda: machine.figure("gpuops_source_up", source="kernel_log"), "a page with root's part", 60)
    return machine


def test_every_figure_comes_through_the_sandbox(deployed):
    """The node has Debian's Python and none of its packages; the service has no capability, and its user cannot read what root's reader reads."""
    assert deployed.figure("gpuops_nvml_up") == 1
    assert deployed.figure("gpuops_xid_events_total", xid="48") == 1
    assert deployed.figure("gpuops_container_memory_used_bytes") > 0
    systemd = deployed.systemd
    status = (systemd.root / f"proc/{deployed.main_pid()}/status").read_text()
    assert {line.split()[1] for line in status.splitlines() if line.startswith("Cap")} == {"0" * 16}
    assert "Uid:\t0" not in status
    assert systemd.run("cat", "/run/gpuops-node/state.json", user="nobody", check=False).returncode
    assert systemd.run("find", "/run/gpuops-node/program", "-name", "__main__.py").stdout.strip(), "root's reader runs unpacked"
    assert systemd.run("stat", "-c", "%U:%G %a", "/run/gpuops-node/state.json").stdout.strip() == "root:gpuops-exporter 640"


def test_s13_systemd_is_not_reloaded(deployed):
    """Not by the first deployment either, and a changed unit waits."""
    said = deployed.systemd.journal("--unit=init.scope", "_PID=1")
    assert "Started" in said and "Reloading" not in said
    unit = deployed.systemd.root / "etc/systemd/system" / EXPORTER
    before = unit.read_text()
    unit.write_text(before.replace("TasksMax=64", "TasksMax=63"))
    run = deployed.deploy()
    assert run.ok and unit.read_text() == before, run.output
    assert "reload_pending: gpuops-exporter.service" in run.output and deployed.page()
    allowed = "-egpuops_exporter_daemon_reload=true"
    foretold = deployed.deploy(allowed, "--check")
    assert foretold.ok and foretold.changed("gpu-1") == 2, foretold.output  # the reload and the restart
    assert "Reloading" not in deployed.systemd.journal("_PID=1")
    remedy = deployed.deploy(allowed)
    assert (remedy.ok, remedy.changed("gpu-1"), "reload_pending" in remedy.output) == (True, 2, False), remedy.output
    assert deployed.systemd.show(EXPORTER, "NeedDaemonReload") == "no"


def test_a_restart_that_a_broken_run_owes_is_made_by_the_next(deployed):
    """It wrote the settings and came no further."""
    settings = deployed.systemd.root / "etc/gpuops-exporter/exporter.json"
    before = deployed.main_pid()
    time.sleep(1.1)  # systemd tells no fractions of a second
    settings.write_text(settings.read_text())
    run, pid = deployed.deploy(), deployed.main_pid()
    assert run.ok and pid != before, run.output
    assert deployed.deploy().changed("gpu-1") == 0 and deployed.main_pid() == pid


def test_a_deployment_after_which_nothing_serves_is_no_success(deployed):
    """systemd starts it again and again; its own words say why. Nor is one where the driver gives up GPUs, unless that is wanted."""
    failed = deployed.deploy(gpuops_exporter_certfile="/etc/gpuops-exporter/no-such.pem")
    assert not failed.ok and "does not answer with the page" in failed.output, failed.output
    assert "/etc/gpuops-exporter/no-such.pem: [Errno 2] No such file" in failed.output
    deployed.set_persistence(0)
    try:
        mended, refused = deployed.deploy(gpuops_exporter_needs_persistence=False), deployed.deploy()
        assert mended.ok and deployed.persistence() == {0}, mended.output
        assert not refused.ok and "nvidia-persistenced" in refused.output, refused.output
    finally:
        deployed.set_persistence(1)
    wait_until(lambda: deployed.persistence() == {1}, "the mode on the page", 30)


def test_killed_it_comes_again_and_has_lost_nothing(deployed):
    pid = deployed.main_pid()
    deployed.systemd.run("kill", "-KILL", str(pid))
    wait_until(lambda: deployed.main_pid() not in (0, pid) and deployed.page(), "another exporter", 60)
    assert deployed.figure("gpuops_xid_events_total", xid="48") == 1


def test_root_reads_every_ten_seconds(deployed):
    before = deployed.figure("gpuops_exporter_cpu_seconds_total", part="state")
    wait_until(lambda: deployed.figure("gpuops_exporter_cpu_seconds_total", part="state") > before, "another reading", 60)
    with contextlib.suppress(AssertionError):
        deployed.systemd.systemctl("is-failed", STATE)
    assert "Finished" not in deployed.systemd.journal(f"--unit={STATE}"), "six lines a minute that say nothing"
    assert deployed.systemd.show(TIMER, "ActiveState") == "active" and deployed.systemd.show(STATE, "Result") == "success"
