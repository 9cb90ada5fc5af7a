# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""What is asked of the ledger when an incident is to be opened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._errors import RemediationError
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.alerts import NODE_WIDE, Alert, gpu_name, normal_pci
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.breaker import named
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.keys import UNKNOWN, fault_key, group_key


class UnknownNode(RemediationError):
    kind = "unknown_node"


class BadGpu(RemediationError):
    kind = "bad_gpu"


@dataclass(frozen=True)
class Place:
    """A node as the inventory knows it; on a bare host the UID is the node's name."""

    node: str
    uid: str
    host: Optional[str] = None
    managed: bool = True
    groups: Mapping[str, Any] = field(default_factory=dict)


def place_of(inventory: Mapping[str, Any], node: str) -> Place:
    try:
        entry = inventory[node]
    except KeyError:
        raise UnknownNode("node %s is not in the inventory" % node, node=node) from None
    entry = entry or {}
    managed = str(entry.get("managed", True)).lower() not in ("false", "no", "0")
    return Place(node, str(entry.get("uid") or node), entry.get("host"), managed, entry.get("groups") or {})


def place_with(inventory: Mapping[str, Any], alert: Alert) -> Place:
    """An alert's node, with the groups that the alert names too.

    Where a node stands the inventory knows, and with it how many others do; its job changes, so there the alert knows better.
    """
    place = place_of(inventory, alert.node)
    groups = {**alert.groups, **place.groups}
    job = alert.groups.get("job")
    if job and job != named(place.groups.get("job")):
        groups["job"] = job
    return replace(place, groups=groups)


@dataclass(frozen=True)
class Want:
    """One fault to open an incident for, or to find the open one of."""

    place: Place
    received_at: datetime
    gpu: str = NODE_WIDE
    pci_bus_id: Optional[str] = None
    domain: str = UNKNOWN
    alert: Optional[Alert] = None
    group_kind: Optional[str] = None
    nodes: Sequence[str] = ()

    @property
    def key(self) -> str:
        if self.group_kind:
            return group_key(self.group_kind, self.place.node, self.domain)
        return fault_key(self.place.uid, self.gpu, self.domain)

    @property
    def vague(self) -> bool:
        """No GPU is named for certain: the whole node is meant, or an index, which moves when a GPU is lost."""
        return not self.group_kind and (self.gpu == NODE_WIDE or self.gpu.startswith("index:"))

    @property
    def words(self) -> str:
        """What asks for it, for people."""
        if self.alert is None:
            return "asked for by name"
        xid = "" if self.alert.xid is None else ", Xid %d" % self.alert.xid
        return "alert %s%s%s" % (self.alert.name or self.alert.fingerprint, xid, ", over by then" if self.alert.hint else "")

    @property
    def starts_at(self) -> Optional[datetime]:
        return self.alert.starts_at if self.alert else None


def from_alert(place: Place, alert: Alert, received_at: datetime) -> Want:
    return Want(place, received_at, alert.gpu, alert.pci_bus_id, alert=alert)


def from_operator(place: Place, gpu: Optional[str], now: datetime) -> Want:
    """An operator names a GPU by UUID, PCI address or (uncertain) index, or none for all of the node's."""
    if not gpu or gpu == NODE_WIDE:
        return Want(place, now)
    if gpu.startswith(("GPU-", "MIG-")):
        return Want(place, now, gpu)
    if gpu.isdecimal():
        return Want(place, now, gpu_name(None, None, int(gpu)))
    try:
        pci = normal_pci(gpu[4:] if gpu.startswith("pci:") else gpu)
    except ValueError:
        raise BadGpu("gpu is neither a UUID nor a PCI address nor an index") from None
    return Want(place, now, gpu_name(None, pci, None), pci)


def from_group(kind: str, name: str, nodes: Sequence[str], domain: str, now: datetime) -> Want:
    """A group (job, NVLink domain, rack, controller) whose nodes failed together: one incident, not one a node."""
    return Want(Place(name, name), now, domain=domain, group_kind=kind, nodes=tuple(nodes))
