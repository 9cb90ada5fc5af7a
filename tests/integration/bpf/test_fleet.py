# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the role ebpf_probes leaves on a node, and what its program does there in the real kernel; no systemd runs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf import kernel, memory
from ansible_collections.gpuops.remediation.plugins.modules import ebpf_probe_info
from cluster.objects import wait_until
from loop import Controller
from run_module import run_module

pytestmark = pytest.mark.timeout(600)
KIB, FUNCTION = 1024, 0xF00
UNITS = ("gpuops-probes.service", "gpuops-probes.timer", "gpuops-probes-boot.service")


class Fleet:
    """One node: this machine, its probes in a namespace of the test and its files in folders of it."""

    def __init__(self, controller, namespace, folder):
        self.controller, self.namespace, self.folder = controller, namespace, folder
        self.units, self.config, self.result = folder / "units", folder / "etc/probes.json", folder / "run/gpuops-probes/result.json"
        controller.host_variables["gpu-1"] = {
            "ansible_connection": "local",
            "ansible_python_interpreter": str(controller.programs / "python"),
        }
        controller.variables.update(
            gpuops_probes=["cuda_mem"],
            gpuops_probes_max_allocations=16384,
            gpuops_probes_bpffs_dir=namespace.bpffs,
            gpuops_probes_unit_dir=str(self.units),
            gpuops_probes_config_dir=str(self.config.parent),
            gpuops_probes_program_dir=str(folder / "lib"),
            gpuops_probes_run_dir=str(folder / "run"),
            gpuops_state_dir=str(folder / "state"),
        )
        self.result.parent.mkdir(parents=True)  # systemd's, else

    def play(self, tasks="main", *options, **more):
        """The role, from one of its task files."""
        book = self.folder / f"{tasks}.yml"
        role = {"name": "gpuops.remediation.ebpf_probes", "tasks_from": tasks}
        task = {"name": "Run the role", "ansible.builtin.include_role": role}
        book.write_text(json.dumps([{"name": "Play", "hosts": "all", "gather_facts": False, "tasks": [task]}]))
        run = self.controller.play(str(book), *options, **more)
        assert run.ok, run.output
        return run

    def command(self, unit="gpuops-probes.service"):
        """What the unit starts."""
        lines = dict(line.split("=", 1) for line in (self.units / unit).read_text().splitlines() if "=" in line and line[0] != "#")
        return lines["ExecStart"].split()

    def run(self, unit="gpuops-probes.service", fails=False):
        done = subprocess.run(self.command(unit), env={}, cwd="/", capture_output=True, text=True, check=False, timeout=200)
        assert (done.returncode != 0) == fails and not done.stderr, done.stdout + done.stderr
        return json.loads(self.result.read_text())

    def links(self):
        return sorted(os.listdir(self.namespace.links)) if self.namespace.links.exists() else []


@pytest.fixture
def fleet(namespace, tmp_path):
    with Controller(tmp_path / "controller") as controller:
        yield Fleet(controller, namespace, tmp_path / "node")


def in_kernel():
    """The links that the kernel has, by its own tool, whoever made them."""
    told = subprocess.run(["bpftool", "--json", "link", "show"], capture_output=True, text=True, check=True).stdout
    return {link["id"] for link in json.loads(told)}


def test_the_role_comes_stays_and_goes(fleet, built):
    options = {"probes_libraries": [str(built["push"])]}
    fleet.play("main", "--check", "--diff", **options)
    assert not fleet.links() and not fleet.config.exists() and not fleet.units.exists()
    first = fleet.play(**options)
    assert first.changed("gpu-1") and len(fleet.links()) == 4
    assert fleet.play(**options).changed("gpu-1") == 0
    assert fleet.play("main", "--check", **options).changed("gpu-1") == 0
    numbers = {kernel.link_ids(str(pin))[0] for pin in fleet.namespace.links.iterdir()}
    assert numbers <= in_kernel()

    for unit in UNITS:
        checked = subprocess.run(["systemd-analyze", "verify", "--man=no", fleet.units / unit], capture_output=True, text=True, check=False)
        assert checked.returncode == 0 and unit not in checked.stderr, checked.stderr
    for target, unit in (("timers", UNITS[1]), ("multi-user", UNITS[2])):
        assert (fleet.units / f"{target}.target.wants" / unit).resolve() == fleet.units / unit
    assert "kubelet.service" in next(line for line in (fleet.units / UNITS[2]).read_text().splitlines() if line.startswith("Before="))

    assert fleet.play("main", "--check", probes_state="absent", **options).changed("gpu-1")
    assert set(fleet.links()) and fleet.config.exists()
    fleet.play(probes_state="absent", **options)
    wait_until(lambda: not numbers & in_kernel(), "the kernel without a link of ours")
    assert not os.path.exists(fleet.namespace.bpffs)
    left = [path for name in ("etc", "lib", "run", "units") for path in (fleet.folder / name).rglob("*") if not path.is_dir()]
    assert left == [] and fleet.play(probes_state="absent", **options).changed("gpu-1") == 0


def test_a_program_that_is_killed_midway_goes_on(fleet, built, caller):
    """After a reboot, which has left no probe. Each function has a link of its own here, so that there is a middle."""
    fleet.play(probes_libraries=[str(built["push"])])
    fleet.namespace.probe("absent")
    settings = json.loads(fleet.config.read_text())
    settings["ebpf_probe"]["attach"] = "perf"
    fleet.config.write_text(json.dumps(settings))
    fleet.run("gpuops-probes-boot.service")
    wanted = fleet.links()

    begun = wanted
    while begun == wanted:  # a machine that is busy may look only when all is done
        fleet.namespace.probe("absent")
        fleet.result.unlink(missing_ok=True)
        with subprocess.Popen(fleet.command("gpuops-probes-boot.service"), env={}, cwd="/", stdout=subprocess.DEVNULL) as process:
            while len(fleet.links()) < 5 and process.poll() is None:
                pass
            process.send_signal(signal.SIGKILL)
        begun = fleet.links()
    assert process.returncode == -signal.SIGKILL and not fleet.result.exists()
    told = fleet.run("gpuops-probes-boot.service")
    assert told["actions"]["attach"] >= 1 and set(begun) < set(fleet.links()) == set(wanted), "what was there is kept, the rest is added"
    assert told["actions"]["attach"] + len(begun) == len(fleet.links())
    assert fleet.run()["actions"] == {}
    with caller(built["push"]) as process:
        process.ok("cuMemAlloc_v2", None, KIB)
        assert [each.usage.held_bytes["device"] for each in memory.accounts(fleet.namespace.maps)] == [KIB]


def test_a_copy_that_comes_later_is_found_by_the_timers_command_and_left_when_it_is_gone(fleet, built, caller, tmp_path):
    """As a container brings one: its path means something in its own mount namespace only."""
    fleet.play()
    before = fleet.run()
    private = "/run/nvidia/driver/usr/lib/some-linux-gnu/libcuda.so.580.1"
    enter = fleet.namespace.enter
    subprocess.run(enter("mount", "-t", "tmpfs", "tmpfs", "/run"), check=True)
    subprocess.run(enter("mkdir", "-p", os.path.dirname(private)), check=True)
    subprocess.run(enter("cp", built["thunk"], private), check=True)
    with caller(private, wrap=enter()) as process:
        told = fleet.run()
        assert told["actions"]["attach"] >= 2 and told["copies"] > 0 and told["error"] is None
        process.ok("cuMemAlloc_v2", None, KIB)
        (held,) = [each.usage.held_bytes["device"] for each in memory.accounts(fleet.namespace.maps) if each.tgid == process.pid]
        assert held == KIB
    assert told["totals"]["runs"] == before["totals"]["runs"] + 1 and told["totals"]["failures"] == 0
    assert told["totals"]["cpu_seconds"] > before["totals"]["cpu_seconds"] > 0 and told["resident_bytes"] > 0
    subprocess.run(enter("rm", private), check=True)
    assert fleet.run()["actions"]["detach"] >= 2


def test_no_probe_comes_back_during_a_driver_upgrade(fleet, built):
    """Not by a timer that somebody starts, and not by a reboot in the middle."""
    options = {"probes_libraries": [str(built["push"])]}
    fleet.play(**options)
    assert fleet.play("before_driver_upgrade", "--check", **options).changed("gpu-1") and len(fleet.links()) == 4
    fleet.play("before_driver_upgrade", **options)
    assert not os.path.exists(fleet.namespace.bpffs)
    for unit in ("gpuops-probes.service", "gpuops-probes-boot.service"):
        assert fleet.run(unit)["held"] and not fleet.links()
    assert fleet.play("before_driver_upgrade", **options).changed("gpu-1") == 0
    fleet.play("after_driver_upgrade", **options)
    assert len(fleet.links()) == 4 and not fleet.run()["held"]


def test_a_driver_upgrade_brings_no_probes_where_there_were_none(fleet):
    """The whole fleet is upgraded; probes are for those that have been chosen."""
    for tasks in ("before_driver_upgrade", "after_driver_upgrade"):
        assert fleet.play(tasks).changed("gpu-1") == 0
    assert not fleet.config.exists() and not fleet.units.exists() and not fleet.links()


def test_a_probe_that_is_chosen_no_more_goes_also_when_an_old_run_brings_it_back(fleet, built):
    options = {"probes_libraries": [str(built["push"])]}
    fleet.play(probes=["cuda_mem", "gpu_xid"], **options)
    xid_links = fleet.namespace.links.parents[1] / "gpu_xid/links"
    assert len(fleet.links()) == 4 and list(xid_links.iterdir())
    fleet.play(probes=["gpu_xid"], **options)
    assert not fleet.links() and list(xid_links.iterdir())
    fleet.namespace.probe(libraries=[built["push"]])
    assert fleet.run()["actions"]["detach"] == 4 and not fleet.links() and list(xid_links.iterdir())


def test_a_run_that_fails_is_told_and_the_next_one_makes_it_good(fleet, built, tmp_path):
    library = tmp_path / "libcuda.so.1"
    shutil.copy(built["push"], library)
    fleet.play(probes_libraries=[str(library)])
    well = fleet.run()
    library.rename(tmp_path / "away")
    failed = fleet.run(fails=True)
    assert (failed["error_kind"], failed["totals"]["failures"], failed["totals"]["runs"]) == ("symbol_missing", 1, 2)
    assert failed["succeeded_seconds"] == well["succeeded_seconds"] < failed["written_seconds"]
    assert len(fleet.links()) == 4, "what counts goes on counting"
    (tmp_path / "away").rename(library)
    assert (again := fleet.run())["error"] is None and again["totals"] == {**again["totals"], "failures": 1, "runs": 3}


def test_launch_probes_that_cost_more_than_they_may_go_and_come_when_somebody_asks_again(fleet, built, caller):
    options = {"probes": ["cuda_launch"], "probes_libraries": [str(built["push"])]}
    links = fleet.namespace.links.parents[1] / "cuda_launch/links"
    fleet.play(probes_launch_cpu_percent=90, **options)
    first = fleet.run()["launch_cost"]
    assert first["hits"] == 0 and first["cpu_percent"] is None and first["hit_ns"] > 0
    with caller(built["push"]) as process:
        process.ok("launch_many", FUNCTION, 100_000)
        time.sleep(1)
        well = fleet.run()
        cost, spent = well["launch_cost"], (well["launch_cost"]["programs_ns"] + 200_000 * first["hit_ns"]) / 1e7
        assert cost["hits"] == 200_000 and cost["hit_ns"] == first["hit_ns"] and well["stopped"] == {}
        assert cost["cpu_percent"] == pytest.approx(spent / (cost["boottime_seconds"] - first["boottime_seconds"]))
        settings = json.loads(fleet.config.read_text())
        assert settings["launch_cpu_percent"] == 90
        fleet.config.write_text(json.dumps({**settings, "launch_cpu_percent": 0.001}))
        process.ok("launch_many", FUNCTION, 100_000)
        time.sleep(1)
        stopped = fleet.run()
        assert stopped["actions"]["detach"] == 2 and stopped["error"] is None and not links.exists()
        assert "may take 0.001 %" in stopped["stopped"]["cuda_launch"]["why"]
        process.ok("launch_many", FUNCTION, 10)
    state = {"state_dir": str(fleet.folder / "state")}
    told = run_module(ebpf_probe_info.main, bpffs_dir=fleet.namespace.bpffs, **state)["cuda_launch"]
    assert told == {"attached": False, "links": [], "stopped": stopped["stopped"]["cuda_launch"]}
    assert fleet.run("gpuops-probes-boot.service")["actions"] == {} and not links.exists(), "nor does a boot bring them back"
    ask = {"probes": ["cuda_launch"], "libraries": [built["push"]], **state}
    assert fleet.namespace.probe(check_mode=True, **ask)["changed"]
    assert fleet.run()["stopped"] == stopped["stopped"] and not links.exists(), "check mode asks for nothing"
    fleet.namespace.probe(**ask)
    assert len(list(links.iterdir())) == 2
    again = fleet.run()
    assert again["stopped"] == {} and again["actions"] == {}
