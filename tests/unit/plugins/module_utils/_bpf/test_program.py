# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf import budget, program
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.errors import Unsupported
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.probes import PROBES

ATTACHED = {
    "actions": [{"action": "attach", "target": "0a_kernel_on_exit", "before": None, "after": "tracepoint sched_process_exit"}],
    "copies": [{"path": "/usr/lib/libcuda.so.1"}],
    "deleted": [],
    "not_probed": [{"path": "/proc/7/root/libcuda.so", "why": "not a library"}],
}


@pytest.mark.parametrize(
    "probes, held, asked",
    [
        (list(PROBES), False, [("present", list(PROBES))]),
        (["gpu_xid"], False, [("absent", [name for name in PROBES if name != "gpu_xid"]), ("present", ["gpu_xid"])]),
        (["gpu_xid"], True, [("absent", list(PROBES))]),
    ],
)
def test_who_is_wanted_no_more_goes_and_during_a_hold_everybody(probes, held, asked):
    demands = program.demands({"probes": probes, "attach": "auto"}, held=held, stopped=[])
    assert [(one["state"], one["probes"]) for one in demands] == asked
    assert all(one["attach"] == "auto" for one in demands)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """One run of the program: its exit status, its result, and what it said."""
    config, result = tmp_path / "probes.json", tmp_path / "result.json"
    config.write_text(
        json.dumps(
            {
                "ebpf_probe": {"probes": list(PROBES), "state_dir": str(tmp_path / "state"), "bpffs_dir": str(tmp_path / "bpf")},
                "held": False,
                "result": str(result),
            }
        )
    )

    def once(answer):
        def bring(_params, check_mode):
            assert not check_mode
            if isinstance(answer, Exception):
                raise answer
            return answer

        monkeypatch.setattr(program, "bring", bring)
        said = []
        return program.main(str(config), said.append), json.loads(result.read_text()), said

    return once


def test_it_tells_what_it_did_and_what_all_runs_cost(run):
    status, first, said = run(ATTACHED)
    assert (status, said) == (0, ["attach tracepoint sched_process_exit"])
    assert (first["actions"], first["copies"], first["deleted"], first["not_probed"]) == ({"attach": 1}, 1, 0, ATTACHED["not_probed"])
    status, second, said = run({**ATTACHED, "actions": []})
    assert (status, said, second["actions"]) == (0, [], {}), "most runs have nothing to say"
    assert second["totals"]["runs"] == 2 and second["totals"]["cpu_seconds"] > first["totals"]["cpu_seconds"] > 0


def test_a_failure_is_told_with_when_it_last_went_well(run):
    _status, well, _said = run(ATTACHED)
    status, failed, said = run(Unsupported("too old"))
    assert (status, said) == (1, ["<3>too old"])
    assert (failed["error_kind"], failed["error"], failed["copies"]) == ("unsupported", "too old", 0)
    assert failed["succeeded_seconds"] == well["succeeded_seconds"] < failed["written_seconds"]
    assert {name: failed["totals"][name] for name in ("runs", "failures")} == {"runs": 2, "failures": 1}


def test_what_the_system_refuses_is_a_failure_like_another(run):
    status, failed, said = run(OSError(30, "Read-only file system", "/sys/fs/bpf/gpuops"))
    assert (status, failed["error_kind"]) == (1, "probe_error") and "Read-only" in said[0]


def test_counts_begin_anew_with_each_boot_and_where_the_file_is_damaged(run, tmp_path):
    run(ATTACHED)
    result = tmp_path / "result.json"
    for text in (json.dumps({**json.loads(result.read_text()), "boot_id": "another"}), '{"boot_id": '):
        result.write_text(text)
        assert run(ATTACHED)[1]["totals"]["runs"] == 1


def test_probes_that_cost_too_much_go_and_why_is_told_until_somebody_asks_again(run, tmp_path, monkeypatch):
    """The next runs leave them away, though the settings name them."""
    asked, wanted = [], json.loads((tmp_path / "probes.json").read_text())
    look = budget.Look(9, 9, 9.0, 500.0, cpu_percent=80.0)

    def looked(_folder, before):
        asked.append(before)
        return look if len(asked) == 1 else None

    monkeypatch.setattr(budget, "look", looked)
    (tmp_path / "probes.json").write_text(json.dumps({**wanted, "launch_cpu_percent": 79.5}))
    status, first, said = run({**ATTACHED, "actions": []})
    why = "cuda_launch took 80 % of one CPU, and may take 79.5 %"
    assert (status, said) == (0, [f"<4>{why}: taken away until somebody asks for it again"])
    assert first["launch_cost"] == look.show() and first["stopped"]["cuda_launch"]["why"] == why
    _status, second, said = run({**ATTACHED, "actions": []})
    assert asked == [None, look.show()] and said == [] and second["launch_cost"] is None
    assert second["stopped"] == first["stopped"]
    demands = program.demands(wanted["ebpf_probe"], held=False, stopped=second["stopped"])
    assert [(one["state"], one["probes"]) for one in demands] == [
        ("absent", ["cuda_launch"]),
        ("present", [name for name in PROBES if name != "cuda_launch"]),
    ]


def test_where_it_cannot_be_read_what_was_stopped_nothing_is_attached_and_the_result_says_so(run, tmp_path):
    (tmp_path / "state").mkdir()
    (tmp_path / "state/probes_stopped.json").write_text("{")
    status, told, said = run(ATTACHED)
    assert (status, told["error_kind"], told["actions"]) == (1, "state_dir", {}) and "probes_stopped.json" in said[0]


def test_without_settings_nothing_is_done(tmp_path):
    said = []
    assert program.main(str(tmp_path / "none.json"), said.append) == 1
    assert said[0].startswith("<3>cannot read")
