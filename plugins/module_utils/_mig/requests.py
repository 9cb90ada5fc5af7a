# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.
"""What a module's options ask of a GPU. None leaves it alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Callable, Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._gpu import records
from ansible_collections.gpuops.remediation.plugins.module_utils._mig import parted
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.errors import Infeasible
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.layout import GpuInstance, Layout
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.parted_gpus import entry_for, want_of
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.profiles import Model
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.reading import Reading
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.wants import (
    Want,
    WantedCompute,
    WantedInstance,
    known_profile,
    want_counts,
)

Request = Callable[[Reading], Optional[Want]]


def request_of(params: Mapping[str, Any]) -> Request:
    """Of mig_layout's options, of which the argument spec lets through what goes together."""
    if params["layouts"] is not None:
        return _last_of([(frozenset(records.normalise(one["gpus"])), _request_of(one)) for one in params["layouts"]])
    return _request_of(params)


def _last_of(entries: Sequence[tuple[frozenset[str], Request]]) -> Request:
    """Of the entries that have something to say of a GPU the last, as nvidia-mig-parted has it. Without names it is of all of them."""

    def request(reading: Reading) -> Optional[Want]:
        for names, of_entry in reversed(entries):
            want = of_entry(reading) if not names or {reading.uuid, reading.pci_bus_id} & names else None
            if want is not None:
                return want
        return None

    return request


def _request_of(params: Mapping[str, Any]) -> Request:
    if params["mig_enabled"] is False:
        if any(params[name] is not None for name in ("counts", "instances", "mig_parted")):
            raise Infeasible("mig_enabled is false, and a layout is wanted", reason="mode")
        return lambda _reading: Want(False)
    if params["counts"] is not None:
        counts = {str(name): _count(name, value) for name, value in params["counts"].items()}
        return lambda reading: want_counts(_board(reading)[0], counts)
    if params["instances"] is not None:
        wanted = Want(True, tuple(map(wanted_instance, params["instances"])))
        return lambda reading: wanted if _board(reading) else None
    if params["mig_parted"] is not None:
        return partial(_parted, parted.entries_of(params["mig_parted"], params["mig_parted_config"]))
    return lambda reading: as_it_is(_board(reading)[1], mig=True)


def one_more(wanted: WantedInstance, *, may_move: bool) -> Request:
    """The layout with such an instance in it, which may be there already."""

    def request(reading: Reading) -> Want:
        model, layout = _board(reading)
        have = as_it_is(layout, mig=True)
        if any(_is(model, one, wanted) for one in layout.instances):
            return have
        return Want(True, (*(replace(one, start=None) if may_move else one for one in have.instances), wanted))

    return request


def one_less(profile: str, start: int) -> Request:
    """The layout without that instance, however it is divided; the mode is nobody's business."""

    def request(reading: Reading) -> Want:
        model, layout = _board(reading)
        known = known_profile(model, profile)[0]
        rest = tuple(one for one in layout.instances if (one.profile, one.placement.start) != (known.name, start))
        return as_it_is(replace(layout, instances=rest), mig=None)

    return request


def as_it_is(layout: Layout, *, mig: Optional[bool]) -> Want:
    """A GPU instance without compute instances stays one."""
    return Want(mig, tuple(WantedInstance(one.profile, one.placement.start, _compute(one)) for one in layout.instances))


def wanted_instance(raw: Mapping[str, Any]) -> WantedInstance:
    compute = raw["compute"]
    parts = None if compute is None else tuple(WantedCompute(one["slices"], one["start"]) for one in compute)
    return WantedInstance(raw["profile"], raw["start"], parts)


def _count(name: str, value: Any) -> int:
    """A template's number may come as text."""
    try:
        return int(str(value))
    except ValueError:
        raise Infeasible(f"{value!r} of {name} are wanted, which is no number", reason="limit", profile=name) from None


def _board(reading: Reading) -> tuple[Model, Layout]:
    if reading.model is None or reading.layout is None:
        raise Infeasible(f"{reading.name} has no MIG", reason="mode")
    return reading.model, reading.layout


def _compute(instance: GpuInstance) -> tuple[WantedCompute, ...]:
    return tuple(WantedCompute(part.slices, part.start) for part in instance.compute)


def _is(model: Model, instance: GpuInstance, wanted: WantedInstance) -> bool:
    profile = model.profile(wanted.profile)
    if profile is None or instance.profile != profile.name or wanted.start not in (None, instance.placement.start):
        return False
    compute = (WantedCompute(profile.compute_slices),) if wanted.compute is None else wanted.compute
    have = list(instance.compute)
    for part in sorted(compute, key=lambda one: one.start is None):
        found = next((one for one in have if one.slices == part.slices and part.start in (None, one.start)), None)
        if found is None:
            return False
        have.remove(found)
    return not have


def _parted(entries: Sequence[parted.Entry], reading: Reading) -> Optional[Want]:
    entry = entry_for(entries, reading.index, reading.device_id)
    if entry is None:
        return None
    return want_of(_board(reading)[0], entry) if entry.mig else Want(False)
