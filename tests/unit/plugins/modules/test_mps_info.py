# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from ansible_collections.gpuops.remediation.plugins.module_utils._mps import info
from ansible_collections.gpuops.remediation.plugins.modules import mps_info
from run_module import run_module


def test_a_daemon_that_is_not_there_is_named(tmp_path):
    control = tmp_path / "control"
    control.write_text("#!/bin/sh\necho Cannot find MPS control daemon process >&2\nexit 1\n")
    control.chmod(0o755)
    result = run_module(mps_info.main, pipe_directories=[str(tmp_path)], mps_control=str(control), state_dir=str(tmp_path))
    [daemon] = result["daemons"]
    assert not result["changed"] and (daemon["pipe_directory"], daemon["error"]["error_kind"]) == (str(tmp_path), "no_daemon")


def test_a_node_without_mps_needs_no_program(monkeypatch, tmp_path):
    monkeypatch.setattr(info, "known", list)
    assert run_module(mps_info.main, mps_control="no-such-control", state_dir=str(tmp_path))["daemons"] == []
    told = run_module(mps_info.main, mps_control="no-such-control", state_dir=str(tmp_path), pipe_directories=["/x"])
    assert (told["failed"], told["error_kind"]) == (True, "no_program")
