# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The command as people and other programs call it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gpusim
import nvml_child
import pytest
import yaml

Gpusim = Callable[..., Any]


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Gpusim]:
    wrapper = Path(gpusim.__file__).parents[1] / "bin" / "gpusim"

    def run(*words: str, ok: bool = True) -> str:
        environment = {**os.environ, "PYTHON": sys.executable}
        done = subprocess.run([wrapper, "--root", tmp_path, *words], env=environment, capture_output=True, text=True, check=False)
        assert (done.returncode == 0) is ok, done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout.strip() if ok else done.stderr.strip()

    yield run
    run("destroy", "gpu-1")


def test_from_create_to_destroy(command: Gpusim, tmp_path: Path) -> None:
    folder = command("create", "gpu-1", "--gpus", "2")
    assert folder == str(tmp_path / "gpu-1")
    pid = command("process", "gpu-1", "start", "--gpu", "0", "--gpu", "1", "--name", "train", "--memory-mib", "10", "--ends", "late:60")
    command("process", "gpu-1", "grow", "--pid", pid, "--memory-mib", "5")
    for words in (
        ["xid", "31", "--pid", pid, "--name", "train", "--text", "MMU Fault"], ["recovery-action", "gpu-reset"], ["row-remap", "--pending"],
        ["ecc", "--uncorrected", "2"], ["ecc", "--sram-threshold-exceeded"], ["temperature", "80"], ["hang", "nvmlDeviceGetSerial", "--seconds", "0.1"],
        ["fail", "nvmlDeviceGetSerial", "--error", "TIMEOUT", "--at", "3", "--times", "forever"],
    ):  # fmt: skip
        command("inject", "gpu-1", "--gpu", "1", *words)
    command("inject", "gpu-1", "no-permission", "nvmlDeviceGetPowerUsage")
    command("inject", "gpu-1", "log", "NVRM: something else")
    state = json.loads(command("show", "gpu-1"))
    gpu = state["gpus"][1]
    assert (gpu["recovery_action"], gpu["remapped_rows"]["pending"], gpu["ecc"]["uncorrected_volatile"]) == ("gpu_reset", True, 2)
    assert gpu["faults"]["fail"] == {"nvmlDeviceGetSerial": {"error": "TIMEOUT", "at": 3, "times": None, "calls": 0}}
    assert gpu["ecc"]["sram_threshold_exceeded"] and not state["gpus"][0]["ecc"]["sram_threshold_exceeded"]
    assert [entry["memory_bytes"] for entry in state["processes"]] == [15 << 20]
    assert "31, pid=%s, name=train, MMU Fault\n" % pid in (tmp_path / "gpu-1/dev/kmsg").read_text(encoding="utf-8")
    assert "is in use by another client: train" in command("reset", "gpu-1", "--gpu", "1", ok=False)
    command("process", "gpu-1", "terminate", "--pid", pid)
    command("process", "gpu-1", "exit", "--pid", pid)
    command("reset", "gpu-1", "--gpu", "1")
    command("inject", "gpu-1", "--gpu", "1", "lost")
    command("clear", "gpu-1", "--gpu", "1")
    command("inject", "gpu-1", "driver-not-loaded")
    command("reboot", "gpu-1")
    assert nvml_child.ask(f"{folder}/lib/libnvidia-ml.so.1", "result = n.nvmlDeviceGetCount()") == 2
    command("destroy", "gpu-1")
    assert list(tmp_path.iterdir()) == []


def test_mig(command: Gpusim) -> None:
    command("create", "gpu-1", "--gpus", "1")

    def mig(*words: str, ok: bool = True) -> str:
        answer: str = command("mig", "gpu-1", "--gpu", "0", *words, ok=ok)
        return answer

    assert mig("on") == "MIG on"
    assert mig("create", "3g.71gb", "--start", "4", "--compute", "2c,1c") == "2"
    assert mig("create", "1g.35gb", "--compute", "") == "3"
    assert "GPU 0: INSUFFICIENT_RESOURCES" in mig("create", "4g.71gb", ok=False)
    pid = command("process", "gpu-1", "start", "--gpu", "0", "--gi", "2", "--ci", "1")
    watcher = command("process", "gpu-1", "start", "--gpu", "0", "--gi", "3", "--type", "monitor", "--name", "dcgm")
    gpu = json.loads(command("show", "gpu-1"))["gpus"][0]
    uuids = [compute["uuid"] for compute in gpu["mig"]["instances"][0]["compute"]]
    assert mig("show").splitlines() == [
        f"GPU 0  {gpu['uuid']}  MIG on", "  slots  3  3  .  .  2  2  2  2", "  gi 2  3g.71gb 4:4", f"    ci 0  2c.3g.71gb 0:2  {uuids[0]}",
        f"    ci 1  1c.3g.71gb 2:1  {uuids[1]}  held by train ({pid})", f"  gi 3  1g.35gb 0:2  held by dcgm ({watcher})",
    ]  # fmt: skip
    assert "GPU 0: IN_USE" in mig("destroy", "2", ok=False)
    assert mig("off") == "MIG on, off pending: IN_USE"
    for holder in (pid, watcher):
        command("process", "gpu-1", "exit", "--pid", holder)
    mig("destroy", "2", "1")
    mig("destroy", "2")
    assert "gi 2" not in mig("show")


def test_inventory(command: Gpusim, tmp_path: Path) -> None:
    command("create", "gpu-1", "--gpus", "1")
    for words in ((), ("gpu-1",)):
        (name, host), *others = yaml.safe_load(command("inventory", *words))["all"]["children"]["gpu_nodes"]["hosts"].items()
        assert (name, others, host["ansible_connection"]) == ("gpu-1", [], "local")
        assert host["ansible_python_interpreter"] == "{{ ansible_playbook_python }}"
        paths = (
            "gpuops_kmsg_path",
            "gpuops_proc_root",
            "gpuops_dev_root",
            "gpuops_cgroup_root",
            "gpuops_nvml_library",
            "gpuops_nvidia_modprobe",
            "gpuops_nvidia_smi",
            "gpuops_state_dir",
            "gpuops_kubelet_dir",
        )
        assert all(Path(host[path]).exists() for path in paths)
        assert (Path(host["gpuops_cgroup_root"]) / "cgroup.procs").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["create", "gpu-1"], "exists already"),
        (["create", "gpu-2", "--model", "k80"], "no model k80: there are a100-40, a100-80, a30-24, b200-180, h100-80, h200-141"),
        (["create", "gpu-2", "--gpus", "9"], "1 to 8 GPUs, not 9"),
        (["create", "../gpu-2"], "not a node name"),
        (["show", "gpu-9"], "no simulated node gpu-9"),
        (["inject", "gpu-1", "xid", "48"], "xid needs --gpu"),
        (["inject", "gpu-1", "--gpu", "8", "xid", "48"], "no GPU 8: the node has 1"),
        (["inject", "gpu-1", "hang", "nvmlDeviceGetNothing"], "no call nvmlDeviceGetNothing"),
        (["process", "gpu-1", "exit", "--pid", "1"], "process 1 is not one of this node"),
        (["process", "gpu-1", "start", "--gpu", "0", "--memory-mib", "999999"], "MiB free, not 999999"),
        (["process", "gpu-1", "start", "--gpu", "0", "--ends", "soon"], "not a way to end: soon"),
        (["inject", "gpu-1", "fail", "nvmlDeviceGetNothing"], "no call nvmlDeviceGetNothing"),
        (["mig", "gpu-1", "on"], "on needs --gpu"),
        (["mig", "gpu-1", "--gpu", "0", "create", "7g.141gb"], "GPU 0: NOT_SUPPORTED"),
        (["mig", "gpu-1", "--gpu", "0", "create", "7g.40gb"], "no profile 7g.40gb: there are 1g.18gb, 2g.35gb"),
        (["mig", "gpu-1", "--gpu", "0", "destroy", "2"], "GPU 0 has no GPU instance 2"),
    ],
)
def test_mistakes_are_told_in_words(command: Gpusim, words: list[str], message: str) -> None:
    command("create", "gpu-1", "--gpus", "1")
    assert message in command(*words, ok=False)
