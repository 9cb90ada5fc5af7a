# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""What the node's units start: attaches what is missing, sweeps what is gone, and tells in a file what came of it and what it cost.

Runs without Ansible, as the program that ebpf_probe_program installs.
"""

from __future__ import annotations

import collections
import json
import resource
import sys
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Callable

from ansible_collections.gpuops.remediation.plugins.module_utils._bpf import budget
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.bring import bring
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.errors import ProbeError
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.probes import PROBES
from ansible_collections.gpuops.remediation.plugins.module_utils._errors import RemediationError
from ansible_collections.gpuops.remediation.plugins.module_utils._exporter import handover
from ansible_collections.gpuops.remediation.plugins.module_utils._node.procfs import ProcFs
from ansible_collections.gpuops.remediation.plugins.module_utils._node.statedir import StateDir

Tell = Callable[[str], None]
_ERROR, _WARNING = "<3>", "<4>"  # a line's level in the journal, sd-daemon(3)
_NOTHING: dict[str, Any] = {"actions": [], "copies": [], "deleted": [], "not_probed": []}


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(config: str, tell: Tell = _say) -> int:
    """The exit status: whether all is as wanted. Says what it did, which most of the time is nothing."""
    try:
        wanted = json.loads(Path(config).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        tell(f"{_ERROR}cannot read {config}: {error}")
        return 1
    try:
        return 0 if run(wanted, tell) else 1
    except RemediationError as error:  # nobody else is told then
        tell(f"{_ERROR}{error}")
        return 1


def run(config: Mapping[str, Any], tell: Tell) -> bool:
    begun = time.monotonic()
    results: list[Mapping[str, Any]] = []
    failure: RemediationError | None = None
    file, boot_id = Path(config["result"]), ProcFs("/proc").boot_id()
    before = handover.read(file, boot_id) or {}
    cost: dict[str, Any] | None = None
    stopped: Mapping[str, Any] = {}
    state = StateDir(config["ebpf_probe"]["state_dir"])
    try:
        cost = check_budget(config, before.get("launch_cost"), state, tell)
        stopped = budget.stopped(state)
        for params in demands(config["ebpf_probe"], held=config["held"], stopped=stopped):
            results.append(bring(params, False))
    except RemediationError as error:
        failure = error
    except OSError as error:  # such as a pin that cannot be removed
        failure = ProbeError(str(error))
    if failure:
        tell(f"{_ERROR}{failure}")
    for result in results:
        for step in result["actions"]:
            tell(f"{step['action']} {step['after'] if step['action'] == 'attach' else step['target']}")
    document = told(results, failure, before, time.time())
    own = {"boot_id": boot_id, "held": config["held"], "seconds": time.monotonic() - begun, "launch_cost": cost}
    handover.write(file, {**own, "stopped": stopped, **document})
    return failure is None


def check_budget(config: Mapping[str, Any], before: Mapping[str, Any] | None, state: StateDir, tell: Tell) -> dict[str, Any] | None:
    """What the launch probes cost, null where there are none. Where that is too much they are stopped from now on."""
    look = budget.look(config["ebpf_probe"]["bpffs_dir"], before)
    why = look.why_not(config.get("launch_cpu_percent", budget.DEFAULT_CPU_PERCENT)) if look else None
    if why:
        tell(f"{_WARNING}{why}: taken away until somebody asks for it again")
        budget.stop(state, why, time.time())
    return look.show() if look else None


def demands(params: Mapping[str, Any], *, held: bool, stopped: Collection[str]) -> list[dict[str, Any]]:
    """What ebpf_probe is asked for, one after the other. Who is wanted no more goes, whoever attached it meanwhile."""
    wanted = [] if held else [name for name in params["probes"] if name not in stopped]
    unwanted = [name for name in PROBES if name not in wanted]
    both = [("absent", unwanted), ("present", wanted)]
    return [{**params, "state": state, "probes": names} for state, names in both if names]


def told(results: list[Mapping[str, Any]], failure: RemediationError | None, before: Mapping[str, Any], now: float) -> dict[str, Any]:
    """Counts and cost are of all runs of this boot, `before` being what the last one told; the rest is of this one."""
    found = results[-1] if results and not failure else _NOTHING
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    totals = before.get("totals", {"runs": 0, "failures": 0, "cpu_seconds": 0.0})
    return {
        "written_seconds": now,
        "succeeded_seconds": before.get("succeeded_seconds", 0.0) if failure else now,
        "error_kind": failure.kind if failure else None,
        "error": str(failure) if failure else None,
        "actions": dict(collections.Counter(step["action"] for result in results for step in result["actions"])),
        "copies": len(found["copies"]),
        "deleted": len(found["deleted"]),
        "not_probed": found["not_probed"],
        "resident_bytes": max(one.ru_maxrss for one in usage) * 1024,
        "totals": {
            "runs": totals["runs"] + 1,
            "failures": totals["failures"] + (failure is not None),
            "cpu_seconds": totals["cpu_seconds"] + sum(one.ru_utime + one.ru_stime for one in usage),
        },
    }
