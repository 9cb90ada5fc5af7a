# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""What makes two reports the same fault: the node by its UID, the GPU and the domain."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._incident.alerts import NODE_WIDE, normal_pci

UNKNOWN = "unknown"

LIVE_STATES = frozenset({"running", "fenced_waiting"})
ENDED_OPEN_STATES = frozenset({"contained", "quarantined_overdue", "held_for_human"})
# What opens no second time: an ended incident of these states still stands for its fault.
OPEN_STATES = LIVE_STATES | ENDED_OPEN_STATES
CLOSED_STATES = frozenset({"no_action", "fence_lifted", "cancelled_by_human", "released"})
STATES = OPEN_STATES | CLOSED_STATES
SETTLED_STATES = frozenset({"released", "cancelled_by_human"})  # evidence from before does not count any more


def fault_key(node_uid: str, gpu: str, domain: str = UNKNOWN) -> str:
    return json.dumps(["fault", node_uid, gpu, domain])


def group_key(kind: str, name: str, domain: str = UNKNOWN) -> str:
    return json.dumps(["group", kind, name, domain])


def group_of(key: str) -> tuple[str, str, str]:
    """Kind, name and domain, from a group's key."""
    _group, kind, name, domain = json.loads(key)
    return kind, name, domain


def with_identity(key: str, gpu: str, domain: str) -> str:
    """The key of the same node or group, once the GPU and the domain are known."""
    kind, *names = json.loads(key)
    return fault_key(names[0], gpu, domain) if kind == "fault" else group_key(names[0], names[1], domain)


def refined(verdict: Mapping[str, Any], have: Mapping[str, Any]) -> dict[str, Any]:
    """The identity that a verdict gives an incident: what the node said replaces what the alert said."""
    wide = verdict.get("scope") == "node"
    uuid: Optional[str] = None if wide else verdict.get("gpu_uuid")
    pci = None if wide else verdict.get("pci_bus_id")
    gpu = NODE_WIDE if wide else uuid or ("pci:" + normal_pci(pci) if pci else have["gpu"])
    return {
        "gpu": gpu,
        "pci_bus_id": pci or have.get("pci_bus_id"),
        "serial": verdict.get("serial") or have.get("serial"),
        "domain": verdict.get("domain") or have["domain"],
        "scope": verdict.get("scope") or have.get("scope"),
    }


def slot_of(gpu: str, info: Optional[Mapping[str, Any]]) -> Optional[str]:
    """Where the GPU sits in the chassis, for whoever has to pull it out."""
    for record in (info or {}).get("gpus") or ():
        if record.get("uuid") == gpu:
            slot = record.get("slot")
            return None if slot is None else str(slot)
    return None
