# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Whether a quarantined GPU or node may go back into service: every check, each with what was read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, Callable, Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.proof import counts
from ansible_collections.gpuops.remediation.plugins.module_utils._errors import RemediationError
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.times import from_iso, iso

Record = Mapping[str, Any]

# What the kernel's PCI core says when a device was reset; no line of the driver's own tells it.
_RESET = re.compile(r"^\d+,\d+,(?P<usec>\d+),[^;]*;nvidia (?P<pci>[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]): reset done")

SHARED = ("fabric", "nvlink")  # domains of what the GPUs of a node share: any of them, or a switch, may log the fault


@dataclass(frozen=True)
class Check:
    """One condition of a release; `why` says what was read, in words. `ok` of None: the source is not configured."""

    name: str
    ok: Optional[bool]
    why: str


@dataclass(frozen=True)
class Case:
    """What a release is judged by.

    `now` and `then` are answers of gpu_info: read for this release, and kept by the diagnose stage. Times are ISO 8601, UTC.
    """

    opened_at: str
    repair: str
    scope: str
    domain: str
    gpu_uuid: Optional[str]
    pci_bus_id: Optional[str]
    now: Record
    then: Record
    allowed_holders: Sequence[str]
    is_fatal: Callable[[Record], bool]

    @classmethod
    def of(
        cls,
        incident: Record,
        now: Record,
        *,
        is_fatal: Callable[[Record], bool],
        allowed_holders: Sequence[str] = (),
    ) -> Case:
        """From the ledger's record of the incident. `is_fatal` says of an Xid or SXid whether it alone keeps what it is about from service."""
        verdict: Record = incident.get("verdict") or {}
        diagnose: Record = (incident.get("stages") or {}).get("diagnose") or {}
        evidence: Record = (diagnose.get("data") or {}).get("evidence") or {}
        return cls(
            opened_at=incident["opened_at"],
            repair=verdict.get("repair") or "none",
            scope=verdict.get("scope") or "gpu",
            domain=verdict.get("domain") or incident.get("domain") or "unknown",
            gpu_uuid=verdict.get("gpu_uuid"),
            pci_bus_id=verdict.get("pci_bus_id"),
            now=now,
            then=evidence.get("info") or {},
            allowed_holders=allowed_holders,
            is_fatal=is_fatal,
        )


class NotReleasable(RemediationError):
    """At least one check refuses the release."""

    kind = "not_releasable"


def checks(case: Case, fleet: Optional[Sequence[str]] = None) -> list[Check]:
    """Every check of a release, in the order in which an operator would read them. fleet: what Prometheus has against it; None if it is not configured."""
    return [
        _answers(case),
        _recovery_action(case),
        _row_remap(case),
        _ecc(case),
        _kernel_log(case),
        _holders(case),
        _repaired(case),
        _prometheus(fleet),
    ]


def require(results: Iterable[Check]) -> None:
    """Raises when a check failed; a source that is not configured does not count against it."""
    results = list(results)
    failed = [check for check in results if check.ok is False]
    if failed:
        words = "; ".join(f"{check.name}: {check.why}" for check in failed)
        raise NotReleasable(f"not released: {words}", checks=[asdict(check) for check in results])


def _same(gpu: Record, case: Case) -> bool:
    """The incident's GPU, or the one that now sits in its slot."""
    if case.gpu_uuid and gpu.get("uuid") == case.gpu_uuid:
        return True
    return bool(case.pci_bus_id) and gpu.get("pci_bus_id") == case.pci_bus_id


def concerned(case: Case, info: Record) -> list[Record]:
    """The incident's GPU, then or now, or all where the node is meant."""
    gpus = list(info.get("gpus") or [])
    if case.scope == "node" or not (case.gpu_uuid or case.pci_bus_id):
        return gpus
    return [gpu for gpu in gpus if _same(gpu, case)]


def _name(gpu: Record) -> str:
    return str(gpu.get("uuid") or gpu.get("pci_bus_id"))


def _verdict(name: str, faults: Sequence[str], fine: str) -> Check:
    return Check(name, not faults, "; ".join(faults) or fine)


def _answers(case: Case) -> Check:
    faults = [f"{gap['source']}: {gap['why']}" for gap in case.now.get("missing") or []]
    gpus = list(case.now.get("gpus") or [])
    faults += [f"{_name(gpu)} is lost" for gpu in gpus if gpu.get("lost")]
    before = len(case.then.get("gpus") or [])
    if len(gpus) < before:
        faults.append(f"{len(gpus)} GPUs answer, {before} did when the incident was diagnosed")
    if not gpus:
        faults.append("no GPU answers")
    if not concerned(case, case.now):
        faults.append("the GPU of this incident is not among those that answer")
    return _verdict("nvml_answers", faults, f"{len(gpus)} GPUs answer")


def _unread(gpu: Record, *calls: str) -> str:
    """What NVML answered instead, where one of its calls failed; what a model does not support is no error."""
    failed = [error for error in gpu.get("errors") or [] if any(call in error["call"] for call in (*calls, "Handle", "read"))]
    return "; ".join(f"{error['call']}: {error['error']}" for error in failed)


def _recovery_action(case: Case) -> Check:
    asked = [
        f"{_name(gpu)} asks for {gpu.get('recovery_action')}" for gpu in concerned(case, case.now) if gpu.get("recovery_action") != "none"
    ]
    return _verdict("recovery_action", asked, "the driver asks for none")


def _row_remap(case: Case) -> Check:
    faults = []
    for gpu in concerned(case, case.now):
        rows, unread = gpu.get("remapped_rows"), _unread(gpu, "RemappedRows")
        if rows is None or unread:
            faults.append(f"{_name(gpu)}: row remapping could not be read {unread}".rstrip())
            continue
        faults += [f"{_name(gpu)}: row remap {word}" for word in ("pending", "failure") if rows.get(word)]
    return _verdict("row_remap", faults, "none pending, none failed")


def _ecc(case: Case) -> Check:
    """Volatile counters start at zero with the driver, so any is new; the aggregate is compared with what diagnose kept of the same board."""
    before = {gpu.get("serial"): gpu.get("ecc") or {} for gpu in case.then.get("gpus") or []}
    faults = []
    for gpu in concerned(case, case.now):
        ecc, unread = gpu.get("ecc"), _unread(gpu, "EccMode", "EccError")
        if ecc is None or unread:
            faults.append(f"{_name(gpu)}: ECC counters could not be read {unread}".rstrip())
            continue
        volatile = ecc.get("uncorrected_volatile") or 0
        grown = (ecc.get("uncorrected_aggregate") or 0) - (before.get(gpu.get("serial"), {}).get("uncorrected_aggregate") or 0)
        if volatile or (gpu.get("serial") in before and grown > 0):
            faults.append(f"{_name(gpu)}: {max(volatile, grown)} new uncorrectable errors")
        if ecc.get("sram_threshold_exceeded"):
            faults.append(f"{_name(gpu)}: on-chip memory has had more errors than the driver tolerates")
    return _verdict("ecc", faults, "no new uncorrectable error")


def _rebooted(case: Case) -> bool:
    """Another boot than that of the diagnosis; where the node was silent then, one that began after the incident."""
    node, before = case.now.get("node") or {}, case.then.get("node") or {}
    if node.get("boot_id") and before.get("boot_id"):
        return bool(node["boot_id"] != before["boot_id"])
    return bool(node.get("boot_id")) and (node.get("boot_time") or "") > case.opened_at


def _repair_time(case: Case) -> Optional[str]:
    """When the repair happened: the present boot where it is another one, else the last recorded reset of this GPU; ISO, UTC."""
    if _rebooted(case):
        return str((case.now.get("node") or {}).get("boot_time"))
    diagnosed_at = (case.then.get("node") or {}).get("collected_at") or case.opened_at
    times = [time for pci, time in _resets(case.now) if pci == case.pci_bus_id and time >= max(diagnosed_at, case.opened_at)]
    return max(times) if times else None


def _resets(info: Record) -> list[tuple[str, str]]:
    """PCI address and time of each reset in the kernel log of the present boot."""
    boot_time = from_iso((info.get("node") or {}).get("boot_time"))
    found = [_RESET.match(line) for line in info.get("kernel_log") or []]
    if boot_time is None:
        return []
    return [(match["pci"], iso(boot_time + timedelta(microseconds=int(match["usec"]))) or "") for match in found if match]


def _kernel_log(case: Case) -> Check:
    since = _repair_time(case) or case.opened_at
    pcis = {gpu.get("pci_bus_id") for gpu in concerned(case, case.now)} | {case.pci_bus_id}
    whole = case.scope == "node" or case.domain in SHARED
    fatal = [
        f"{'SXid' if event.get('sxid') else 'Xid'} {event.get('code') or 'fallen off the bus'}"
        f" on {event.get('pci_bus_id') or 'a GPU that the line does not name'} at {event.get('time')}"
        for event in case.now.get("xids") or []
        if (whole or event.get("pci_bus_id") in pcis)
        and (event.get("time") or since) >= since
        and (event.get("fallen_off_bus") or (event.get("code") is not None and case.is_fatal(event)))
    ]
    return _verdict("kernel_log", fatal, f"no fatal Xid{' or SXid of the whole node' if whole else ''} since {since}")


def _holders(case: Case) -> Check:
    holders = [
        f"{process.get('name')} (pid {process.get('pid')}) on {_name(gpu)}"
        for gpu in concerned(case, case.now)
        for process in gpu.get("processes") or []
        if counts(process, case.allowed_holders)
    ]
    # Where nobody could tell, the empty list means nothing.
    holders += [f"who uses {_name(gpu)} could not be read" for gpu in concerned(case, case.now) if gpu.get("processes_source") is None]
    return _verdict("holders", holders, "none")


def _repaired(case: Case) -> Check:
    if case.repair in ("none", "restart_app"):
        return Check("repaired", True, f"the verdict asks for {case.repair.replace('_', ' ')}, no proof needed")
    if case.repair == "replace":
        serials = [
            next((gpu.get("serial") for gpu in info.get("gpus") or [] if gpu.get("pci_bus_id") == case.pci_bus_id), None)
            for info in (case.then, case.now)
        ]
        if None in serials:
            return Check("repaired", False, "the serial number of the board in the slot, then or now, is not known")
        replaced = serials[0] != serials[1]
        return Check("repaired", replaced, "another board is in the slot" if replaced else "the same board is still in the slot")
    if _rebooted(case):
        return Check("repaired", True, f"another boot: {case.now['node']['boot_id']}")
    if case.repair == "reset_gpu" and _repair_time(case):
        return Check("repaired", True, f"reset recorded at {_repair_time(case)}")
    return Check("repaired", False, f"the verdict asks for {case.repair.replace('_', ' ')}, and no proof of it was found")


def _prometheus(fleet: Optional[Sequence[str]]) -> Check:
    if fleet is None:
        return Check("prometheus", None, "not configured")
    return _verdict("prometheus", fleet, "the exporter is up, and no alert about this has fired for as long as is asked for")
