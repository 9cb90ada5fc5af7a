# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""From the options of ebpf_probe to its result, probe by probe."""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Callable

from ansible_collections.gpuops.remediation.plugins.module_utils._bpf import budget, callers, hang, kernel, libbpf, seccomp
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.finder import find, named
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.libraries import Found
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.probes import DRIVER_TRACEPOINT, PROBES, Link, Probe, wanted
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.probes import named as named_probes
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.sweep import sweep
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.task import ProbeTask, State
from ansible_collections.gpuops.remediation.plugins.module_utils._converge import Outcome, converge
from ansible_collections.gpuops.remediation.plugins.module_utils._node.procfs import ProcFs
from ansible_collections.gpuops.remediation.plugins.module_utils._node.statedir import StateDir

_LOCK = "ebpf_probe.lock"
_SWEEPS: dict[str, Callable[[Path, ProcFs], int]] = {
    "cuda_launch": lambda maps, proc: callers.sweep(maps / "launches", proc),
    "cuda_mem": lambda maps, _proc: sweep(maps),
    "gpu_vm": lambda maps, proc: callers.sweep(maps / "vm_calls", proc),
}


def bring(params: Mapping[str, Any], check_mode: bool) -> dict[str, Any]:
    with contextlib.nullcontext() if check_mode else StateDir(params["state_dir"]).alone(_LOCK, params["timeout_seconds"]):
        return _bring(params, check_mode)


def _bring(params: Mapping[str, Any], check_mode: bool) -> dict[str, Any]:
    probes = [PROBES[name] for name in named_probes(params["probes"], params["state"])]
    found, multi, driver = Found(), False, False
    if params["state"] != "absent":
        kernel.require(params["bpffs_dir"])
        libbpf.require()
        multi = params["attach"] == "multi" or (params["attach"] == "auto" and kernel.has_uprobe_multi())
        driver = kernel.has_raw_tracepoint(DRIVER_TRACEPOINT)
        if not check_mode:
            budget.ask_again(StateDir(params["state_dir"]), [probe.name for probe in probes])
        if any(probe.cookies for probe in probes):
            seccomp.require_returns(platform.release())
            found = _found(params)
    functions = {name for probe in probes for name in probe.cookies}
    results: list[dict[str, Any]] = []
    refused: dict[str, str] = {}
    for probe in probes:
        links = wanted(probe, found.copies, multi=multi, driver_tracepoint=driver)
        results.append(_bring_one(probe, links, params, found, refused, multi=multi, check_mode=check_mode))
    shown = {name: {probe.name: result[name] for probe, result in zip(probes, results)} for name in ("before", "after")}
    return {
        "changed": any(result["changed"] for result in results),
        "actions": [action for result in results for action in result["actions"]],
        **shown,
        "diff": shown,
        "copies": [
            {
                "path": copy.path,
                "inode": copy.inode,
                "build_id": copy.build_id,
                "functions": len(functions & copy.sites.keys()),
                "pids": list(copy.pids),
            }
            for copy in found.copies
            if copy.key not in refused
        ],
        "deleted": found.deleted,
        "not_probed": [
            *found.not_probed,
            *({"path": copy.path, "why": refused[copy.key]} for copy in found.copies if copy.key in refused),
        ],
    }


def _found(params: Mapping[str, Any]) -> Found:
    if params["libraries"] is not None:
        return named(params["libraries"])
    return find(ProcFs(params["proc_root"]), StateDir(params["state_dir"]), params["timeout_seconds"])


def _bring_one(
    probe: Probe,
    links: Mapping[str, Link],
    params: Mapping[str, Any],
    found: Found,
    refused: dict[str, str],
    *,
    multi: bool,
    check_mode: bool,
) -> dict[str, Any]:
    """Adds to `refused` the copies, by key, that could not be attached to."""
    state, entries = params["state"], {"records": params["max_allocations"]}

    def check() -> None:
        hang.require_none(ProcFs(params["proc_root"]), StateDir(params["state_dir"]), params["timeout_seconds"])

    def run(want: Mapping[str, Link], expected: State | None, *, keep: bool) -> Outcome[State]:
        task = ProbeTask(
            probe,
            params["bpffs_dir"],
            want,
            keep_maps=keep,
            multi=multi,
            entries=entries,
            check=check,
            keeps=found.keeps if keep else lambda _device, _inode: False,
        )
        try:
            outcome = converge(lambda: expected or task.read(), task.plan, task.predict, task.apply, check_mode=check_mode)
            refused.update(task.refused)
            return Outcome(outcome.before, outcome.after, [step for step in outcome.steps if not task.is_refused(step.target)])
        finally:
            task.close()

    outcomes = []
    if state in ("absent", "restarted"):
        outcomes.append(run({}, None, keep=False))
    if state != "absent":
        outcomes.append(run(links, outcomes[0].after if check_mode and outcomes else None, keep=True))
        maps = Path(params["bpffs_dir"]) / probe.name / "maps"
        if not check_mode and maps.exists() and probe.name in _SWEEPS:
            _SWEEPS[probe.name](maps, ProcFs(params["proc_root"]))
    first, last = outcomes[0], outcomes[-1]
    steps = [step for outcome in outcomes for step in outcome.steps]
    return Outcome(first.before, last.after, steps).result(State.show)
