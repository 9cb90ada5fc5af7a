# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._gpu import nvml
from ansible_collections.gpuops.remediation.plugins.modules import mig_layout
from run_module import run_module


@pytest.fixture
def node(tmp_path, monkeypatch):
    """Without a driver."""
    monkeypatch.setattr(nvml, "IMPORT_ERROR", None)
    return {"state_dir": str(tmp_path), "dev_root": str(tmp_path), "nvml_library": "libnone.so.1"}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "one of the following is required: counts, instances, mig_parted, mig_enabled, layouts"),
        ({"counts": {}, "instances": []}, "mutually exclusive: counts|instances|mig_parted"),
        ({"mig_parted": "version: v1"}, "required together: mig_parted, mig_parted_config"),
        ({"instances": [{"start": 4}]}, "profile found in instances"),
        ({"instances": [{"profile": "3g.71gb", "compute": [{"start": 0}]}]}, "slices found in instances -> compute"),
        ({"counts": {}, "busy": "kill"}, "value of busy must be one of: fail, wait, drain"),
        ({"counts": {}, "lock_token": 3}, "lock_holder"),
        ({"counts": {}, "layouts": [{"counts": {}}]}, "mutually exclusive: layouts|counts"),
        (
            {"layouts": [{"gpus": ["GPU-a"]}]},
            "one of the following is required: counts, instances, mig_parted, mig_enabled found in layouts",
        ),
        ({"counts": {"3g.71gb": "two"}}, "'two' of 3g.71gb are wanted, which is no number"),
        ({"counts": {}, "mig_enabled": False}, "mig_enabled is false, and a layout is wanted"),
    ],
)
def test_what_cannot_be_asked(node, options, text):
    failed = run_module(mig_layout.main, **node, **options)
    assert failed["failed"] and text in failed["msg"]


@pytest.mark.parametrize("check_mode", [True, False])
def test_no_driver(node, check_mode):
    failed = run_module(mig_layout.main, check_mode=check_mode, counts={}, **node)
    assert failed["error_kind"] == "nvml" and "cannot load libnone.so.1" in failed["msg"]


def test_the_library_is_missing(node, monkeypatch):
    monkeypatch.setattr(nvml, "IMPORT_ERROR", "Traceback: no pynvml")
    assert "nvidia-ml-py" in run_module(mig_layout.main, counts={}, **node)["msg"]
