# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.
"""Who holds a GPU and each of its MIG instances: NVML's lists, and whoever else has a device file open. Nothing is read here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.proof import is_mps, is_own_reader

Place = tuple[Optional[int], Optional[int]]  # gi, ci; the GPU itself is neither
Holders = Mapping[Place, Sequence[Mapping[str, Any]]]


def join(minor: Optional[int], listed: Iterable[Mapping[str, Any]], clients: Iterable[Mapping[str, Any]]) -> Holders:
    """Everybody at the smallest thing that they hold: a process in a compute instance also has the GPU's device file open, and is told once."""
    found: dict[Place, list[Mapping[str, Any]]] = {}
    places: dict[int, list[Place]] = {}
    for process in listed:
        place = (process["gi"], process["ci"])
        found.setdefault(place, []).append({**process, "type": "mps_server"} if is_mps(process) else process)
        places.setdefault(process["pid"], []).append(place)
    for client in clients:
        if is_own_reader(client["process"]):
            continue
        own = [(gi, ci) for one, gi, ci in client["held"] if one == minor]
        known = places.get(client["pid"], [])
        for place in own:
            if not any(_is_within(other, place) for other in (*known, *(one for one in own if one != place))):
                record = {"pid": client["pid"], "type": "mps_server" if is_mps(client["process"]) else "client", "memory_bytes": None}
                where = {"gi": place[0], "ci": place[1], "source": "device_file"}
                found.setdefault(place, []).append({**record, **where, **client["process"]})
    return found


def _is_within(part: Place, whole: Place) -> bool:
    """Whether it is that, or a part of it."""
    return whole in ((None, None), (part[0], None), part)
