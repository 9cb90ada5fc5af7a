# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""MIG layouts of a simulated node as people make and see them: what nvidia-smi is on a real one. Programs use the library."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from typing import Any

from . import capabilities, mig
from .errors import NvmlError
from .node import Node, SimulatorError


@contextlib.contextmanager
def _change(node: Node, index: int) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    try:
        with node.change() as state:
            gpu = node.select(state, index)
            yield state, gpu
            capabilities.update(str(node.path), gpu)
    except NvmlError as error:
        raise SimulatorError(f"GPU {index}: {error.name}") from None


def set_mode(node: Node, index: int, on: bool) -> str:
    """What the mode is now, in words."""
    with _change(node, index) as (state, gpu):
        obstacle = mig.set_mode(node.model, state, gpu, int(on))
        mode = gpu["mig"]
    return f"MIG {_mode(mode)}" + (f": {obstacle}" if obstacle else "")


def _named(infos: Any, name: str) -> int:
    for info in infos:
        if name in (info["name"].removeprefix("MIG "), f"{info['sliceCount']}c"):
            return int(info["id"])
    raise SimulatorError(f"no profile {name}: there are {', '.join(info['name'].removeprefix('MIG ') for info in infos)}")


def create(node: Node, index: int, profile: str, start: int | None = None, compute: tuple[str, ...] | None = None) -> int:
    """Create a GPU instance and in it the compute instances, by default one of its own size; returns its number."""
    model = node.model
    with _change(node, index) as (state, gpu):
        number = _named(model["mig"]["profiles"].values(), profile)
        info = mig.profile(model, number)
        placement = None if start is None else [start, info["placements"][0][1]]
        instance = mig.create_gpu_instance(model, state, gpu, number, placement)
        parts = mig.compute_profiles(model, info).values()
        for name in (f"{info['sliceCount']}c",) if compute is None else compute:
            mig.create_compute_instance(model, state, gpu, instance, _named(parts, name))
    for ci in (None, *(one["id"] for one in instance["compute"])):
        path = node.path / capabilities.access(gpu, instance["id"], ci)
        subprocess.run([node.modprobe, "-f", path], check=True)
    return int(instance["id"])


def destroy(node: Node, index: int, gi: int, ci: int | None = None) -> None:
    """Destroy a compute instance, or a GPU instance with all in it: all or nothing."""
    with _change(node, index) as (state, gpu):
        instance = _numbered(gpu["mig"]["instances"], gi, f"GPU {index} has no GPU instance {gi}")
        if ci is not None:
            compute = _numbered(instance["compute"], ci, f"GPU instance {gi} has no compute instance {ci}")
            mig.destroy_compute_instance(state, gpu, instance, compute)
            return
        for compute in list(instance["compute"]):
            mig.destroy_compute_instance(state, gpu, instance, compute)
        mig.destroy_gpu_instance(state, gpu, instance)


def _numbered(live: list[dict[str, Any]], number: int, missing: str) -> dict[str, Any]:
    for one in live:
        if one["id"] == number:
            return one
    raise SimulatorError(missing)


def _mode(mode: dict[str, Any]) -> str:
    names = ("off", "on")
    pending = "" if mode["pending"] == mode["current"] else f", {names[mode['pending']]} pending"
    return names[mode["current"]] + pending


def show(node: Node, index: int) -> str:
    """The memory slices of a GPU, its instances and who holds them."""
    state = node.state()
    gpu = node.select(state, index)
    slots = ["."] * node.model["mig"]["memory_slices"]
    lines = []

    def holders(gi: int, ci: int | None) -> str:
        found = [f"{one['name']} ({one['pid']})" for one in mig.users(state, gpu, gi) if one["ci"] == ci]
        return f"  held by {', '.join(found)}" if found else ""

    for instance in gpu["mig"]["instances"]:
        span = range(instance["start"], instance["start"] + instance["size"])
        slots[span.start : span.stop] = [str(instance["id"])] * len(span)
        lines.append(f"  gi {instance['id']}  {_place(instance)}{holders(instance['id'], None)}")
        lines += [f"    ci {one['id']}  {_place(one)}  {one['uuid']}{holders(instance['id'], one['id'])}" for one in instance["compute"]]
    return "\n".join(
        [f"GPU {index}  {gpu['uuid']}  MIG {_mode(gpu['mig'])}", "  slots " + " ".join(f"{slot:>2}" for slot in slots), *lines]
    )


def _place(one: dict[str, Any]) -> str:
    return f"{one['name'].removeprefix('MIG ')} {one['start']}:{one['size']}"
