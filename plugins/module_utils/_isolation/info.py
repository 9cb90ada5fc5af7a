# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""What isolation_info answers: the node's GPUs and who is on them, its engines and their settings, and each container with what it can see."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.paths import owner_of
from ansible_collections.gpuops.remediation.plugins.module_utils._gpu import info as gpu_info
from ansible_collections.gpuops.remediation.plugins.module_utils._gpu import nvml
from ansible_collections.gpuops.remediation.plugins.module_utils._gpu.records import text
from ansible_collections.gpuops.remediation.plugins.module_utils._isolation import containers, toolkit
from ansible_collections.gpuops.remediation.plugins.module_utils._isolation.visible import asked
from ansible_collections.gpuops.remediation.plugins.module_utils._node import programs
from ansible_collections.gpuops.remediation.plugins.module_utils._node.node import Node
from ansible_collections.gpuops.remediation.plugins.module_utils._node.watchdog import Answer, Emit, Watchdog

COMPUTE_MODES = {0: "default", 1: "exclusive_thread", 2: "prohibited", 3: "exclusive_process"}
ENGINES = {"nvidia-container-toolkit": "nvidia-ctk", "runc": "runc"}
_SAID = re.compile(r"version:? v?(\d\S*)")
_PROGRAM_SECONDS = 5.0


def read(node: Node, *, toolkit_configs: Sequence[str], engine_dirs: Sequence[str], timeout_seconds: float) -> dict[str, Any]:
    """Sources that fail are named in `missing`; nothing here fails because one of them did."""
    told = gpu_info.read(node, [], timeout_seconds=timeout_seconds / 2, with_kernel_log=False, remember=False)
    sources = {
        "compute_mode": partial(_compute_modes, node.nvml_library),
        "containers": partial(containers.collect, node.proc, node.dev_root, node.cgroup_root),
        "engines": partial(_engines, engine_dirs),
        "toolkit": partial(_toolkit, toolkit_configs),
    }
    answers, abandoned = Watchdog(node.state, timeout_seconds / 2).collect(sources)
    missing = told["missing"] + [
        {"source": name, "why": answer.why}
        for name, answer in answers.items()
        if answer.why and answer.why not in {one["why"] for one in told["missing"]}  # one NVML that does not answer is one fault
    ]
    modes = {item["uuid"]: item["mode"] for item in answers["compute_mode"].items if "mode" in item}
    gpus = [{**gpu, "compute_mode": modes.get(gpu["uuid"])} for gpu in told["gpus"]]
    daemons: list[Any] = next((item["daemons"] for item in answers["containers"].items if "daemons" in item), [])
    return {
        "node": told["node"],
        "gpus": gpus,
        "engines": [item["engine"] for item in answers["engines"].items if "engine" in item],
        "toolkit": next((item["toolkit"] for item in answers["toolkit"].items), None),
        "mps_daemons": daemons,
        "containers": join(answers["containers"], gpus),
        "abandoned": told["abandoned"] + [{name: entry[name] for name in ("source", "pid", "since")} for entry in abandoned],
        "missing": missing,
    }


def join(answer: Answer, gpus: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Those that have to do with GPUs, and what NVML sees them use."""
    uses = _uses(gpus)
    opened: dict[Optional[str], list[Any]] = {}
    environments: dict[Optional[str], dict[str, Any]] = {}
    for item in answer.items:
        for one in item.get("open", ()):
            have = opened.setdefault(one["path"], [])
            have += [device for device in one["devices"] if device not in have]
        if "path" in item:
            environments[item["path"]] = {name: value for name, value in item.items() if name != "path"}
    unknown: dict[str, Any] = {"environment_read": False, "visible_devices": None, "mps_pipes": [], "mps_reached": []}
    found = []
    for item in answer.items:
        if "owner" in item:
            path = item["owner"]["cgroup"]
            one = {**item["owner"], **unknown, **environments.get(path, {}), "open": opened.get(path, []), "uses": uses.pop(path, [])}
            if _concerned(one):
                found.append(one)
    rest = [{**_nobody(path), **unknown, "open": opened.get(path, []), "uses": used} for path, used in uses.items()]
    return sorted(found + rest, key=lambda one: str(one["cgroup"]))


def _concerned(one: Mapping[str, Any]) -> bool:
    return bool(one["devices"] or one["open"] or one["uses"] or one["mps_reached"] or asked(one["visible_devices"]))


def _nobody(path: Optional[str]) -> dict[str, Any]:
    """Whoever NVML lists is in neither a container nor a unit, or has ended."""
    facts = dict.fromkeys(("unit", "runtime", "id", "pod_uid", "memory_max", "host_pid", "capabilities"))
    return {"cgroup": path, **facts, "processes": [], "devices": []}


def _uses(gpus: Iterable[Mapping[str, Any]]) -> dict[Optional[str], list[dict[str, Any]]]:
    """By cgroup; one entry for each GPU or part of one, and kind of process."""
    found: dict[Optional[str], list[dict[str, Any]]] = {}
    for gpu in gpus:
        for process in gpu["processes"]:
            path = process["cgroup"]
            owner = owner_of(path) if path else None
            use = {"gpu": gpu["uuid"], "gi": process["gi"], "ci": process["ci"], "type": process["type"], "source": process["source"]}
            have = found.setdefault(owner.path if owner else path, [])
            if use not in have:
                have.append(use)
    return found


def _compute_modes(library: str, emit: Emit) -> None:
    library_of_nvidia = nvml.start(library, emit)

    def mode_of(index: int) -> None:
        try:
            handle = library_of_nvidia.nvmlDeviceGetHandleByIndex(index)
            uuid, mode = library_of_nvidia.nvmlDeviceGetUUID(handle), library_of_nvidia.nvmlDeviceGetComputeMode(handle)
            emit({"uuid": text(uuid), "mode": COMPUTE_MODES.get(mode, f"unknown_{mode}")})
        except library_of_nvidia.NVMLError as error:  # gpu_info's errors say more of this GPU
            emit({"index": index, "error": str(error)})

    nvml.each_gpu(library_of_nvidia, mode_of)


def _engines(folders: Sequence[str], emit: Emit) -> None:
    for engine, program in ENGINES.items():
        paths = [os.path.join(folder, program) for folder in folders]
        for path in sorted({os.path.realpath(path) for path in paths if os.access(path, os.X_OK)}):  # the operator's and the package's
            emit({"engine": {"engine": engine, "path": path, **_version(path, emit)}})


def _version(path: str, emit: Emit) -> dict[str, Optional[str]]:
    try:
        _status, words = programs.run([path, "--version"], emit, _PROGRAM_SECONDS)
    except Exception as error:  # one that hangs or is of another architecture hides no other
        return {"version": None, "why": f"{type(error).__name__}: {error}"}
    said = _SAID.search(words)
    return {"version": said.group(1) if said else None, "why": None if said else f"says no version: {words[:200]}"}


def _toolkit(paths: Sequence[str], emit: Emit) -> None:
    """The file that the runtime reads; several where an operator has brought a toolkit of its own, and then the first that is there."""
    for path in paths:
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                emit({"toolkit": {"path": path, "settings": toolkit.parse(file.read())}})
                return
        except FileNotFoundError:
            continue
