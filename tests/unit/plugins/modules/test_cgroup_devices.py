# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.gpuops.remediation.plugins.modules import cgroup_devices
from run_module import run_module


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"gpus": []}, "one of the following is required: cgroup, unit, container, pid"),
        ({"unit": "a.service", "cgroup": "/a.service", "gpus": []}, "parameters are mutually exclusive: cgroup|unit|container|pid"),
        ({"cgroup": "/a.service"}, "state is present but any of the following are missing: gpus, mig_instances, devices"),
        ({"cgroup": "/a.service", "gpus": [], "start_ticks": 5}, "missing parameter(s) required by 'start_ticks': pid"),
        ({"cgroup": "/a.service", "mig_instances": [{"gpu": "0"}]}, "missing required arguments: gi"),
        ({"cgroup": "/a.service", "gpus": [], "lock_token": 3}, "parameters are required together: lock_token, lock_holder"),
    ],
)
def test_arguments(options, text):
    assert text in run_module(cgroup_devices.main, **options)["msg"]


def test_a_failure_has_its_kind(tmp_path):
    (tmp_path / "devices").write_text("Character devices:\n195 nvidia\n")
    (tmp_path / "cgroup.controllers").write_text("")
    (tmp_path / "sys").symlink_to("/proc/sys")
    places = {"proc_root": str(tmp_path), "state_dir": str(tmp_path / "state"), "cgroup_root": str(tmp_path)}
    failed = run_module(cgroup_devices.main, cgroup="/a.service", gpus=["GPU-1"], **places)
    assert failed["error_kind"] == "no_device" and "the driver has no GPU GPU-1 here; it has none" in failed["msg"]
