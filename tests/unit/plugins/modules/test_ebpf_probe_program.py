# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import stat
import subprocess
import sys
import zipfile

import pytest
from ansible_collections.gpuops.remediation.plugins.modules import ebpf_probe, ebpf_probe_program
from run_module import run_module


@pytest.fixture
def run(tmp_path):
    places = {"config": str(tmp_path / "etc/probes.json"), "program": str(tmp_path / "lib/gpuops-probes"), "state_dir": str(tmp_path)}
    return lambda check_mode=False, **params: run_module(ebpf_probe_program.main, check_mode, **{**places, **params})


def test_the_files_come_are_held_and_go(run, tmp_path):
    config, program = tmp_path / "etc/probes.json", tmp_path / "lib/gpuops-probes"
    assert run(check_mode=True)["changed"] and not config.exists() and not program.exists()
    first = run(probes=["gpu_xid", "gpu_irq", "cuda_mem"], libraries=["/opt/libcuda.so.1"])
    assert [one["target"] for one in first["actions"]] == [str(program), str(config)]
    assert (stat.S_IMODE(program.stat().st_mode), stat.S_IMODE(config.stat().st_mode)) == (0o755, 0o644)
    stored = json.loads(config.read_text())
    assert not stored["held"] and stored["ebpf_probe"]["libraries"] == ["/opt/libcuda.so.1"]
    assert not run(probes=["cuda_mem", "gpu_xid", "gpu_irq"], libraries=["/opt/libcuda.so.1"])["changed"], (
        "in whichever order they are named"
    )
    assert [one["target"] for one in run(state="held", libraries=["/opt/libcuda.so.1"])["actions"]] == [str(config)]
    assert json.loads(config.read_text()) == {**stored, "held": True}
    assert run(state="absent")["changed"] and not config.exists() and not program.exists()
    assert not run(state="absent")["changed"]


def test_the_program_gets_all_that_ebpf_probe_takes(run, tmp_path):
    run()
    stored = json.loads((tmp_path / "etc/probes.json").read_text())["ebpf_probe"]
    assert set(stored) == set(ebpf_probe.SPEC["argument_spec"]) - {"state"}


def test_the_program_is_whole(run, tmp_path):
    """All that it imports of ours is in it, and nothing of Ansible; the interpreter has no packages at all."""
    run()
    program = tmp_path / "lib/gpuops-probes"
    assert program.read_bytes().splitlines()[0] == f"#!{sys.executable} -I".encode()
    with zipfile.ZipFile(program) as archive:
        sources = {name: archive.read(name).decode() for name in archive.namelist()}
    assert not [name for name, text in sources.items() if "\nfrom ansible." in text or "\nimport ansible" in text]
    assert not [name for name in sources if "/_kube/" in name or "/_ledger/" in name or "/_gpu/" in name], "no more than it needs"
    words = [sys.executable, "-I", "-S", program, str(tmp_path / "none.json")]
    nothing = subprocess.run(words, capture_output=True, text=True, check=False, cwd="/", env={})
    assert (nothing.returncode, nothing.stderr) == (1, "") and "cannot read" in nothing.stdout, "it gets as far as its settings"
