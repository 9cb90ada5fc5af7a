# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.
"""The MIG state of a node's GPUs and who holds it: NVML, the driver's files and the processes' open files, each in its own watched child."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._gpu import info as gpu_info
from ansible_collections.gpuops.remediation.plugins.module_utils._gpu import records
from ansible_collections.gpuops.remediation.plugins.module_utils._mig import clients, survey, watched
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.errors import Infeasible
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.layout import Layout
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.parted import Entry, PartedInvalid, document_of
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.parted_gpus import NodeGpu, entry_for, export, holds
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.reading import Reading
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.report import report
from ansible_collections.gpuops.remediation.plugins.module_utils._node.node import Node
from ansible_collections.gpuops.remediation.plugins.module_utils._node.watchdog import Answer, Collect, Watchdog

LEFT_ALONE = "the configuration leaves it alone"


def read(
    node: Node, wanted: Sequence[str], *, timeout_seconds: float, config: Optional[str] = None, asserted: Optional[Sequence[Entry]] = None
) -> dict[str, Any]:
    """mig_info's result. Sources that fail are named in `missing`; nothing here fails because one of them did."""
    wanted = records.normalise(wanted)
    sources: dict[str, Collect] = {**survey.sources(node, wanted), "driver": partial(gpu_info.driver_files, node)}
    answers, abandoned = Watchdog(node.state, timeout_seconds).collect(sources)
    mig = watched.join(answers[watched.SOURCE].items, answers[watched.SOURCE].why, wanted)
    seen = answers["clients"]
    minors = Answer([item for item in seen.items if "minors" in item])
    _told, gpus = gpu_info.join({**answers, "processes": minors}, gpu_info.earlier(node, node.proc.boot_id()), node.dev_root)
    chosen, unknown = records.select(gpus, wanted)
    missing = [{"source": name, "why": answer.why} for name, answer in answers.items() if answer.why]
    missing += [{"source": "gpus", "why": f"there is no GPU {name}"} for name in unknown]
    holding = [item for item in seen.items if "held" in item]
    result: dict[str, Any] = {
        "driver_version": mig.driver_version,
        "gpus": [
            report(gpu, _answer_of(gpu, mig.gpus), clients.join(gpu.minor, gpu.processes, holding), clients_complete=seen.why is None)
            for gpu in chosen
        ],
        "abandoned": [{name: entry[name] for name in ("source", "pid", "since")} for entry in abandoned],
        "missing": missing,
    }
    if asserted is not None:
        result["asserted"] = _asserted(asserted, chosen, mig.gpus)
    return {**result, **_parted(config, gpus, mig.gpus, wanted)} if config else result


def _answer_of(gpu: records.Gpu, answers: Sequence[watched.GpuAnswer]) -> Optional[watched.GpuAnswer]:
    """By name: what NVML has lost may have had a number that another GPU has now."""
    named = (one for one in answers if {one.uuid, one.pci_bus_id} & ({gpu.uuid, gpu.pci_bus_id} - {None}))
    return next(named, None) or next((one for one in answers if one.uuid is None and one.index == gpu.index), None)


def _asserted(entries: Sequence[Entry], gpus: Sequence[records.Gpu], answers: Sequence[watched.GpuAnswer]) -> dict[str, Any]:
    """Each GPU by itself. One that could not be read may be any that the configuration names."""
    told: list[dict[str, Any]] = []
    for gpu in gpus:
        answer = _answer_of(gpu, answers)
        reading = answer.reading if answer else None
        so, why = (None, "the layout could not be read") if reading is None else _holds(entries, reading)
        told.append({"uuid": gpu.uuid, "pci_bus_id": gpu.pci_bus_id, "holds": so, "why": why})
    named = [one for one in told if one["why"] != LEFT_ALONE]
    return {"holds": bool(named) and all(one["holds"] for one in named), "gpus": told}


def _holds(entries: Sequence[Entry], reading: Reading) -> tuple[Optional[bool], Optional[str]]:
    entry = entry_for(entries, reading.index, reading.device_id)
    if entry is None:
        return None, LEFT_ALONE
    if reading.model is None or reading.layout is None:
        return (False, "it has no MIG") if entry.mig else (True, None)
    try:
        so = holds(reading.model, reading.layout, entry)
    except Infeasible as error:
        return False, str(error)
    return so, None if so else "it is cut otherwise"


def _parted(config: str, gpus: Sequence[records.Gpu], answers: Sequence[watched.GpuAnswer], wanted: Sequence[str]) -> dict[str, Any]:
    found = [(gpu, _answer_of(gpu, answers)) for gpu in gpus]
    readings = [answer.reading for _gpu, answer in found if answer and answer.reading]
    unread = [str(gpu.uuid or gpu.pci_bus_id or gpu.device_path) for gpu, answer in found if not (answer and answer.reading)]
    if wanted:
        why = "not all GPUs of the node were asked for, and a configuration is of all"
    elif unread or not readings:
        why = f"the layout could not be read: {', '.join(unread) or 'no GPU was found'}"
    else:
        try:
            entries = export([NodeGpu(one.index, one.device_id, one.layout or Layout(False)) for one in readings])
            return {"mig_parted": document_of({config: entries}), "mig_parted_why": None}
        except PartedInvalid as error:
            why = str(error)
    return {"mig_parted": None, "mig_parted_why": why}
