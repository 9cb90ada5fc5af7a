# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Devices of Dynamic Resource Allocation, and the rules that taint them: the pure part. Nothing here touches a clock or the network.

A GPU is found in the ResourceSlices by what its driver says of each device: its UUID or that of the GPU it is a part of, or its PCI address.
A GPU that is cut up is several devices. Each incident has rules of its own, one a device, so that nobody else's are ever written.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ansible_collections.gpuops.remediation.plugins.module_utils._converge import Step
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.evictions import tolerated
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.taints import Taint, same, spot_of
from ansible_collections.gpuops.remediation.plugins.module_utils._names import LABEL_INCIDENT
from ansible_collections.gpuops.remediation.plugins.module_utils._xid.lines import normalize_pci

# How drivers name what tells a GPU; the domain before a slash is the driver's own or Kubernetes's.
_UUIDS = ("uuid", "parentuuid", "gpuuuid")
_ADDRESSES = ("pcibusid", "pciebusid", "pciaddress")


class DeviceId(NamedTuple):
    """What names one device in the whole cluster."""

    driver: str
    pool: str
    device: str


@dataclass(frozen=True)
class Device:
    """One device that a driver hands out on a node, with the GPUs' UUIDs and PCI addresses that it goes by."""

    id: DeviceId
    node: str
    names: frozenset[str]


@dataclass(frozen=True)
class Rule:
    """A DeviceTaintRule of ours. Without an incident it is an operator's own."""

    name: str
    id: DeviceId
    taint: Taint
    incident: str = ""
    uid: str = ""
    resource_version: str = ""


Rules = Mapping[str, Rule]  # by name


def parse_devices(slices: Iterable[Mapping[str, Any]]) -> list[Device]:
    """The devices of nodes; of a pool that is being published anew only its newest generation."""
    specs = [each["spec"] for each in slices]
    newest: dict[tuple[str, str], int] = {}
    for spec in specs:
        key = (spec["driver"], spec["pool"]["name"])
        newest[key] = max(newest.get(key, 0), spec["pool"].get("generation", 0))
    found = []
    for spec in specs:
        pool = spec["pool"]
        if pool.get("generation", 0) < newest[(spec["driver"], pool["name"])]:
            continue
        for raw in spec.get("devices") or ():
            node = raw.get("nodeName") or spec.get("nodeName")
            if node:
                found.append(Device(DeviceId(spec["driver"], pool["name"], raw["name"]), node, frozenset(_names(raw))))
    return found


def _names(raw: Mapping[str, Any]) -> Iterable[str]:
    for qualified, value in (raw.get("attributes") or {}).items():
        text, name = value.get("string"), qualified.rpartition("/")[2].lower()
        if text and name in _UUIDS:
            yield text.lower()
        elif text and name in _ADDRESSES:
            yield normalize_pci(text) or text


def devices_of(devices: Collection[Device], node: str, gpu: Iterable[str]) -> list[Device]:
    """What is handed out of one GPU of a node, by any of its names: two drivers may each know another one.

    An address moves on to another GPU with a reboot: where a driver says another UUID at it, nothing there is ours but what has our UUID.
    """
    known = {normalize_pci(given) or given.lower() for given in gpu}
    found = [device for device in devices if device.node == node and known & device.names]
    ours = _uuids(known)
    moved_on = [device.names for device in found if ours and _uuids(device.names) and not ours & device.names]
    still = known.difference(*moved_on)
    return [device for device in found if still & device.names]


def _uuids(names: Iterable[str]) -> set[str]:
    return {name for name in names if name.startswith("gpu-")}


def of_another_gpu(rules: Iterable[Rule], devices: Iterable[Device], ours: Iterable[Device]) -> list[Rule]:
    """Rules whose device is another GPU by now, as after a reboot where drivers count. Only what no driver lists is known by its bare name."""
    listed, mine = {device.id for device in devices}, {device.id for device in ours}
    return [rule for rule in rules if rule.id in listed - mine]


def rule_name(incident: str, device: DeviceId, suffix: str = "") -> str:
    """Always the same for an incident and a device, so that a resumed run finds its rule."""
    digest = hashlib.sha256("/".join(device).encode()).hexdigest()[:8]
    return f"gpuops-{incident or 'operator'}-{device.device}-{digest}{suffix}"


def rule_of(incident: str, device: DeviceId, taint: Taint, suffix: str = "") -> Rule:
    return Rule(rule_name(incident, device, suffix), device, dict(taint), incident)


def parse_rule(raw: Mapping[str, Any]) -> Rule:
    metadata, spec = raw["metadata"], raw["spec"]
    selector = spec.get("deviceSelector") or {}
    return Rule(
        name=metadata["name"],
        id=DeviceId(selector.get("driver") or "", selector.get("pool") or "", selector.get("device") or ""),
        taint=dict(spec["taint"]),
        incident=(metadata.get("labels") or {}).get(LABEL_INCIDENT, ""),
        uid=metadata["uid"],
        resource_version=metadata["resourceVersion"],
    )


def manifest(rule: Rule, version: str, node: str, node_uid: str) -> dict[str, Any]:
    """The object as it is created. It belongs to the node: Kubernetes deletes it with the node's own object, so that no rule outlives its machine."""
    owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node_uid}
    labels = {LABEL_INCIDENT: rule.incident} if rule.incident else {}
    return {
        "apiVersion": f"resource.k8s.io/{version}",
        "kind": "DeviceTaintRule",
        "metadata": {"name": rule.name, "labels": labels, "ownerReferences": [owner]},
        "spec": {"deviceSelector": rule.id._asdict(), "taint": dict(rule.taint)},
    }


def as_made(rule: Rule, made: Rule) -> bool:
    """Whether a rule still says what we made it say."""
    return (rule.id, rule.incident) == (made.id, made.incident) and same_taint(rule.taint, made.taint)


def same_taint(one: Taint, other: Taint) -> bool:
    """By key, effect and value; its timeAdded does not count."""
    return spot_of(one) == spot_of(other) and same(one, other)


def plan(rules: Rules, want: Mapping[str, Rule | None]) -> list[Step]:
    """What is missing is created, what is not wanted is deleted; a rule that exists is never written."""
    steps = []
    for name, rule in want.items():
        there = rules.get(name)
        if rule and not there:
            steps.append(Step("create", f"devicetaintrule/{name}", None, show_rule(rule)))
        elif there and not rule:
            steps.append(Step("delete", f"devicetaintrule/{name}", show_rule(there), None))
    return steps


def wanted(rules: Rules, want: Mapping[str, Rule | None]) -> dict[str, Rule]:
    kept = {name: rule for name, rule in rules.items() if want.get(name, rule)}
    return {**kept, **{name: rule for name, rule in want.items() if rule and name not in kept}}


def show_rule(rule: Rule) -> dict[str, Any]:
    taint = {name: rule.taint[name] for name in ("key", "value", "effect") if rule.taint.get(name)}
    return {"name": rule.name, **rule.id._asdict(), "taint": taint}


def show(rules: Rules) -> dict[str, Any]:
    """For people and results."""
    return {"rules": [show_rule(rule) for _name, rule in sorted(rules.items())]}


def holders(claims: Iterable[Mapping[str, Any]], devices: Mapping[DeviceId, Sequence[Taint]]) -> dict[str, bool]:
    """The UIDs of the pods that a claim gives one of the devices to, and whether what the devices are tainted with would let each have it again."""
    found: dict[str, bool] = {}
    for claim in claims:
        status = claim.get("status") or {}
        users = [user["uid"] for user in status.get("reservedFor") or () if user.get("resource") == "pods"]
        for result in ((status.get("allocation") or {}).get("devices") or {}).get("results") or ():
            device = DeviceId(result["driver"], result["pool"], result["device"])
            if device in devices:
                again = tolerated(result.get("tolerations") or (), devices[device])
                found.update((uid, again and found.get(uid, True)) for uid in users)
    return found
