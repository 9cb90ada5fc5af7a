# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Whose a cgroup path is: the container or the systemd unit. Text in, records out; nothing is read here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

V2 = ""  # the name of the unified hierarchy in /proc/PID/cgroup
_V1_ORDER = ("freezer", "name=systemd", "pids", "memory", "devices")

_UID = r"[0-9a-f]{8}[-_]?[0-9a-f]{4}[-_]?[0-9a-f]{4}[-_]?[0-9a-f]{4}[-_]?[0-9a-f]{12}"  # a static pod's has no dashes
_POD = re.compile(rf"(?:^|-)pod({_UID})(?:\.slice)?(?::|$)")
_CONTAINER = re.compile(
    r"^(?:[^:]*:)?"  # kubelet on systemd and containerd on cgroupfs: SLICE:cri-containerd:ID
    r"(?:(?P<prefix>cri-containerd|containerd|crio|docker|libpod-payload|libpod|podman|nerdctl)[-:])?"
    r"(?P<id>[0-9a-f]{64})(?:\.scope)?$"
)
_RUNTIMES = {
    "cri-containerd": "containerd",
    "containerd": "containerd",
    "nerdctl": "containerd",
    "crio": "cri-o",
    "docker": "docker",
    "libpod": "podman",
    "libpod-payload": "podman",
    "podman": "podman",
}
_UNIT = re.compile(r"\.(?:service|scope)$")


@dataclass(frozen=True)
class Container:
    """`runtime` is None where the path alone does not say it (cgroupfs driver under kubepods)."""

    runtime: str | None
    id: str
    pod_uid: str | None


@dataclass(frozen=True)
class Owner:
    """The one container or unit that a cgroup belongs to; `path` is the owner's own cgroup, which may be above the process's."""

    path: str
    unit: str | None
    container: Container | None

    @property
    def name(self) -> str:
        return f"container {self.container.id[:12]}" if self.container else str(self.unit)


def parse_memberships(text: str) -> dict[str, str]:
    """/proc/PID/cgroup as {hierarchy: path}; the unified hierarchy has the name "", joined controllers are named one by one."""
    found = {}
    for line in text.splitlines():
        _number, names, path = line.split(":", 2)
        found.update(dict.fromkeys(names.split(","), path))
    return found


def process_path(memberships: Mapping[str, str]) -> str | None:
    """The path that says most about whose the process is: a container's, else a unit's, else the first that is not the root.

    On a hybrid machine the hierarchies differ: one may know the container where another has the runtime's unit or the root.
    """
    order = [memberships[name] for name in (V2, *_V1_ORDER) if name in memberships]
    owners = [(path, owner_of(path)) for path in order]
    return next(
        (
            path
            for telling in (
                [path for path, owner in owners if owner and owner.container],
                [path for path, owner in owners if owner],
                [path for path in order if path != "/"],
                order,
            )
            for path in telling
        ),
        None,
    )


def owner_of(path: str) -> Owner | None:
    """The deepest container of the path, else its deepest unit (a container may run a systemd of its own), else None."""
    parts = path.strip("/").split("/")
    pod_uid = next((match.group(1).replace("_", "-") for part in parts for match in [_POD.search(part)] if match), None)
    for depth in range(len(parts), 0, -1):
        match = _CONTAINER.match(parts[depth - 1])
        if match:
            above = parts[depth - 2] if depth > 1 else ""
            runtime = _RUNTIMES.get(match.group("prefix") or above)
            unit = parts[depth - 1] if _UNIT.search(parts[depth - 1]) else None
            return Owner("/" + "/".join(parts[:depth]), unit, Container(runtime, match.group("id"), pod_uid))
    for depth in range(len(parts), 0, -1):
        if _UNIT.search(parts[depth - 1]):
            return Owner("/" + "/".join(parts[:depth]), parts[depth - 1], None)
    return None
