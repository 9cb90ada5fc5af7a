# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""What the probes told, joined with NVML's processes, and counted on over restarts and ends of cgroups. Nothing is read here.

The maps forget a cgroup some time after its end, and a probe that is attached anew begins at zero. So what each cgroup had counted is
kept, and what it has counted since is added to its owner's sum. Who has a series keeps it for as long as one of its cgroups is there; who
comes when there is no room adds to the others' sum, which never falls.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.functions import ALLOCATING
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.layout import HELD
from ansible_collections.gpuops.remediation.plugins.module_utils._exporter.owners import owner_of
from ansible_collections.gpuops.remediation.plugins.module_utils._gpu.records import Gpu, pci_bus_id
from ansible_collections.gpuops.remediation.plugins.module_utils._names import OTHER_OWNERS

Told = Mapping[str, Mapping[str, Any]]  # by probe, as ebpf_probe_info has it, with `owners` by cgroup
LAST_SECONDS = 60.0
NONE: dict[str, Any] = {
    "attached": {},
    "counters": {},
    "xids": [],
    "held": [],
    "seen": {},
    "calls": [],
    "failures": [],
    "running": None,
    "recent": [],
}
_OTHERS = (OTHER_OWNERS, None, None)
_ALLOCATING = {operation.name.lower() for operation in ALLOCATING}  # also what ends memory fails, as each process does that ends


def counted(before: Mapping[str, Any], told: Told, gpus: Iterable[Gpu], now: float, limit: int) -> dict[str, Any]:
    memory, xids = told.get("cuda_mem", {}), told.get("gpu_xid", {})
    seen, calls, failures = _sums(before, memory, limit)
    held = holdings(memory.get("processes", ()), gpus)
    running, recent = _recent(before, held, now)
    return {
        "attached": {name: one["attached"] for name, one in told.items()},
        "counters": {name: count for one in told.values() for name, count in one.get("counters", {}).items()},
        "xids": _xids(xids.get("xids", ())),
        "held": held,
        "seen": seen,
        "calls": calls,
        "failures": failures,
        "running": running,
        "recent": recent,
    }


def silent(before: Mapping[str, Any]) -> dict[str, Any]:
    """When nothing could be read: what was held is no figure of now, and counts stay."""
    return {**before, "held": []}


def _xids(found: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """By the address as NVML's has it, however a line wrote it."""
    sums: dict[tuple[str, int], dict[str, Any]] = {}
    for one in found:
        address = one["pci_bus_id"]
        with contextlib.suppress(ValueError):  # a line may say anything
            address = pci_bus_id(address)
        known = sums.setdefault((address, one["xid"]), {"pci_bus_id": address, "xid": one["xid"], "count": 0, "lines": 0, "traces": 0})
        for name in ("count", "lines", "traces"):
            known[name] += one[name]
    return list(sums.values())


def holdings(processes: Iterable[Mapping[str, Any]], gpus: Iterable[Gpu]) -> list[dict[str, Any]]:
    """Each living process, where NVML has it, and what it has beyond what it asked for.

    No call names its GPU: one that is on several, or that NVML does not know, has no place. Managed memory may be anywhere, so that of who
    has some nobody can tell the rest; nor of who has less than it asked for, since NVML was asked a moment before.
    """
    places: dict[int, list[tuple[Any, ...]]] = {}
    used: dict[int, int] = {}
    for gpu in gpus:
        for one in gpu.processes:
            if one["memory_bytes"] is not None:
                places.setdefault(one["pid"], []).append((gpu.uuid, gpu.pci_bus_id, one["gi"]))
                used[one["pid"]] = used.get(one["pid"], 0) + one["memory_bytes"]
    found = []
    latest = {process["pid"]: process for process in sorted(processes, key=lambda one: one["started_boottime_ns"])}
    for process in latest.values():  # not a pid's earlier owner, whose end nobody saw: two of a name spoil the page
        at = places.get(process["pid"], [])
        uuid, pci, gi = at[0] if len(at) == 1 else (None, None, None)
        by_kind = {kind: process["held_bytes"][kind] for kind in HELD}
        requested = sum(by_kind.values()) - by_kind["host"]
        rest = used[process["pid"]] - requested if at and not by_kind["managed"] else None
        container, pod, unit = owner_of(process)
        found.append(
            {
                "uuid": uuid, "pci_bus_id": pci, "gi": gi, "container_id": container, "pod_uid": pod, "unit": unit,
                "pid": process["pid"], "started": process["started_boottime_ns"], "allocations": process["allocations"],
                "requested_bytes": requested, **by_kind, "context_bytes": rest if rest is not None and rest >= 0 else None,
            }
        )  # fmt: skip
    return found


class _Rows:
    """Sums by owner and what is counted. Who has none gets one while there is room."""

    def __init__(self, rows: Iterable[Sequence[Any]], limit: int) -> None:
        self._sums = {tuple(key): list(values) for key, values in rows}
        self._limit = limit

    def keep(self, owners: set[tuple[Any, ...]]) -> None:
        self._sums = {key: values for key, values in self._sums.items() if key[:3] in owners or key[:3] == _OTHERS}

    def add(self, key: tuple[Any, ...], amounts: Sequence[int]) -> None:
        if not any(amounts):
            return
        if key not in self._sums and sum(one[:3] != _OTHERS for one in self._sums) >= self._limit:
            key = (*_OTHERS, *(None for _each in key[3:]))
        had = self._sums.get(key, [0] * len(amounts))
        self._sums[key] = [was + amount for was, amount in zip(had, amounts)]

    def rows(self) -> list[list[Any]]:
        return [[list(key), values] for key, values in self._sums.items()]


class _Cgroup(NamedTuple):
    """What the maps have of one. `failures`: by operation and result."""

    owner: tuple[Any, ...]
    calls: tuple[int, int]
    failures: Mapping[str, int]


def _sums(before: Mapping[str, Any], memory: Mapping[str, Any], limit: int) -> tuple[dict[str, Any], list[Any], list[Any]]:
    if not memory.get("attached"):
        return {}, before["calls"], before["failures"]
    was = {key: _Cgroup(tuple(one[0]), tuple(one[1]), one[2]) for key, one in before["seen"].items()}
    now = _cgroups(memory, was)
    calls, failures = _Rows(before["calls"], limit), _Rows(before["failures"], limit)
    owners = {one.owner for one in now.values()}
    for rows in (calls, failures):
        rows.keep(owners)
    for key, one in now.items():
        had = was.get(key, _Cgroup(one.owner, (0, 0), {}))
        calls.add(one.owner, _since(had.calls, one.calls))
        for failure, count in one.failures.items():
            failures.add((*one.owner, *failure.split("/")), _since([had.failures.get(failure, 0)], [count]))
    return dict(now), calls.rows(), failures.rows()


def _cgroups(memory: Mapping[str, Any], was: Mapping[str, _Cgroup]) -> dict[str, _Cgroup]:
    """A cgroup that is gone has the owner that it had."""
    owners = {f"{v2}/{v1}": owner for v2, v1, owner in memory["owners"]}
    calls = {_key(one["ids"]): (one["allocations"], one["frees"]) for one in memory["cgroups"]}
    failures: dict[str, dict[str, int]] = {}
    for one in memory["failures"]:
        if one["operation"] in _ALLOCATING:
            failures.setdefault(_key(one["cgroup"]), {})[f"{one['operation']}/{one['result']}"] = one["count"]
    unknown = _Cgroup((None, None, None), (0, 0), {})
    return {
        key: _Cgroup(tuple(owners[key] or was.get(key, unknown).owner), calls.get(key, (0, 0)), failures.get(key, {}))
        for key in {**calls, **failures}
    }


def _key(ids: Mapping[str, int]) -> str:
    return f"{ids['v2']}/{ids['v1']}"


def _since(had: Sequence[int], have: Sequence[int]) -> list[int]:
    """What came since; all of it where the probes began anew."""
    return list(have) if any(now < was for was, now in zip(had, have)) else [now - was for was, now in zip(had, have)]


def _recent(before: Mapping[str, Any], held: Iterable[Mapping[str, Any]], now: float) -> tuple[dict[str, int], list[Any]]:
    """How often each process had allocated, and the allocations of the last minute by place."""
    had: Optional[Mapping[str, int]] = before["running"]
    running: dict[str, int] = {}
    fresh: dict[str, int] = {}
    for one in held:
        key, place = f"{one['pid']}/{one['started']}", place_of(one)
        running[key] = one["allocations"]
        if had is not None and one["uuid"]:  # else nobody knows when they were made, or where
            fresh[place] = fresh.get(place, 0) + one["allocations"] - min(had.get(key, 0), one["allocations"])
    recent = [one for one in before["recent"] if now - LAST_SECONDS < one[0] <= now]
    return running, [*recent, [now, {place: count for place, count in fresh.items() if count}]]


def place_of(one: Mapping[str, Any]) -> str:
    return f"{one['uuid']}/{'' if one['gi'] is None else one['gi']}"


def last_minute(state: Mapping[str, Any]) -> dict[str, int]:
    """Allocations by place."""
    sums: dict[str, int] = {}
    for _seconds, places in state["recent"]:
        for place, count in places.items():
            sums[place] = sums.get(place, 0) + count
    return sums
