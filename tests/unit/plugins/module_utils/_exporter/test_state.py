# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from pathlib import Path
from unittest.mock import MagicMock

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._exporter import requests
from ansible_collections.gpuops.remediation.plugins.module_utils._exporter.state import earlier, put_together, sources
from ansible_collections.gpuops.remediation.plugins.module_utils._gpu import info
from ansible_collections.gpuops.remediation.plugins.module_utils._node import kernel_log
from ansible_collections.gpuops.remediation.plugins.module_utils._node.watchdog import Answer

GPU = {"uuid": "GPU-a", "pci_bus_id": "0000:00:06.0", "minor": 0}
PROCESS = {"pid": 7, "memory_bytes": 5, "gi": None, "container": None, "unit": "train.service"}
NVML = Answer([{"gpu": 0, "fields": {**GPU, "processes": [PROCESS], "processes_source": "nvml"}}])
NOT_ATTACHED = Answer([{"probe": name, "attached": False, "owners": [], "links": []} for name in ("cuda_mem", "gpu_xid")])
HUNG = Answer(why="did not answer within 3 s")


def written(before, now, nvml=NVML, probes=NOT_ATTACHED):
    answers = {"nvml": nvml, "driver": Answer([{"known": []}]), "kernel_log": Answer(), "probes": probes}
    return put_together(answers, before, [], "/dev", "boot", now, 10)


def test_when_a_source_last_told_everything_outlives_its_silence(tmp_path):
    first = written(earlier(tmp_path / "none.json", "boot"), 10.0)
    assert first["sources"]["processes"] == {"why": None, "told_seconds": 10.0}
    assert [one["memory_bytes"] for one in first["owners"]] == [5]
    silent = written({**first, "cost": {}}, 20.0, HUNG)
    assert silent["sources"] == {
        "processes": {"why": HUNG.why, "told_seconds": 10.0}, "kernel_log": {"why": None, "told_seconds": 20.0},
    }  # fmt: skip
    assert silent["owners"] == [], "what was is no figure of now"
    assert [one["uuid"] for one in silent["gpus"]] == ["GPU-a"], "but its name is"


def test_an_xid_is_no_older_than_the_last_reading_that_did_not_have_it(tmp_path):
    """One that failed did not look."""

    def read(before, now, *numbers, why=None):
        path = tmp_path / "kmsg"
        path.write_text("".join(f"3,{number},1000000,-;NVRM: Xid (PCI:0000:00:06): 79, text\n" for number in numbers))
        items = []
        kernel_log.collect(str(path), 1000, "boot", None, items.append)
        answers = {"nvml": NVML, "driver": Answer([{"known": []}]), "kernel_log": Answer(items, why), "probes": NOT_ATTACHED}
        return {**put_together(answers, before, [], "/dev", "boot", now, 10), "cost": {}}

    empty = read(earlier(tmp_path / "none.json", "boot"), 2000.0)
    silent = read(empty, 3000.0, why="did not answer within 3 s")
    [found] = read(silent, 4000.0, 1)["xids"]["counts"]
    assert (found["count"], found["last_seconds"]) == (1, 2000.0)


def test_sources_have_the_names_that_modules_have_for_them(monkeypatch):
    """Whoever hangs in the driver is written down by name, and nobody reads beside it."""
    monkeypatch.setattr(info.Watchdog, "collect", lambda _self, sources: (asked.update(sources), 1 / 0))
    asked, node = {}, MagicMock()
    with pytest.raises(ZeroDivisionError):
        info.read(node, [], timeout_seconds=1)
    ours = {name: call.func for name, call in sources(node, "boot", "/bpf").items() if name != "probes"}  # no driver is asked for those
    assert set(ours) < set(asked)
    assert ours == {name: call.func for name, call in asked.items() if name != "processes"}


def test_another_boots_state_is_begun_anew(tmp_path):
    path = tmp_path / "state.json"
    path.write_text('{"boot_id": "before", "xids": {"sequence": 99, "counts": [1]}}')
    assert earlier(path, "boot")["xids"] == {"sequence": -1, "counts": []}
    assert earlier(path, "before")["xids"]["sequence"] == 99


def test_probes_are_a_source_where_there_are_some():
    """Or each node without probes would be told silent."""
    before = earlier(Path("/none"), "boot")
    assert "probes" not in written(before, 10.0)["sources"]
    attached = Answer([{**one, "attached": one["probe"] == "gpu_xid", "xids": []} for one in NOT_ATTACHED.items])
    first = written(before, 10.0, probes=attached)
    assert first["sources"]["probes"] == {"why": None, "told_seconds": 10.0}
    unread = written({**first, "cost": {}}, 20.0, probes=Answer(why="cannot read links"))
    assert unread["sources"]["probes"] == {"why": "cannot read links", "told_seconds": 10.0}
    assert unread["probes"]["attached"] == {"cuda_mem": False, "gpu_xid": True}


def test_a_file_of_an_earlier_version_is_read_on(tmp_path):
    path = tmp_path / "state.json"
    path.write_text('{"boot_id": "boot", "xids": {"sequence": 9, "counts": []}}')
    assert (earlier(path, "boot")["probes"], earlier(path, "boot")["xids"]["sequence"]) == (requests.NONE, 9)
