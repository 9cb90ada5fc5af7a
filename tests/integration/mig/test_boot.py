# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A bare host: its layouts as the inventory wants them, and again after a reboot, by a program that has no Ansible."""

from __future__ import annotations

import json
import os
import subprocess
import threading

import pytest
from gpusim import instances
from loop import alive

pytestmark = pytest.mark.timeout(600)
LAYOUTS = [{"counts": {"7g.141gb": 1}}, {"counts": {"3g.71gb": 1, "1g.18gb": 2}}]  # of all GPUs both, so that the last counts


@pytest.fixture
def host(controller, tmp_path):
    """A node with two GPUs whose files of ours are in folders of the test."""
    controller.variables.update(
        gpuops_mig_layouts=LAYOUTS,
        gpuops_mig_config_dir=str(tmp_path / "config"),
        gpuops_mig_program_dir=str(tmp_path / "program"),
        gpuops_mig_unit_dir=str(tmp_path / "units"),
    )
    for folder in ("units", "programs"):
        (tmp_path / folder).mkdir()
    systemctl = tmp_path / "programs" / "systemctl"
    systemctl.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/asked-of-systemd\n')
    systemctl.chmod(0o755)
    controller.more_environment["PATH"] = os.pathsep.join([str(systemctl.parent), os.environ["PATH"]])
    return controller.node("bare-1", gpus=2)


def boot(tmp_path):
    """What the unit starts, on a machine where whoever imports Ansible fails."""
    missing = tmp_path / "missing" / "ansible"
    missing.mkdir(parents=True, exist_ok=True)
    (missing / "__init__.py").write_text("raise ImportError('there is no Ansible here')\n")
    [command] = [line for line in (tmp_path / "units/gpuops-mig.service").read_text().splitlines() if line.startswith("ExecStart=")]
    words = command.partition("=")[2].split()
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(missing.parent)}
    return subprocess.run(words, env=environment, cwd="/", capture_output=True, text=True, check=False, timeout=200)


def layouts(node):
    return [sorted(f"{one['name'].removeprefix('MIG ')}@{one['start']}" for one in gpu["mig"]["instances"]) for gpu in node.state()["gpus"]]


def test_after_a_reboot_the_layouts_are_there_again(controller, host, tmp_path):
    """S13: the unit comes without a word to systemd."""
    foretold = controller.play("mig", "--check")
    assert foretold.ok and layouts(host) == [[], []] and not (tmp_path / "config").exists(), foretold.output
    run = controller.play("mig")
    assert run.ok, run.output
    wanted = ["1g.18gb@0", "1g.18gb@1", "3g.71gb@4"]
    assert layouts(host) == [wanted, wanted], run.output
    again = controller.play("mig")
    assert again.ok and again.changed("bare-1") == 0, again.output

    host.reboot()
    assert layouts(host) == [[], []]
    booted = boot(tmp_path)
    assert (booted.returncode, layouts(host)) == (0, [wanted, wanted]), booted.stdout + booted.stderr
    assert controller.journal("bare-1")[-1]["by"] == "the node's boot"
    assert boot(tmp_path).stdout.count("nothing to do") == 2

    # The unit, as systemd reads it, and enabled by a link
    unit = tmp_path / "units" / "gpuops-mig.service"
    checked = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True, check=False)
    assert checked.returncode == 0 and unit.name not in checked.stderr, checked.stderr
    assert (tmp_path / "units/multi-user.target.wants" / unit.name).resolve() == unit
    assert not (tmp_path / "asked-of-systemd").exists()


def boot_files(tmp_path):
    return {
        path: path.read_bytes() for folder in ("units", "config", "program") for path in (tmp_path / folder).rglob("*") if path.is_file()
    }


def test_the_mode_is_asked_before_anything_is_written(controller, host, tmp_path):
    """S4: neither the GPUs nor what is for the next boot; an operator may go on all the same, by name and for a reason."""
    ledger = controller.ledger(write=True)
    for mode in ("observe", "fence"):
        ledger.configure(mode, None, False, "tests", "the test needs it")
        forbidden = controller.play("mig")
        assert f"the mode {mode} forbids changing MIG layouts" in forbidden.failures[-1], forbidden.output
        assert layouts(host) == [[], []] and boot_files(tmp_path) == {} and controller.journal("bare-1") == []
    nameless = controller.play("mig", mig_override_mode=True, why="the trial runs on")
    assert "by somebody, for a reason" in nameless.failures[-1] and layouts(host) == [[], []], nameless.output

    run = controller.play("mig", mig_override_mode=True, who="jane", why="the trial runs on")

    assert run.ok and layouts(host) != [[], []], run.output
    assert {line["why"] for line in controller.journal("bare-1")} == {"jane, in the mode fence: the trial runs on"}
    again = controller.play("mig")
    assert again.ok and again.changed("bare-1") == 0 and "what bare-1 has for its next boot stays as it is" in again.output, again.output
    controller.variables["gpuops_mig_layouts"] = []
    assert controller.play("mig").ok and boot_files(tmp_path) != {}, "not even taken away"


def test_the_boot_stage_alone_and_a_layout_that_is_wanted_no_more(controller, host, tmp_path):
    """Whichever stages are run the files are the same, and they go with the wish."""
    alone = tmp_path / "boot.yml"
    role = {"name": "gpuops.remediation.mig"}
    task = {"name": "Boot", "ansible.builtin.include_role": role, "vars": {"mig_stage": "boot"}}
    alone.write_text(json.dumps([{"name": "Boot", "hosts": "all", "gather_facts": False, "tasks": [task]}]))
    run = controller.play(str(alone))
    assert run.ok and layouts(host) == [[], []], run.output
    written = boot_files(tmp_path)
    assert len(written) == 4 and controller.play("mig").ok and boot_files(tmp_path) == written
    del controller.variables["gpuops_mig_layouts"]
    gone = controller.play("mig")
    assert gone.ok and boot_files(tmp_path) == {} and layouts(host) != [[], []], gone.output


def test_a_boot_that_finds_something_else(controller, host, tmp_path):
    """What is busy stays, also what the kubelet has given away; a driver that is not there is waited for, and not for ever."""
    assert controller.play("mig").ok
    host.reboot()
    for index in (0, 1):
        instances.set_mode(host, index, True)
        instances.create(host, index, "7g.141gb")
    host.start([0], "train", 1 << 30, gi=0, ci=0)
    [uuid] = [one["uuid"] for one in host.state()["gpus"][1]["mig"]["instances"][0]["compute"]]
    checkpoint = host.path / "var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"
    checkpoint.parent.mkdir(parents=True)
    entry = {"PodUID": "a", "ContainerName": "main", "ResourceName": "nvidia.com/mig-7g.141gb", "DeviceIDs": {"0": [uuid]}}
    checkpoint.write_text(json.dumps({"Data": {"PodDeviceEntries": [entry], "RegisteredDevices": {}}}))
    config = tmp_path / "config/mig.json"
    stored = json.loads(config.read_text())
    config.write_text(json.dumps({**stored, "kubelet_dir": str(host.path / "var/lib/kubelet"), "driver_seconds": 1}))

    booted = boot(tmp_path)
    assert (booted.returncode, layouts(host)) == (1, [["7g.141gb@0"], ["7g.141gb@0"]]), booted.stdout
    assert "train" in booted.stdout and booted.stdout.count("7g.141gb@0") >= 2

    host.driver_not_loaded()
    silent = boot(tmp_path)
    assert silent.returncode == 1 and "NVML" in silent.stdout, silent.stdout + silent.stderr


def test_a_mode_that_waits_for_a_reset_is_not_as_wanted(controller, tmp_path):
    """Without leave to reset it stays pending, and every run says so."""
    controller.variables.update(
        gpuops_mig_layouts=[{"counts": {"3g.40gb": 2}}], gpuops_mig_at_boot=False, gpuops_mig_unit_dir=str(tmp_path)
    )
    node = controller.node("bare-1", gpus=1, model="a100-80")
    for run in ("sets it pending", "finds it pending"):
        played = controller.play("mig")
        assert not played.ok and "gpuops_mig_allow_reset" in played.failures[-1], f"{run}: {played.output}"
        assert "every GPU is as wanted" not in played.output
        assert (node.state()["gpus"][0]["mig"]["current"], node.state()["gpus"][0]["mig"]["pending"]) == (0, 1)
    assert played.changed("bare-1") == 0, "the second run finds nothing that it may do"


def test_what_is_busy_is_ended_or_waited_for_where_the_inventory_says_so(controller, host):
    """Refused else, with its holder's name."""
    instances.set_mode(host, 0, True)
    gi = instances.create(host, 0, "7g.141gb")
    pid = host.start([0], "train", 1 << 30, gi=gi, ci=0)
    refused = controller.play("mig")
    assert not refused.ok and f"train ({pid})" in refused.output and "nothing was changed on bare-1" in refused.output
    drained = controller.play("mig", mig_busy="drain", grace_seconds=1)
    assert drained.ok and not alive(pid) and layouts(host)[0] == ["1g.18gb@0", "1g.18gb@1", "3g.71gb@4"], drained.output

    [half] = [one["id"] for one in host.state()["gpus"][0]["mig"]["instances"] if one["start"] == 4]
    waited_for = host.start([0], "train", 1 << 30, gi=half, ci=0)
    ended = threading.Timer(15, host.exit, [waited_for])
    ended.start()
    waited = controller.play("mig", mig_busy="wait", mig_busy_timeout_seconds=120, mig_layouts=[{"counts": {"7g.141gb": 1}}])
    ended.join()
    assert waited.ok and layouts(host)[0] == ["7g.141gb@0"], waited.output


def test_a_node_that_is_not_ours_any_more_is_not_cut_at_boot(controller, host, tmp_path):
    """S7, and the opt-out: at once where the unit can see it, and else with the next run, which refuses the node."""
    assert controller.play("mig").ok
    unit, other = tmp_path / "units/gpuops-mig.service", tmp_path / "units/multi-user.target.wants/nvidia-mig-manager.service"
    conditions = [line for line in unit.read_text().splitlines() if line.startswith("Condition")]

    def starts():
        return subprocess.run(["systemd-analyze", "condition", *conditions], capture_output=True, check=False).returncode == 0

    assert starts()
    other.symlink_to("/etc/systemd/system/nvidia-mig-manager.service")
    assert not starts()
    other.unlink()

    vendor = tmp_path / "vendor/multi-user.target.wants/nvidia-mig-manager.service"
    cgroup = tmp_path / "cgroup/system.slice/nvidia-mig-manager.service"  # all simulated nodes have this machine's own
    vendor.parent.mkdir(parents=True)
    vendor.symlink_to("../nvidia-mig-manager.service")
    shipped = controller.play("mig", "-e", json.dumps({"mig_other_unit_dirs": [str(tmp_path / "units"), str(tmp_path / "vendor")]}))
    assert f"another MIG manager is active on bare-1: {vendor}" in shipped.failures[-1], shipped.output
    cgroup.mkdir(parents=True)
    runs = controller.play("mig", cgroup_root=str(tmp_path / "cgroup"))
    assert f"another MIG manager is active on bare-1: {cgroup}" in runs.failures[-1], runs.output

    refused = controller.play("mig", managed=False)
    assert not refused.ok and "is opted out" in refused.output
    left = [path for folder in ("units", "config", "program") for path in (tmp_path / folder).rglob("*") if not path.is_dir()]
    assert left == [], refused.output
