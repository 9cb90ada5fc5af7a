# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""MIG on one simulated GPU: what can be created where, what an instance is called, and what stands in the way of a change.

The functions take the model's data and the state of a node and of one of its GPUs, which they change. They know nothing of handles or files.
Also compiled into the library, so: standard library only, Python 3.9.
"""

from __future__ import annotations

import uuid
from typing import Any, Optional

from .errors import NvmlError
from .state import add_event, is_alive

Record = dict[str, Any]
Placement = list[int]  # start, size
CONFIG_CHANGE = 0x100  # NVML's event
ENGINES = ("CopyEngine", "Decoder", "Encoder", "Jpeg", "Ofa")  # compute instances share those of their GPU instance
NAMESPACE = uuid.UUID("0a7d6c3e-54a0-5d0c-8f0b-6d69672d6369")


def profile(model: Record, profile_id: int) -> Record:
    for info in model["mig"]["profiles"].values():
        if info["id"] == profile_id:
            return dict(info)
    raise NvmlError("INVALID_ARGUMENT")


def compute_profiles(model: Record, gpu_profile: Record) -> dict[str, Record]:
    """What a GPU instance of that profile can be divided into, by NVML's number of the query."""
    mig, slices, found = model["mig"], gpu_profile["sliceCount"], {}
    for query, one in mig["compute_profiles"].items():
        if slices in one["parents"]:
            width = one["sliceCount"]
            placements = [[start, width] for start in one["starts"] if start + width <= slices]
            whole = width == slices
            found[query] = {
                "id": one["id"], "sliceCount": width, "instanceCount": len(placements), "placements": placements,
                "multiprocessorCount": gpu_profile["multiprocessorCount"] if whole else width * mig["multiprocessors_per_compute_slice"],
                **{f"shared{engine}Count": gpu_profile[f"{engine[0].lower()}{engine[1:]}Count"] for engine in ENGINES},
                "name": gpu_profile["name"] if whole else gpu_profile["name"].replace("MIG ", f"MIG {width}c."),
            }  # fmt: skip
    return found


def compute_profile(model: Record, instance: Record, profile_id: int) -> Record:
    for info in compute_profiles(model, profile(model, instance["profile"])).values():
        if info["id"] == profile_id:
            return info
    raise NvmlError("INVALID_ARGUMENT")


def instance_id(memory_slices: int, start: int, size: int) -> int:
    """The driver's number of a GPU instance says its size and its place: 0 is the whole GPU, 1 and 2 its halves, 3 to 6 its quarters."""
    return memory_slices // size - 1 + start // size


def _free(placements: list[Placement], taken: list[Record]) -> list[Placement]:
    def overlaps(start: int, size: int, one: Record) -> bool:
        return bool(start < one["start"] + one["size"] and one["start"] < start + size)

    return [[start, size] for start, size in placements if not any(overlaps(start, size, one) for one in taken)]


def free_placements(gpu: Record, info: Record) -> list[Placement]:
    return _free(info["placements"], gpu["mig"]["instances"])


def remaining_capacity(model: Record, gpu: Record, info: Record) -> int:
    """How many more of a profile there can be: its placements do not overlap one another."""
    live = [instance["profile"] for instance in gpu["mig"]["instances"]]
    if info["id"] in (rivals := model["mig"]["at_most_one_of"]) and any(one in rivals for one in live):
        return 0
    return min(len(free_placements(gpu, info)), int(info["instanceCount"]) - live.count(info["id"]))


def remaining_compute_capacity(instance: Record, info: Record) -> int:
    return len(_free(info["placements"], instance["compute"]))


def _default_placement(model: Record, gpu: Record, choices: list[Placement]) -> Placement:
    """Where the driver puts an instance that was not told where."""
    if model["mig"]["default_placement"] == "lowest":
        return min(choices)
    others = [free_placements(gpu, info) for info in model["mig"]["profiles"].values()]

    def lost(choice: Placement) -> int:
        taken = [{"start": choice[0], "size": choice[1]}]
        return sum(len(placements) - len(_free(placements, taken)) for placements in others)

    return min(choices, key=lambda choice: (lost(choice), choice))


def _serial(state: Record) -> int:
    """Numbers that are never used again, so that a handle cannot come to mean another instance."""
    state["instance_sequence"] += 1
    return int(state["instance_sequence"])


def users(state: Record, gpu: Record, gi: Optional[int] = None, ci: Optional[int] = None) -> list[Record]:
    """Who holds a GPU, or one of its instances, whether NVML lists them or not."""
    return [
        process for process in state["processes"]
        if gpu["index"] in process["gpus"] and gi in (None, process["gi"]) and ci in (None, process["ci"]) and is_alive(process)
    ]  # fmt: skip


def memory_used(state: Record, gpu: Record, gi: Optional[int] = None) -> int:
    return sum(int(process["memory_bytes"]) for process in users(state, gpu, gi))


def set_mode(model: Record, state: Record, gpu: Record, mode: int) -> Optional[str]:
    """Change the mode; the answer is what stands in the way of it, in which case the mode is pending."""
    mig = gpu["mig"]
    mig["pending"] = mode
    if mig["current"] == mode:
        return None
    if mig["instances"] or users(state, gpu):
        return "IN_USE"
    if not model["mig"]["resetless"]:
        return "RESET_REQUIRED"
    mig["current"] = mode
    add_event(state, gpu, CONFIG_CHANGE, 0)
    return None


def create_gpu_instance(model: Record, state: Record, gpu: Record, profile_id: int, placement: Optional[Placement] = None) -> Record:
    mig = gpu["mig"]
    if not mig["current"]:
        raise NvmlError("NOT_SUPPORTED")
    info = profile(model, profile_id)
    if placement is not None and placement not in info["placements"]:
        raise NvmlError("INVALID_ARGUMENT")
    # The first instance divides the memory, for which nothing may be at work on the GPU. Who only watches is not.
    if not mig["instances"] and any(process["type"] != "monitor" for process in users(state, gpu)):
        raise NvmlError("IN_USE")
    choices = free_placements(gpu, info)
    if not remaining_capacity(model, gpu, info) or (placement is not None and placement not in choices):
        raise NvmlError("INSUFFICIENT_RESOURCES")
    start, size = placement or _default_placement(model, gpu, choices)
    instance = {
        "serial": _serial(state), "id": instance_id(model["mig"]["memory_slices"], start, size), "profile": profile_id,
        "name": info["name"], "start": start, "size": size, "compute": [],
    }  # fmt: skip
    mig["instances"] = sorted([*mig["instances"], instance], key=lambda one: int(one["id"]))
    add_event(state, gpu, CONFIG_CHANGE, 0)
    return instance


def create_compute_instance(
    model: Record, state: Record, gpu: Record, instance: Record, profile_id: int, placement: Optional[Placement] = None
) -> Record:
    info = compute_profile(model, instance, profile_id)
    if placement is not None and placement not in info["placements"]:
        raise NvmlError("INVALID_ARGUMENT")
    choices = _free(info["placements"], instance["compute"])
    if placement is not None and placement not in choices:
        raise NvmlError("IN_USE")
    if not choices:
        raise NvmlError("INSUFFICIENT_RESOURCES")
    start, size = placement or choices[0]
    used = {one["id"] for one in instance["compute"]}
    number = next(one for one in range(len(used) + 1) if one not in used)
    # Of the GPU and the place only, as the driver makes it: what is created there again has the same one.
    identity = uuid.uuid5(NAMESPACE, f"{gpu['uuid']}/{instance['id']}/{start}")
    compute = {
        "serial": _serial(state), "id": number, "profile": profile_id, "name": info["name"], "start": start, "size": size,
        "uuid": f"MIG-{identity}",
    }  # fmt: skip
    instance["compute"] = sorted([*instance["compute"], compute], key=lambda one: int(one["id"]))
    add_event(state, gpu, CONFIG_CHANGE, 0)
    return compute


def destroy_gpu_instance(state: Record, gpu: Record, instance: Record) -> None:
    if instance["compute"] or users(state, gpu, instance["id"]):
        raise NvmlError("IN_USE")
    gpu["mig"]["instances"].remove(instance)
    add_event(state, gpu, CONFIG_CHANGE, 0)


def destroy_compute_instance(state: Record, gpu: Record, instance: Record, compute: Record) -> None:
    if users(state, gpu, instance["id"], compute["id"]):
        raise NvmlError("IN_USE")
    instance["compute"].remove(compute)
    add_event(state, gpu, CONFIG_CHANGE, 0)
