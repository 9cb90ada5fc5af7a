# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""What only root may read, for those who may not: processes on GPUs, probes and the kernel log, in one file that is replaced whole.

A timer starts this anew each time, so that whatever becomes of one reading, the next one is another process.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ansible_collections.gpuops.remediation.plugins.module_utils._exporter import handover, probes, requests, xids
from ansible_collections.gpuops.remediation.plugins.module_utils._exporter.config import Config
from ansible_collections.gpuops.remediation.plugins.module_utils._exporter.owners import owned
from ansible_collections.gpuops.remediation.plugins.module_utils._gpu import holders, info, nvml
from ansible_collections.gpuops.remediation.plugins.module_utils._node import kernel_log
from ansible_collections.gpuops.remediation.plugins.module_utils._node.node import Node
from ansible_collections.gpuops.remediation.plugins.module_utils._node.watchdog import Answer, Collect, Watchdog

SHOWN = {"nvml": "processes", "kernel_log": "kernel_log"}  # sources whose age is a metric, and what the metric calls what they tell
PROBES = "probes"  # and the one that not every node has


def sources(node: Node, boot_id: str, bpffs_dir: str) -> dict[str, Collect]:
    """Each is read in a child of its own; another one joins here, and in `put_together`.

    By the names that modules have for the same: where a reader of theirs hangs, this does not start another one, and the reverse.
    """
    return {
        "nvml": partial(nvml.collect, node.nvml_library, [], node.proc.describe, only_processes=True),
        "driver": partial(info.driver_files, node),
        "kernel_log": partial(kernel_log.collect, node.kmsg_path, node.proc.boot_time(), boot_id, None),
        PROBES: partial(probes.collect, bpffs_dir, node.proc),
    }


def write(config: Config) -> None:
    node = config.paths
    file = Path(config.state_file)
    boot_id = node.proc.boot_id()
    before = earlier(file, boot_id)
    watchdog = Watchdog(node.state, config.nvml_timeout_seconds)
    answers, abandoned = watchdog.collect(sources(node, boot_id, config.bpffs_dir))
    if answers["nvml"].why:  # the dear way: every open file of every process
        more, abandoned = watchdog.collect({"processes": partial(holders.collect, node.proc, node.dev_root)})
        answers.update(more)
    document = put_together(answers, before, info.earlier(node, boot_id), node.dev_root, boot_id, time.time(), config.max_owners)
    document["abandoned"] = len(abandoned)
    document["cost"] = _cost(before)
    handover.write(file, document)


def earlier(file: Path, boot_id: str) -> dict[str, Any]:
    """One that is not there to be read is begun anew: the kernel log still has what it has."""
    return {
        "boot_id": boot_id,
        "written_seconds": 0.0,
        "sources": {},
        "gpus": [],
        "owners": [],
        "xids": xids.NONE,
        "probes": requests.NONE,
        "cost": {"cpu_seconds": 0.0},
        **(handover.read(file, boot_id) or {}),
    }


def put_together(
    answers: Mapping[str, Answer],
    before: Mapping[str, Any],
    seen: Iterable[Mapping[str, Any]],
    dev_root: str,
    boot_id: str,
    now: float,
    max_owners: int,
) -> dict[str, Any]:
    read_seconds = before["sources"].get("kernel_log", {}).get("told_seconds", 0.0)
    _told, gpus = info.join({"processes": Answer(why="not asked"), **answers}, [*before["gpus"], *seen], dev_root)
    probed = answers[PROBES]
    told = {one["probe"]: one for one in probed.items}
    shown = {**SHOWN, PROBES: PROBES} if probed.why or any(one["attached"] for one in told.values()) else SHOWN
    return {
        "boot_id": boot_id,
        "written_seconds": now,
        "sources": {name: _source(answers[source], before["sources"].get(name, {}), now) for source, name in shown.items()},
        "gpus": [gpu.identity() for gpu in gpus if gpu.pci_bus_id],
        "owners": owned(gpus),
        "xids": xids.counted(before["xids"], answers["kernel_log"].items, read_seconds, now),
        "probes": requests.silent(before["probes"]) if probed.why else requests.counted(before["probes"], told, gpus, now, max_owners),
    }


def _source(answer: Answer, before: Mapping[str, Any], now: float) -> dict[str, Any]:
    return {"why": answer.why, "told_seconds": before.get("told_seconds", 0.0) if answer.why else now}


def _cost(before: Mapping[str, Any]) -> dict[str, float]:
    """Of all readings of this boot; memory of the largest process of this one."""
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    spent = sum(one.ru_utime + one.ru_stime for one in usage)
    return {
        "cpu_seconds": before["cost"]["cpu_seconds"] + spent,
        "resident_bytes": max(one.ru_maxrss for one in usage) * 1024,
    }
