# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""From what a node told to findings. Nothing is read here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.limits import MAX
from ansible_collections.gpuops.remediation.plugins.module_utils._isolation import engines, toolkit
from ansible_collections.gpuops.remediation.plugins.module_utils._isolation.given import (
    Given,
    Place,
    covers,
    given_by_kubelet,
    given_by_start,
    places,
    pods_by_uid,
)
from ansible_collections.gpuops.remediation.plugins.module_utils._isolation.rules import RULES, SEVERITIES
from ansible_collections.gpuops.remediation.plugins.module_utils._isolation.visible import ALL, asked
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.evictions import Pod, gpus_requested, holds_claims

_NOT_PLAIN = re.compile(r"[^\x20-\x7e]")  # what is shown was in part chosen by a container, and never steers a terminal
_LONGEST = 500


@dataclass(frozen=True)
class Expectations:
    """`system` and the other patterns are of NAMESPACE/POD, of RUNTIME/ID or of a cgroup's path; those of GPUs of their UUIDs."""

    system: Sequence[str] = ()
    mps_clients: Sequence[str] = ()
    shared_gpus: Sequence[str] = ()
    kubernetes: bool = False
    compute_mode: Optional[str] = None
    memory_max: Optional[str] = None
    fix_toolkit: bool = False
    accepted: Sequence[Mapping[str, Any]] = ()
    engine_faults: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True)
class Owner:
    """A container or unit, with what the orchestrator knows of it."""

    facts: Mapping[str, Any]
    pod: Optional[Pod] = None
    name: Optional[str] = None  # of the container in its pod
    given: Given = field(default_factory=lambda: Given(None))

    @property
    def is_container(self) -> bool:
        return bool(self.facts["id"])

    @property
    def has_gpu(self) -> bool:
        """Whether it was given a GPU, asks for one or has one open. A privileged container sees all and may want none."""
        facts = self.facts
        wanted = asked(facts["visible_devices"]) or (self.pod and (gpus_requested(self.pod) or holds_claims(self.pod)))
        return bool(facts["uses"] or facts["open"] or self.given.places or self.given.gone or wanted)

    @property
    def subject(self) -> str:
        if self.pod:
            return f"{self._pod_name}{'' if self.name is None else ' ' + self.name}"
        if self.facts["id"]:
            return f"{self.facts['runtime'] or 'container'} {self.facts['id'][:12]}"
        return str(self.facts["unit"] or self.facts["cgroup"] or "processes that have ended")

    @property
    def _pod_name(self) -> str:
        return "{namespace}/{name}".format(**self.pod["metadata"]) if self.pod else ""

    def matches(self, patterns: Iterable[str]) -> bool:
        names = [self._pod_name, f"{self.facts['runtime'] or 'container'}/{self.facts['id']}", self.facts["cgroup"]]
        return any(name and fnmatchcase(name, pattern) for name in names for pattern in patterns)


class Judge:
    """One node. `pods` are the API's and `allocations` the kubelet's answer; None where they were not asked, or could not tell."""

    def __init__(
        self,
        node: str,
        facts: Mapping[str, Any],
        expected: Expectations,
        pods: Optional[Sequence[Pod]] = None,
        allocations: Optional[Mapping[str, Any]] = None,
        missing: Sequence[Mapping[str, str]] = (),
    ) -> None:
        self._node, self._facts, self._expected, self._allocations = node, facts, expected, allocations
        self._missing = [*facts["missing"], *missing]
        self._places = places(facts["gpus"])
        self._pods = pods_by_uid(pods or ())
        self.owners = [self._owner(one) for one in facts["containers"]]
        self._tenants = [owner for owner in self.owners if not owner.matches(expected.system)]

    def _owner(self, facts: Mapping[str, Any]) -> Owner:
        pod = self._pods.get(facts["pod_uid"])
        statuses = [
            one for part in ("containerStatuses", "initContainerStatuses") for one in ((pod or {}).get("status") or {}).get(part) or ()
        ]
        name = next((one["name"] for one in statuses if facts["id"] and str(one.get("containerID")).endswith(f"//{facts['id']}")), None)
        if not facts["id"]:
            return Owner(facts)
        if not facts["pod_uid"]:
            return Owner(facts, given=given_by_start(facts["visible_devices"], self._places))
        if self._allocations is None:
            return Owner(facts, pod, name)
        return Owner(facts, pod, name, given_by_kubelet(self._allocations, facts["pod_uid"], pod, name, self._places))

    def findings(self) -> list[dict[str, Any]]:
        found = [*self._of_node(), *self._of_gpus()]
        for owner in self._tenants:
            found += [*self._of_container(owner), *self._of_memory(owner)]
        return sorted(found, key=lambda one: (-SEVERITIES.index(one["severity"]), one["subject"], one["rule"], one["evidence"]))

    # --- the node

    def _of_node(self) -> Iterator[dict[str, Any]]:
        for one in self._missing:
            yield self._finding("unread", "node", f"{one['source']}: {one['why']}")
        yield from self._of_toolkit()
        for engine in self._facts["engines"]:
            yield from self._of_engine(engine)

    def _of_toolkit(self) -> Iterator[dict[str, Any]]:
        told = self._facts["toolkit"]
        installed = [one for one in self._facts["engines"] if one["engine"] == "nvidia-container-toolkit"]
        if told is None and not installed:
            return
        settings, path = (told["settings"], told["path"]) if told else (toolkit.DEFAULTS, "no config.toml, so that the default holds")
        if settings[toolkit.ENVVAR]:
            fix = {"toolkit": told["path"]} if told and self._expected.fix_toolkit else None
            severity = None if self._expected.kubernetes else "low"  # without pods whoever starts a container is the one who may
            yield self._finding(
                "toolkit_envvar", "node", f"{toolkit.ENVVAR} = true ({path})", severity=severity, automatic=fix, offered=told is not None
            )
        if settings["nvidia-container-cli.no-cgroups"]:
            yield self._finding("toolkit_no_cgroups", "node", f"no-cgroups = true ({path})")
        if settings["features.allow-cuda-compat-libs-from-container"]:
            yield self._finding("toolkit_compat_libs", "node", f"allow-cuda-compat-libs-from-container = true ({path})")

    def _of_engine(self, engine: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        name, version = engine["engine"], engine["version"]
        found = engines.faults_of(name, version, self._expected.engine_faults) if version else None
        if found is None:
            yield self._finding("unread", "node", f"the version of {engine['path']}: {engine['why'] or version}", severity="low")
            return
        parsed = engines.parse(version)
        for fault in found:
            told = f"{fault['id']}: {name} {version} ({engine['path']}); fixed in {', '.join(fault['fixed'])}. {fault['what']}"
            if parsed and parsed.packaged:  # a distribution takes the fix over and keeps the version
                told += ". This is a distribution's build, which may have the fix: its security notices say so"
            severity = "medium" if parsed and parsed.packaged else fault["severity"]
            yield self._finding("engine_fault", "node", told, severity=severity, detail=fault["id"])

    # --- GPUs

    def _of_gpus(self) -> Iterator[dict[str, Any]]:
        for gpu in self._facts["gpus"]:
            name = str(gpu["uuid"] or gpu["pci_bus_id"] or gpu["device_path"])
            yield from self._of_compute_mode(name, gpu)
            users: dict[Optional[int], dict[str, Owner]] = {}
            for owner in self._tenants:
                for use in owner.facts["uses"]:
                    if use["gpu"] == gpu["uuid"] and gpu["uuid"]:
                        users.setdefault(use["gi"], {})[owner.subject] = owner
            for gi, owners in users.items():
                yield from self._of_users(name, gi, owners)

    def _of_compute_mode(self, name: str, gpu: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        mode, mig = gpu["compute_mode"], bool((gpu["mig"] or {}).get("current"))
        if mode is None:
            return
        if mig and mode.startswith("exclusive"):
            yield self._finding("compute_mode", name, f"{mode}, which MIG does not support")
        elif self._expected.compute_mode not in (None, mode) and not mig:
            yield self._finding("compute_mode", name, f"{mode}, and {self._expected.compute_mode} is meant")
        elif self._expected.compute_mode is None and self._facts["mps_daemons"] and mode == "default" and not mig:
            told = "default beside an MPS daemon: whoever has the device gets onto the GPU past MPS and its limits; exclusive_process keeps to MPS"
            yield self._finding("compute_mode", name, told, severity="low")

    def _of_users(self, name: str, gi: Optional[int], owners: Mapping[str, Owner]) -> Iterator[dict[str, Any]]:
        if len(owners) < 2 or any(fnmatchcase(name, pattern) for pattern in self._expected.shared_gpus):
            return
        if all(owner.given.shared or owner.matches(self._expected.mps_clients) for owner in owners.values()):
            return  # the device plugin shares it, or they are meant to be clients of MPS
        where = "the GPU" if gi is None else f"GPU instance {gi}"
        severity = None if any(owner.is_container for owner in owners.values()) else "low"
        yield self._finding("shared_context", name, f"on {where}: {', '.join(sorted(owners))}", severity=severity)

    # --- containers

    def _of_container(self, owner: Owner) -> Iterator[dict[str, Any]]:
        if not owner.is_container:
            return
        facts = owner.facts
        privileged = self._privileged(owner)
        if privileged:
            yield self._of_owner("privileged", owner, privileged, severity=None if owner.has_gpu else "low")
        if privileged and not owner.has_gpu:
            return  # part of the node's own machinery, as a rule
        unread = [
            what for what, value in (("its pid namespace", facts["host_pid"]), ("its capabilities", facts["capabilities"])) if value is None
        ]
        unread += [] if facts["environment_read"] else ["its environment"]
        if unread:
            yield self._of_owner("unread", owner, ", ".join(unread), severity="low")
        if facts["capabilities"] and not privileged:
            yield self._of_owner("capabilities", owner, ", ".join(facts["capabilities"]))
        if facts["host_pid"] or (owner.pod and owner.pod["spec"].get("hostPID")):
            yield self._of_owner("host_pid", owner, "hostPID" if owner.pod else "its pid namespace is the host's")
        seen = [*facts["devices"], *facts["open"]]
        if any(device["kind"] == "mig_config" for device in seen) and not privileged:
            yield self._of_owner("mig_config", owner, "the device of mig/config is in its /dev")
        if not privileged:  # who sees everything, for one reason
            yield from self._of_devices(owner, seen)
        if facts["mps_reached"] and not owner.given.shared and not owner.matches(self._expected.mps_clients):
            yield self._of_owner("mps_reachable", owner, f"{', '.join(facts['mps_reached'])} of the node")
        yield from self._of_allocation(owner)

    @staticmethod
    def _privileged(owner: Owner) -> Optional[str]:
        spec = (owner.pod or {}).get("spec") or {}
        parts = [one for part in ("containers", "initContainers") for one in spec.get(part) or ()]
        named = [one["name"] for one in parts if (one.get("securityContext") or {}).get("privileged") and owner.name in (None, one["name"])]
        if named:
            return f"privileged: true in {', '.join(named)}"
        return "it has all capabilities of the host" if "all" in (owner.facts["capabilities"] or ()) else None

    def _of_devices(self, owner: Owner, seen: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        """One finding, for the first of the ways by which it may have got them."""
        parts = {Place(one["minor"], one["gi"], one["ci"]) for one in seen if one["kind"] != "mig_config"}
        tokens, given = asked(owner.facts["visible_devices"]), owner.given.places
        beyond = sorted((part for part in parts if given is not None and not covers(given, part)), key=str)
        if ALL in tokens and given is None and any(part.gi is None for part in parts) and not owner.facts["pod_uid"]:
            beyond = sorted(parts, key=str)  # nobody has said otherwise
        if not beyond:
            return
        told = "sees " + ", ".join(map(_shown, beyond))
        if ALL in tokens:
            yield self._of_owner("visible_all", owner, told)
        elif owner.facts["pod_uid"] and tokens and any(token in self._places and self._places[token] in beyond for token in tokens):
            yield self._of_owner("visible_behind_plugin", owner, f"NVIDIA_VISIBLE_DEVICES={','.join(tokens)}; {told}")
        else:
            yield self._of_owner("devices_beyond", owner, told)

    def _of_allocation(self, owner: Owner) -> Iterator[dict[str, Any]]:
        if owner.given.gone:
            yield self._of_owner("allocation_gone", owner, ", ".join(owner.given.gone))
        if owner.given.places is None or not owner.facts["pod_uid"]:
            return
        minors = {gpu["uuid"]: gpu["minor"] for gpu in self._facts["gpus"] if gpu["uuid"] and gpu["minor"] is not None}
        used = {Place(minors[use["gpu"]], use["gi"], use["ci"]) for use in owner.facts["uses"] if use["gpu"] in minors}
        strange = sorted((place for place in used if not covers(owner.given.places, place)), key=str)
        if strange:
            told = ", ".join(map(_shown, sorted(owner.given.places, key=str))) or "nothing"
            yield self._of_owner("drift", owner, f"is on {', '.join(map(_shown, strange))}; was given {told}")

    def _of_memory(self, owner: Owner) -> Iterator[dict[str, Any]]:
        if not owner.has_gpu:
            return
        limit = owner.facts["memory_max"]
        severity = None if owner.is_container else "low"
        if limit == MAX:
            wanted, own = self._expected.memory_max, owner.is_container and not owner.facts["pod_uid"]
            fix = {"cgroup": owner.facts["cgroup"], "memory_max": wanted} if wanted and own else None
            yield self._of_owner(
                "memory_unlimited", owner, "memory.max is max, and so above it", severity=severity, automatic=fix, offered=own
            )
        elif limit is None and owner.is_container:
            yield self._of_owner("unread", owner, "its memory limit: the cgroup has none that can be read", severity="low")

    # --- findings

    def _of_owner(self, rule: str, owner: Owner, evidence: str, **more: Any) -> dict[str, Any]:
        facts = owner.facts
        known = {"pod": _plain(owner.subject.split(" ")[0]) if owner.pod else None, "cgroup": facts["cgroup"], "container": facts["id"]}
        return self._finding(rule, owner.subject, evidence, **known, **more)

    def _finding(
        self, rule: str, subject: str, evidence: str, severity: Optional[str] = None, offered: bool = False, **more: Any
    ) -> dict[str, Any]:
        found = {
            "node": self._node,
            "subject": _plain(subject),
            "rule": rule,
            "severity": severity or RULES[rule].severity,
            "evidence": _plain(evidence),
            "why": RULES[rule].why,
            "fix": RULES[rule].fix + (f"; or --tags fix with {RULES[rule].automatic}" if offered else ""),
            **dict.fromkeys(("pod", "cgroup", "container", "automatic", "detail")),
            **more,
        }
        return {**found, "accepted": next((one["why"] for one in self._expected.accepted if _accepts(one, found)), None)}


def _accepts(entry: Mapping[str, Any], found: Mapping[str, Any]) -> bool:
    named = {"rule": found["rule"], "node": found["node"], "subject": found["subject"], "detail": str(found["detail"])}
    return all(fnmatchcase(value, str(entry.get(name, "*"))) for name, value in named.items())


def _plain(text: str) -> str:
    return _NOT_PLAIN.sub("?", text)[:_LONGEST]


def _shown(place: Place) -> str:
    parts = (("nvidia", place.minor), (" instance ", place.gi), ("/", place.ci))
    return "".join(f"{name}{number}" for name, number in parts if number is not None)
