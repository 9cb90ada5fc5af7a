# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.probes import PROBES
from ansible_collections.gpuops.remediation.plugins.modules import ebpf_probe_info
from run_module import run_module


def test_nothing_attached_is_an_answer(tmp_path):
    result = run_module(ebpf_probe_info.main, bpffs_dir=str(tmp_path), state_dir=str(tmp_path / "state"))
    assert {name: result[name] for name in PROBES} == {name: {"attached": False, "links": []} for name in PROBES}
