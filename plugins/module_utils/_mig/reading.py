# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.
"""What one GPU says of its MIG state: what it can be cut into, what it is cut into, and the MIG devices' UUIDs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._mig.device_id import DeviceId
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.layout import ComputeInstance, GpuInstance, Layout, Placement
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.profiles import Model, Profile
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.steps import MigStep

_MIB = 1 << 20


@dataclass(frozen=True)
class Reading:
    """`model` and `layout` are None where the GPU has no MIG at all.

    The layout has the driver's ids. `mig_uuids` are those of the MIG devices by the names of their compute instances: an equal UUID is no
    proof that an instance was left alone. `resetless`: the mode changes without a reset (NVML field 184).
    """

    index: int
    uuid: str
    pci_bus_id: str
    minor: Optional[int]
    name: str
    device_id: DeviceId
    resetless: bool = False
    model: Optional[Model] = None
    layout: Optional[Layout] = None
    mig_uuids: Mapping[str, str] = field(default_factory=dict)

    def data(self) -> dict[str, Any]:
        """As JSON can carry it; `from_data` is the way back."""
        return asdict(self)


def from_data(data: Mapping[str, Any]) -> Reading:
    model, layout = data["model"], data["layout"]
    return Reading(
        **{
            **data,
            "device_id": DeviceId(**data["device_id"]),
            "model": Model(**{**_tuples(model), "profiles": tuple(_profile(one) for one in model["profiles"])}) if model else None,
            "layout": _layout(layout) if layout else None,
        }
    )


def show(layout: Layout, reading: Reading) -> dict[str, Any]:
    """A layout of that GPU for people and playbooks. What is not there yet has no ids and no UUIDs."""
    model, there = reading.model, reading.layout
    uuids = reading.mig_uuids if there is not None and there == layout else {}
    profiles = {one.name: one for one in model.profiles} if model else {}
    return {
        "mig": layout.mig,
        "pending": layout.to_be,
        "instances": [
            {
                "name": one.name,
                "profile": one.profile,
                "gi": one.id,
                "start": one.placement.start,
                "size": one.placement.size,
                "memory_bytes": (profiles[one.profile].memory_mib or 0) * _MIB or None if one.profile in profiles else None,
                "compute": [
                    {
                        "name": one.compute_name(part),
                        "ci": part.id,
                        "start": part.start,
                        "slices": part.slices,
                        "uuid": uuids.get(one.compute_name(part)),
                    }
                    for part in one.compute
                ],
            }
            for one in layout.instances
        ],
    }


def _profile(data: Mapping[str, Any]) -> Profile:
    starts = data["driver_compute_starts"]
    return Profile(
        **{**_tuples(data), "driver_compute_starts": None if starts is None else tuple((size, tuple(places)) for size, places in starts)}
    )


def step_from_data(data: Mapping[str, Any]) -> MigStep:
    """A step that a child told."""
    instance, compute = data["instance"], data["compute"]
    return MigStep(
        **{
            **_tuples(data),
            "instance": _instance(instance) if instance else None,
            "compute": ComputeInstance(**compute) if compute else None,
        }
    )


def _layout(data: Mapping[str, Any]) -> Layout:
    return Layout(data["mig"], tuple(map(_instance, data["instances"])), data["pending"])


def _instance(data: Mapping[str, Any]) -> GpuInstance:
    compute = tuple(ComputeInstance(**part) for part in data["compute"])
    return GpuInstance(data["profile"], Placement(**data["placement"]), compute, data["id"])


def _tuples(data: Mapping[str, Any]) -> dict[str, Any]:
    """JSON has lists where our records have tuples, which have to be hashable."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in data.items()}
