# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.
"""The steps of a plan, and the layout that they lead to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._converge import Step
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.layout import ComputeInstance, GpuInstance, Layout

ENABLE, DISABLE, RESET = "enable_mig", "disable_mig", "reset_gpu"
CREATE, DESTROY = "create_gpu_instance", "destroy_gpu_instance"
CREATE_COMPUTE, DESTROY_COMPUTE = "create_compute_instance", "destroy_compute_instance"

PENDING = "The mode stays pending until the GPU is reset, and is kept over a reboot."
AT_ONCE = "The mode changes at once, if nothing uses the GPU, and is lost with a reboot or when the driver is unloaded."
RESETS = (
    "Every process on the GPU has to be gone, and every other client too: persistence daemon, DCGM, exporters, device plugin, display. "
    "A GPU that is passed through to a virtual machine cannot be reset; the machine has to be rebooted."
)
FIRST = "The first instance on an empty GPU is refused as in use while anything else holds memory or a channel on it."


@dataclass(frozen=True)
class MigStep(Step):
    """`instance` is the GPU instance, or that of the compute instance `compute`. `consequences` are for people to read first."""

    instance: Optional[GpuInstance] = None
    compute: Optional[ComputeInstance] = None
    consequences: tuple[str, ...] = ()


def set_mode(pending: bool, want: bool, resetless: bool) -> MigStep:
    return MigStep(ENABLE if want else DISABLE, "mode", pending, want, consequences=(AT_ONCE if resetless else PENDING,))


def mode_steps(current: bool, pending: bool, want: bool, resetless: bool) -> Iterator[MigStep]:
    if pending != want or (current != want and resetless):
        yield set_mode(pending, want, resetless)
    if current != want and not resetless:
        yield MigStep(RESET, "mode", current, want, consequences=(RESETS,))


def destroy(instance: GpuInstance) -> Iterator[MigStep]:
    yield from (destroy_compute(instance, one) for one in instance.compute)
    yield MigStep(DESTROY, instance.name, instance.name, None, instance)


def create(instance: GpuInstance) -> Iterator[MigStep]:
    empty = replace(instance, compute=())
    yield MigStep(CREATE, instance.name, None, instance.name, empty)
    yield from (create_compute(empty, one) for one in instance.compute)


def destroy_compute(instance: GpuInstance, compute: ComputeInstance) -> MigStep:
    name = instance.compute_name(compute)
    return MigStep(DESTROY_COMPUTE, name, name, None, instance, compute)


def create_compute(instance: GpuInstance, compute: ComputeInstance) -> MigStep:
    name = instance.compute_name(compute)
    return MigStep(CREATE_COMPUTE, name, None, name, instance, compute)


_OPPOSITE = {CREATE: DESTROY, DESTROY: CREATE, CREATE_COMPUTE: DESTROY_COMPUTE, DESTROY_COMPUTE: CREATE_COMPUTE}


def undo(layout: Layout, steps: Sequence[MigStep]) -> Iterator[MigStep]:
    """What takes these steps back, of those that change instances, as far as the layout shows that they were taken."""
    for step in reversed(steps):
        if step.instance is None:
            continue
        there = next((one for one in layout.instances if one.name == step.instance.name), None)
        present = there is not None if step.compute is None else there is not None and step.compute in there.compute
        if present != (step.action in (CREATE, CREATE_COMPUTE)):
            continue
        back = [MigStep(_OPPOSITE[step.action], step.target, step.after, step.before, replace(step.instance, compute=()), step.compute)]
        if there is not None and step.action == CREATE:  # with all that is in it by now
            back = list(destroy(there))
        yield from back
        layout = predict(layout, back)


def differences(wanted: Layout, found: Layout) -> list[str]:
    """What is not there, and what is there too, by name."""
    expected, there = names(wanted), names(found)
    told = [f"{name} is missing" for name in expected if name not in there] + [
        f"{name} is there too" for name in there if name not in expected
    ]
    modes = [(layout.mig, layout.to_be) for layout in (wanted, found)]
    if modes[0] != modes[1]:
        told.insert(0, f"MIG is {_mode(*modes[1])}, not {_mode(*modes[0])}")
    return told


def names(layout: Layout) -> dict[str, None]:
    """Of all that is there, GPU instances before what is inside them."""
    return {name: None for one in layout.instances for name in (one.name, *map(one.compute_name, one.compute))}


def _mode(current: bool, pending: bool) -> str:
    words = ("off", "on")
    return words[current] + ("" if pending == current else f" with {words[pending]} pending")


def predict(layout: Layout, steps: Iterable[MigStep]) -> Layout:
    """The layout after these steps."""
    mig, pending = layout.mig, layout.pending
    there = {instance.placement: instance for instance in layout.instances}
    for step in steps:
        if step.instance is None:
            mig, pending = step.after, None
            continue
        place = step.instance.placement
        if step.action == DESTROY:
            del there[place]
        elif step.action == CREATE:
            there[place] = step.instance
        elif step.compute is not None:
            others = tuple(one for one in there[place].compute if one != step.compute)
            there[place] = replace(there[place], compute=(*others, step.compute) if step.action == CREATE_COMPUTE else others)
    return Layout(mig, tuple(there.values()), pending)


def with_first_creations_named(layout: Layout, steps: Iterable[MigStep]) -> Iterator[MigStep]:
    there = len(layout.instances)
    for step in steps:
        yield replace(step, consequences=(*step.consequences, FIRST)) if step.action == CREATE and not there else step
        there += (step.action == CREATE) - (step.action == DESTROY)
