# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""A node's GPUs from all sources: NVML, the driver's files, open device files and the kernel log, each in its own watched child."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from ansible_collections.gpuops.remediation.plugins.module_utils._gpu import holders, nvml, records
from ansible_collections.gpuops.remediation.plugins.module_utils._node import kernel_log
from ansible_collections.gpuops.remediation.plugins.module_utils._node.node import Node
from ansible_collections.gpuops.remediation.plugins.module_utils._node.procfs import isoformat
from ansible_collections.gpuops.remediation.plugins.module_utils._node.statedir import StateDirError
from ansible_collections.gpuops.remediation.plugins.module_utils._node.watchdog import Answer, Collect, Emit, Watchdog

_SEEN = "gpus.json"


def read(
    node: Node,
    wanted: Sequence[str],
    *,
    timeout_seconds: float,
    since: float | None = None,
    with_kernel_log: bool = True,
    remember: bool = True,
) -> dict[str, Any]:
    """gpu_info's result. Sources that fail are named in `missing`; nothing here fails because one of them did."""
    wanted = records.normalise(wanted)
    boot_id, boot_time = node.proc.boot_id(), node.proc.boot_time()
    sources: dict[str, Collect] = {
        "nvml": partial(nvml.collect, node.nvml_library, wanted, node.proc.describe),
        "driver": partial(driver_files, node),
        "processes": partial(holders.collect, node.proc, node.dev_root),
    }
    if with_kernel_log:
        sources["kernel_log"] = partial(kernel_log.collect, node.kmsg_path, boot_time, boot_id, since)
    answers, abandoned = Watchdog(node.state, timeout_seconds).collect(sources)
    missing = [{"source": name, "why": answer.why} for name, answer in answers.items() if answer.why]
    told, gpus = join(answers, earlier(node, boot_id), node.dev_root)
    if remember:
        missing += _remember(node, boot_id, gpus)
    gpus, unknown = records.select(gpus, wanted)
    missing += [{"source": "gpus", "why": f"there is no GPU {name}"} for name in unknown]
    log = answers["kernel_log"].items if with_kernel_log else []
    return {
        "node": {
            "boot_id": boot_id,
            "boot_time": isoformat(boot_time),
            "collected_at": isoformat(time.time()),
            "driver_version": told.get("driver_version"),
        },
        "gpus": [records.show(gpu) for gpu in gpus],
        "xids": [item["xid"] for item in log if item["xid"]],
        "kernel_log": [item["line"] for item in log],
        "abandoned": [{name: entry[name] for name in ("source", "pid", "since")} for entry in abandoned],
        "missing": missing,
    }


def driver_files(node: Node, emit: Emit) -> None:
    emit({"known": node.proc.driver_gpus()})


def join(answers: Mapping[str, Answer], seen: Sequence[Mapping[str, Any]], dev_root: str) -> tuple[dict[str, Any], list[records.Gpu]]:
    """The GPUs, from what NVML told, what the driver and an earlier reading know, and who has which device file open."""
    nvml_answer = answers["nvml"]
    told, gpus = records.from_nvml(nvml_answer.items, nvml_answer.why)
    found: dict[str, Any] = {}
    for name in ("driver", "processes"):
        for item in answers[name].items:
            found.update(item)
    known = records.merge_known(found.get("known", []), seen)
    gpus = records.add_known(gpus, known, nvml_complete=nvml_answer.why is None)
    for minor in found.get("minors", []):  # nobody could name it, but its holders can be
        if all(gpu.minor != minor for gpu in gpus) and nvml_answer.why is not None:
            gpus.append(records.Gpu(minor=minor))
    records.add_holders(gpus, found.get("holders", []), found.get("minors"), dev_root)
    return told, gpus


def earlier(node: Node, boot_id: str) -> list[dict[str, Any]]:
    """Identities of an earlier reading, of this boot only: cards move between boots."""
    try:
        stored = node.state.read(_SEEN, {})
    except StateDirError:
        return []
    return list(stored.get("gpus", [])) if stored.get("boot_id") == boot_id else []


def _remember(node: Node, boot_id: str, gpus: Sequence[records.Gpu]) -> list[dict[str, str]]:
    """So that a GPU which NVML loses later in this boot still has a name."""
    have = earlier(node, boot_id)
    known = {one["uuid"]: one for one in have}
    known.update({gpu.uuid: gpu.identity() for gpu in gpus if gpu.uuid and gpu.pci_bus_id and gpu.serial})
    new = sorted(known.values(), key=lambda one: str(one["pci_bus_id"]))
    if new == have:
        return []
    try:
        with node.state.locked():
            node.state.write(_SEEN, {"boot_id": boot_id, "gpus": new})
    except StateDirError as error:
        return [{"source": "state_dir", "why": str(error)}]
    return []
