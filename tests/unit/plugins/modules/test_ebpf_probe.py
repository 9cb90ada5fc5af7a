# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.probes import PROBES, named
from ansible_collections.gpuops.remediation.plugins.module_utils._node.statedir import StateDir
from ansible_collections.gpuops.remediation.plugins.modules import ebpf_probe, ebpf_probe_info
from run_module import run_module


def test_where_nothing_is_pinned_absent_has_nothing_to_do(tmp_path):
    """Whatever this machine can: no bpf filesystem is there, and no privilege is needed."""
    result = run_module(ebpf_probe.main, state="absent", bpffs_dir=str(tmp_path / "bpf"), state_dir=str(tmp_path / "state"))
    assert not result["changed"]
    assert result["after"] == {name: {"links": [], "maps": []} for name in PROBES}


def test_a_copy_without_probes_is_not_told_as_a_skipped_task(tmp_path):
    result = run_module(ebpf_probe.main, state="absent", bpffs_dir=str(tmp_path / "bpf"), state_dir=str(tmp_path / "state"))
    assert result["not_probed"] == [] and "skipped" not in result


def test_one_run_at_a_time(tmp_path):
    """Check mode changes nothing, and waits for nobody."""
    options = {"state": "absent", "bpffs_dir": str(tmp_path / "bpf"), "state_dir": str(tmp_path / "state"), "timeout_seconds": 0.1}
    with StateDir(options["state_dir"]).alone("ebpf_probe.lock", 0):
        assert run_module(ebpf_probe.main, **options)["error_kind"] == "not_alone"
        assert "error_kind" not in run_module(ebpf_probe.main, check_mode=True, **options)


def test_both_modules_know_every_probe():
    for module in (ebpf_probe, ebpf_probe_info):
        assert set(module.SPEC["argument_spec"]["probes"]["choices"]) == set(PROBES)


def test_what_costs_more_is_wanted_by_name_alone_and_goes_with_the_rest():
    """A probe that is left behind would crash processes when the driver is upgraded."""
    assert set(named(None, "absent")) == set(PROBES)
    assert named(None, "present") == named(None, "restarted") == ["cuda_mem", "gpu_irq", "gpu_xid"]
    assert named([], "present") == []
