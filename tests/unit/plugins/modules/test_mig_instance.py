# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._gpu import nvml
from ansible_collections.gpuops.remediation.plugins.modules import mig_instance
from run_module import run_module


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"profile": "3g.71gb"}, "missing required arguments: gpu"),
        ({"gpu": "GPU-a"}, "missing required arguments: profile"),
        ({"gpu": "GPU-a", "profile": "3g.71gb", "state": "absent"}, "state is absent but all of the following are missing: start"),
        ({"gpu": "GPU-a", "profile": "3g.71gb", "nvml_library": "libnone.so.1"}, "cannot load libnone.so.1"),
    ],
)
def test_failures(tmp_path, monkeypatch, options, text):
    monkeypatch.setattr(nvml, "IMPORT_ERROR", None)
    failed = run_module(mig_instance.main, state_dir=str(tmp_path), dev_root=str(tmp_path), **options)
    assert failed["failed"] and text in failed["msg"]
