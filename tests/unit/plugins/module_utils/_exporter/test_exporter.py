# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import time

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._exporter import exporter
from ansible_collections.gpuops.remediation.plugins.module_utils._exporter.config import Config
from ansible_collections.gpuops.remediation.plugins.module_utils._exporter.state import earlier
from ansible_collections.gpuops.remediation.plugins.module_utils._node.procfs import ProcFs
from prometheus_client.parser import text_string_to_metric_families


@pytest.fixture
def made(tmp_path):
    """On a machine without NVML."""
    paths = {
        "state_dir": tmp_path / "state",
        "proc_root": "/proc",
        "dev_root": tmp_path,
        "kmsg_path": tmp_path / "kmsg",
        "cgroup_root": tmp_path,
    }
    (tmp_path / "watch").mkdir()
    return exporter.Exporter(
        Config(
            node_name="n", host="", port=0, certfile="", keyfile="", cafile="", interval_seconds=5, nvml_timeout_seconds=4, max_owners=9,
            bpffs_dir=str(tmp_path / "bpf"), state_file=str(tmp_path / "state.json"), watch_dir=str(tmp_path / "watch"),
            node={**{name: str(path) for name, path in paths.items()}, "nvml_library": "no-such-library"},
        )
    )  # fmt: skip


def up(made):
    families = {family.name: family for family in text_string_to_metric_families(made.text().decode())}
    return {sample.labels["source"]: sample.value for sample in families["gpuops_source_up"].samples}


def test_a_source_is_not_up_for_what_it_said_long_ago(made, tmp_path):
    """Root's reader said last that all was well, and then nothing more."""
    boot_id = ProcFs("/proc").boot_id()
    assert up_of(made, tmp_path, boot_id, age_seconds=10) == {"nvml": 0, "state": 1, "kernel_log": 1}
    assert up_of(made, tmp_path, boot_id, age_seconds=61) == {"nvml": 0, "state": 0, "kernel_log": 0}


def up_of(made, tmp_path, boot_id, age_seconds):
    written = time.time() - age_seconds
    state = {**earlier(tmp_path / "none", boot_id), "abandoned": 0, "cost": {"cpu_seconds": 0.0, "resident_bytes": 0}}
    sources = {"kernel_log": {"why": None, "told_seconds": written}}
    (tmp_path / "state.json").write_text(json.dumps({**state, "written_seconds": written, "sources": sources}))
    made.read()
    return up(made)


def test_a_state_of_an_earlier_version_is_told_without_probes(made, tmp_path):
    """Its reader's next run replaces it."""
    state = {**earlier(tmp_path / "none", ProcFs("/proc").boot_id()), "abandoned": 0, "cost": {"cpu_seconds": 0.0, "resident_bytes": 0}}
    del state["probes"]
    (tmp_path / "state.json").write_text(json.dumps({**state, "written_seconds": time.time()}))
    made.read()
    assert up(made)["state"] == 1
