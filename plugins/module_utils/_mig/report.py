# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.
"""One GPU of mig_info's answer, from what was read of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._gpu import records
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.clients import Holders
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.drawing import draw
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.layout import Layout, free_placements, room
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.profiles import Model, Profile
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.reading import Reading, show
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.watched import GpuAnswer

_IDENTITY = ("uuid", "pci_bus_id", "index", "minor", "name", "device_path", "lost")
_UNREAD: dict[str, Any] = {
    "supported": None,
    "mig": {"current": None, "pending": None},
    "mode_change_needs_reset": None,
    "model": None,
    "evidence": None,
    "instances": [],
    "without_compute": [],
    "free": {},
    "room": None,
    "drawing": None,
    "profiles": [],
}


def report(gpu: records.Gpu, answer: Optional[GpuAnswer], holders: Holders, *, clients_complete: bool) -> dict[str, Any]:
    """`clients_complete`: whether everybody's open files could be seen."""
    reading, error = (answer.reading, answer.error) if answer else (None, None)
    told = _UNREAD if reading is None else {**_UNREAD, "supported": False}
    if reading is not None and reading.model is not None and reading.layout is not None:
        told = _told(reading, reading.model, reading.layout, holders)
    return {
        **{name: getattr(gpu, name) for name in _IDENTITY},
        "errors": gpu.errors + ([{"call": error.get("call", "read"), "error": error["msg"]}] if error else []),
        **told,
        "holders": [one for place in sorted(holders, key=_order) for one in holders[place]],
        "holders_complete": clients_complete and gpu.processes_source == "nvml",
    }


def _told(reading: Reading, model: Model, layout: Layout, holders: Holders) -> dict[str, Any]:
    shown = show(layout, reading)
    left = room(model, layout)
    free: dict[str, list[int]] = {}
    for profile, placement in free_placements(model, layout):
        free.setdefault(profile, []).append(placement.start)
    for instance in shown["instances"]:
        instance["holders"] = _pids(holders, [place for place in holders if place[0] == instance["gi"]])
        for part in instance["compute"]:
            part["holders"] = _pids(holders, [(instance["gi"], part["ci"])])
    return {
        "supported": True,
        "mig": {"current": shown["mig"], "pending": shown["pending"]},
        "mode_change_needs_reset": not reading.resetless,
        "model": model.name,
        "evidence": model.evidence,
        "instances": shown["instances"],
        "without_compute": [one.name for one in layout.instances if not one.compute],
        "free": free if layout.mig else {},
        "room": {
            "free_slices": left.free,
            "stranded_slices": left.stranded,
            "largest_slices": left.largest,
            "fragmentation": round(left.fragmentation, 4),
        }
        if layout.mig
        else None,
        "drawing": draw(model, layout),
        "profiles": [_profile(one) for one in model.profiles],
    }


def _profile(profile: Profile) -> dict[str, Any]:
    return {
        "name": profile.name,
        "id": profile.profile_id,
        "limit": profile.limit,
        "compute_slices": profile.compute_slices,
        "memory_slices": profile.memory_slices,
        "starts": list(profile.starts),
        "memory_bytes": None if profile.memory_mib is None else profile.memory_mib << 20,
        "multiprocessors": profile.multiprocessors,
        "compute": [{"slices": slices, "starts": list(starts)} for slices, starts in profile.compute_starts],
    }


def _pids(holders: Holders, places: Sequence[tuple[Optional[int], Optional[int]]]) -> list[int]:
    return sorted({one["pid"] for place in places for one in holders.get(place, ())})


def _order(place: tuple[Optional[int], Optional[int]]) -> tuple[int, int]:
    return tuple(-1 if one is None else one for one in place)  # type: ignore[return-value]
