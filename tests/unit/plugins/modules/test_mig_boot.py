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
from ansible_collections.gpuops.remediation.plugins.modules import mig_boot
from run_module import run_module

HALVES = [{"counts": {"3g.71gb": 2}}]


@pytest.fixture
def run(tmp_path):
    places = {"config": str(tmp_path / "etc/mig.json"), "program": str(tmp_path / "lib/mig-restore"), "state_dir": str(tmp_path / "state")}
    return lambda check_mode=False, **params: run_module(mig_boot.main, check_mode, **{**places, "layouts": HALVES, **params})


def test_the_files_come_stay_and_go(run, tmp_path):
    config, program = tmp_path / "etc/mig.json", tmp_path / "lib/mig-restore"
    assert run(check_mode=True)["changed"] and not config.exists() and not program.exists()
    asked = {"nvml_library": "/opt/libnvidia-ml.so.1", "given": ["3g.71gb@4"], "may_move": False}
    first = run(**asked)
    assert [(one["action"], one["target"]) for one in first["actions"]] == [("write", str(program)), ("write", str(config))]
    assert (stat.S_IMODE(program.stat().st_mode), stat.S_IMODE(config.stat().st_mode)) == (0o755, 0o644)
    stored = json.loads(config.read_text())["mig_layout"]
    assert stored["layouts"][0]["counts"] == {"3g.71gb": 2} and {name: stored[name] for name in asked} == asked
    assert stored["busy"] == "fail", "nobody's process is ended at boot"
    assert not run(**asked)["changed"]
    assert [one["target"] for one in run(layouts=[{"mig_enabled": False}])["actions"]] == [str(config)]
    assert run(state="absent")["changed"] and not config.exists() and not program.exists()
    assert not run(state="absent")["changed"]


@pytest.mark.parametrize("layout", [{}, {"counts": {}, "instances": []}, {"count": {"3g.71gb": 2}}])
def test_what_is_no_layout_is_found_while_somebody_is_there(run, layout):
    refused = run(layouts=[layout])
    assert (refused["failed"], refused["error_kind"]) == (True, "layout_invalid")


def test_the_program_is_whole(run, tmp_path):
    """All that it imports of ours is in it, and nothing of Ansible."""
    run()
    program = tmp_path / "lib/mig-restore"
    assert program.read_bytes().splitlines()[0] == f"#!{sys.executable}".encode()
    sources = {name: text for name, text in _sources(program).items() if name.endswith(".py")}
    assert not [name for name, text in sources.items() if "\nfrom ansible." in text or "\nimport ansible" in text]
    assert not [name for name in sources if "/_kube/" in name or "/_ledger/" in name], "no more than it needs"
    nothing = subprocess.run([program, str(tmp_path / "none.json")], capture_output=True, text=True, check=False, cwd="/", env={"PATH": ""})
    assert (nothing.returncode, nothing.stderr) == (1, "") and "cannot read" in nothing.stdout, "it gets as far as its configuration"


def _sources(program):
    with zipfile.ZipFile(program) as archive:
        return {name: archive.read(name).decode() for name in archive.namelist()}
