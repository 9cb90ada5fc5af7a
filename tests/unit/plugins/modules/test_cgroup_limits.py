# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
import yaml
from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.limits import NAMES
from ansible_collections.gpuops.remediation.plugins.modules import cgroup_limits
from ansible_collections.gpuops.remediation.plugins.modules.cgroup_limits import Systemd
from run_module import run_module


@pytest.fixture
def node(tmp_path, monkeypatch):
    monkeypatch.setattr(Systemd, "running", lambda root: None)
    (tmp_path / "cgroup.controllers").write_text("memory pids\n")
    folder = tmp_path / "a.service"
    folder.mkdir()
    for name, text in {"cgroup.procs": "", "memory.max": "max\n", "memory.current": "8192\n", "pids.max": "max\n"}.items():
        (folder / name).write_text(text)
    return {"state_dir": str(tmp_path / "state"), "cgroup_root": str(tmp_path), "cgroup": "/a.service"}


def test_set_and_undone(node):
    done = run_module(cgroup_limits.main, limits={"memory_max": "1M", "pids_max": "5"}, **node)
    assert (done["changed"], done["undo"], done["usage"]) == (True, {"memory_max": "max", "pids_max": "max"}, {"memory_current": 8192})
    assert done["after"]["limits"] == {**dict.fromkeys(NAMES), "memory_max": 1 << 20, "pids_max": 5}
    assert run_module(cgroup_limits.main, limits=done["undo"], **node)["after"] == done["before"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"cgroup": None}, "one of the following is required: cgroup, unit, container, pid"),
        ({"unit": "a.service"}, "parameters are mutually exclusive: cgroup|unit|container|pid"),
        ({"cgroup": None, "unit": "a.service", "state": "present"}, "state is present but all of the following are missing: cgroup"),
        ({"start_ticks": 5}, "missing parameter(s) required by 'start_ticks': pid"),
        ({"limits": {"memory_max": "4K"}}, "below the 8192 bytes in use"),
        ({"limits": {"memory_max": "much"}}, "neither bytes"),
        ({"limits": {"memroy_max": "1G"}}, "Unsupported parameters"),
    ],
)
def test_failures(node, options, text):
    given = {name: value for name, value in {**node, **options}.items() if value is not None}
    failed = run_module(cgroup_limits.main, **given)
    assert failed["failed"] and text in failed["msg"]


def test_every_limit_is_an_option_and_documented():
    documented = yaml.safe_load(cgroup_limits.DOCUMENTATION)["options"]["limits"]["suboptions"]
    assert set(documented) == set(cgroup_limits.LIMITS) == set(NAMES)
