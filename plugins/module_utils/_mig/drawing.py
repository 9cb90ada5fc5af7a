# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.
"""A layout as text, a line for each instance over the slots that it takes, so that a diff shows what comes and what goes."""

from __future__ import annotations

from ansible_collections.gpuops.remediation.plugins.module_utils._mig.board import board_of
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.layout import GpuInstance, Layout
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.profiles import Model


def draw(model: Model, layout: Layout) -> str:
    pending = "" if layout.pending in (None, layout.mig) else f", {'on' if layout.pending else 'off'} after a reset"
    if not layout.mig:
        return f"MIG off{pending}\n"
    lines = [" ".join(str(slot) for slot in range(model.memory_slices)) + (f"  MIG on{pending}" if pending else "")]
    lines += [f"{_marks(model, one.placement.slots, '#')}  {one.name:{_width(model)}}  {_compute(one)}" for one in layout.instances]
    free = board_of(model).all_slots & ~layout.occupied
    if free:
        lines.append(f"{_marks(model, free, '-')}  free")
    return "\n".join(lines) + "\n"


def _width(model: Model) -> int:
    return max(len(profile.name) for profile in model.profiles) + 2


def _marks(model: Model, slots: int, mark: str) -> str:
    return " ".join(mark if slots >> slot & 1 else "." for slot in range(model.memory_slices))


def _compute(instance: GpuInstance) -> str:
    return " ".join(one.name for one in instance.compute) or "no compute instance"
