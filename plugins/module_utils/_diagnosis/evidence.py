# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Evidence as the stages collect it (plain JSON) -> typed records. Decides nothing; what has the wrong shape is an error that says where."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._errors import RemediationError
from ansible_collections.gpuops.remediation.plugins.module_utils._xid.lines import gpu_identities, normalize_pci
from ansible_collections.gpuops.remediation.plugins.module_utils._xid.times import parse_time

Record = Mapping[str, Any]


class EvidenceInvalid(RemediationError):
    """The evidence has not the documented shape."""

    kind = "evidence_invalid"


@dataclass(frozen=True)
class Process:
    pid: int
    kind: str
    start_time: Optional[datetime]
    start_text: Optional[str]
    name: Optional[str]
    executable: Optional[str]
    container: Optional[Record]

    @property
    def is_mps_server(self) -> bool:
        # the kernel cuts a name after 15 characters
        return (self.executable or self.name or "").rsplit("/", 1)[-1].startswith("nvidia-cuda-mps")


@dataclass(frozen=True)
class Gpu:
    uuid: Optional[str]  # None where NVML hung before it could name the GPU
    pci_bus_id: Optional[str]
    index: Optional[int]
    serial: Optional[str]
    lost: bool
    answered: bool  # NVML told something of its state
    recovery_action: Optional[str]
    row_remap_pending: Optional[bool]
    row_remap_failure: Optional[bool]
    uncorrectable: Optional[int]
    sram_threshold_exceeded: Optional[bool]
    mig: bool
    mig_uuids: Mapping[str, tuple[Optional[int], Optional[int]]]
    processes: tuple[Process, ...]
    errors: tuple[tuple[str, str], ...]

    @property
    def hung(self) -> bool:
        return any(is_hang(error) for _call, error in self.errors)

    @property
    def mps_active(self) -> bool:
        return any(process.kind == "mps" or process.is_mps_server for process in self.processes)

    def mps_clients(self) -> tuple[Process, ...]:
        clients = tuple(process for process in self.processes if process.kind == "mps" and not process.is_mps_server)
        return clients or tuple(process for process in self.processes if not process.is_mps_server)


@dataclass(frozen=True)
class Event:
    """One Xid, SXid or "fallen off the bus", from the kernel log or NVML."""

    source: str
    time: Optional[datetime]
    boot_id: Optional[str]
    pci_bus_id: Optional[str]
    code: Optional[int]
    sxid: bool
    pid: Optional[int]
    process_name: Optional[str]
    gi: Optional[int]
    ci: Optional[int]
    severity: Optional[str]
    recovery_action: Optional[str]
    caused_by: Optional[int]


@dataclass(frozen=True)
class Target:
    """A GPU as somebody names it."""

    uuid: Optional[str] = None
    pci_bus_id: Optional[str] = None
    index: Optional[int] = None

    @property
    def named(self) -> bool:
        return self.uuid is not None or self.pci_bus_id is not None or self.index is not None


@dataclass(frozen=True)
class Alert:
    code: Optional[int]
    target: Target
    starts_at: Optional[datetime]
    name: str
    hint: bool = False  # of the past: only the node can prove it


@dataclass(frozen=True)
class Failure:
    """A program that failed on a GPU, as the ledger remembers it."""

    gpu_uuid: str
    code: int
    program: str
    time: datetime


@dataclass(frozen=True)
class Evidence:
    node: Optional[str]
    node_uid: Optional[str]
    silent: bool
    boot_id: Optional[str]
    boot_time: Optional[datetime]
    collected_at: Optional[datetime]
    target: Target
    alert: Optional[Alert]
    gpus: tuple[Gpu, ...]
    events: Mapping[Optional[str], tuple[Event, ...]]  # PCI address -> Xids; None: those that name no GPU
    switches: tuple[Event, ...]  # SXids
    identities: Mapping[str, Mapping[str, Optional[str]]]  # PCI address -> uuid, serial: who the kernel log says a GPU is
    history: tuple[Failure, ...]
    released_at: Mapping[str, datetime]  # GPU UUID, "pci:" address or "-" (the node with all its GPUs) -> last release
    missing: tuple[tuple[str, str], ...]
    hung: tuple[str, ...]  # sources whose reader was abandoned or ran out of time

    def released(self, uuid: Optional[str], pci_bus_id: Optional[str] = None) -> Optional[datetime]:
        """The last release that concerns a GPU, by whatever name it was released."""
        names = (uuid, "pci:%s" % pci_bus_id, "-")
        return max((self.released_at[name] for name in names if name is not None and name in self.released_at), default=None)

    @property
    def has_kernel_log(self) -> bool:
        return not self.silent and not any(source.startswith(("kernel_log", "kmsg")) for source, _why in self.missing)

    @property
    def nvml_hung(self) -> bool:
        return any(source.startswith("nvml") for source in self.hung)

    @property
    def nvml_missing(self) -> bool:
        return any(source.startswith("nvml") for source, _why in self.missing)


def is_hang(words: str) -> bool:
    """Whether an error's words say that an answer never came, rather than that it was bad."""
    return any(word in words.lower() for word in ("hang", "hung", "timed out", "timeout", "did not answer"))


def read_evidence(raw: Any) -> Evidence:
    """Typed evidence; EvidenceInvalid where a part has the wrong shape."""
    top = _record(raw, "evidence")
    node, info = _record(top.get("node"), "node"), top.get("info")
    silent = info is None
    info = _record(info, "info")
    fresh = _record(info.get("node"), "info.node")
    missing = _missing(top.get("missing"), "missing") + _missing(info.get("missing"), "info.missing")
    abandoned = _records(info.get("abandoned"), "info.abandoned")
    events = [_event(event) for event in _records(info.get("xids"), "info.xids")]
    hung = [_text(entry.get("source")) or "?" for entry in abandoned]
    hung += [source for source, why in missing if is_hang(why)]
    return Evidence(
        node=_text(node.get("name")),
        node_uid=_text(node.get("uid")),
        silent=silent,
        boot_id=_text(fresh.get("boot_id")) or _text(node.get("boot_id")),
        boot_time=_time(fresh.get("boot_time")),
        collected_at=_time(fresh.get("collected_at")) or _time(node.get("collected_at")),
        target=_target(top.get("gpu"), "gpu"),
        alert=_alert(top.get("alert")),
        gpus=tuple(_gpu(gpu, "info.gpus[%d]" % number) for number, gpu in enumerate(_records(info.get("gpus"), "info.gpus"))),
        events=_by_gpu(event for event in events if not event.sxid),
        switches=tuple(event for event in events if event.sxid),
        identities=gpu_identities(_list(info.get("kernel_log"), "info.kernel_log")),
        history=tuple(failure for failure in map(_failure, _records(top.get("history"), "history")) if failure),
        released_at=_released(top.get("released_at")),
        missing=tuple(dict.fromkeys(missing)),
        hung=tuple(dict.fromkeys(hung)),
    )


def _by_gpu(events: Iterable[Event]) -> dict[Optional[str], tuple[Event, ...]]:
    groups: dict[Optional[str], list[Event]] = {}
    for event in events:
        groups.setdefault(event.pci_bus_id, []).append(event)
    return {pci: tuple(group) for pci, group in groups.items()}


def _gpu(raw: Record, where: str) -> Gpu:
    rows, ecc, mig = (_record(raw.get(part), "%s.%s" % (where, part)) for part in ("remapped_rows", "ecc", "mig"))
    return Gpu(
        uuid=_text(raw.get("uuid")),
        pci_bus_id=normalize_pci(raw.get("pci_bus_id")),
        index=_number(raw.get("index")),
        serial=_text(raw.get("serial")),
        lost=raw.get("lost") is True,
        answered=any(
            value is not None
            for value in (raw.get("recovery_action"), raw.get("memory_total_bytes"), rows.get("pending"), ecc.get("uncorrected_volatile"))
        ),
        recovery_action=_text(raw.get("recovery_action")),
        row_remap_pending=_flag(rows.get("pending")),
        row_remap_failure=_flag(rows.get("failure")),
        uncorrectable=_number(ecc.get("uncorrected_volatile")),
        sram_threshold_exceeded=_flag(ecc.get("sram_threshold_exceeded")),
        mig=mig.get("current") in (True, 1, "enabled"),
        mig_uuids={
            str(instance["uuid"]): (_number(instance.get("gi")), _number(instance.get("ci")))
            for instance in _records(mig.get("instances"), where + ".mig.instances")
            if instance.get("uuid")
        },
        processes=tuple(
            _process(process) for process in _records(raw.get("processes"), where + ".processes") if _number(process.get("pid"))
        ),
        errors=tuple((str(error.get("call")), str(error.get("error"))) for error in _records(raw.get("errors"), where + ".errors")),
    )


def _process(raw: Record) -> Process:
    container = raw.get("container")
    return Process(
        pid=int(raw["pid"]),
        kind=str(raw.get("type")),
        start_time=_time(raw.get("start_time")),
        start_text=_text(raw.get("start_time")),
        name=_text(raw.get("name")),
        executable=_text(raw.get("executable")),
        container=container if isinstance(container, Mapping) else None,
    )


def _event(raw: Record) -> Event:
    code = _number(raw.get("code"))
    if code is None and raw.get("fallen_off_bus") is True and not raw.get("sxid"):
        code = 79  # the same fault in words only
    severity = _text(raw.get("severity"))
    return Event(
        source=_text(raw.get("source")) or "kernel_log",
        time=_time(raw.get("time")),
        boot_id=_text(raw.get("boot_id")),
        pci_bus_id=normalize_pci(raw.get("pci_bus_id")),
        code=code,
        sxid=raw.get("sxid") is True,
        pid=_number(raw.get("pid")),
        process_name=_text(raw.get("process_name")),
        gi=_instance(raw.get("gi")),
        ci=_instance(raw.get("ci")),
        severity=severity if severity in ("fatal", "nonfatal") else None,
        recovery_action=_text(raw.get("recovery_action")),
        caused_by=_number(raw.get("caused_by")),
    )


def _alert(raw: Any) -> Optional[Alert]:
    alert = _record(raw, "alert")
    if not alert:
        return None
    uuid, pci, index = alert.get("gpu_uuid"), alert.get("pci_bus_id"), alert.get("gpu_index", alert.get("gpu"))
    return Alert(
        code=_number(alert.get("xid")),
        target=_target({"uuid": uuid, "pci_bus_id": pci, "index": index}, "alert"),
        starts_at=_time(alert.get("starts_at")),
        name=_text(alert.get("alertname")) or _text(alert.get("name")) or "without a name",
        hint=alert.get("hint") is True,
    )


def _target(raw: Any, where: str) -> Target:
    target = _record(raw, where)
    return Target(_text(target.get("uuid")), normalize_pci(target.get("pci_bus_id")), _number(target.get("index")))


def _failure(raw: Record) -> Optional[Failure]:
    uuid, program, time = (
        _text(raw.get("gpu_uuid")),
        _text(raw.get("program")) or _text(raw.get("executable_or_image")),
        _time(raw.get("time")),
    )
    return Failure(uuid, _number(raw.get("code")) or 0, program, time) if uuid and program and time else None


def _released(raw: Any) -> dict[str, datetime]:
    """One time for all that this evidence is about, or a time for each name."""
    times = {str(name): _time(time) for name, time in (raw if isinstance(raw, Mapping) else {"-": raw}).items()}
    return {name: time for name, time in times.items() if time is not None}


def _missing(raw: Any, where: str) -> list[tuple[str, str]]:
    return [(_text(entry.get("source")) or "?", _text(entry.get("why")) or "no reason given") for entry in _records(raw, where)]


def _record(raw: Any, where: str) -> Record:
    if raw is None:
        return {}
    if not isinstance(raw, Mapping):
        raise EvidenceInvalid("%s has to be a dictionary, not %s" % (where, type(raw).__name__), where=where)
    return raw


def _list(raw: Any, where: str) -> list[Any]:
    if raw is None:
        return []
    if not isinstance(raw, (list, tuple)):
        raise EvidenceInvalid("%s has to be a list, not %s" % (where, type(raw).__name__), where=where)
    return list(raw)


def _records(raw: Any, where: str) -> list[Record]:
    return [_record(entry, "%s[%d]" % (where, number)) for number, entry in enumerate(_list(raw, where))]


def _text(raw: Any) -> Optional[str]:
    return str(raw) if isinstance(raw, str) and raw else None


def _number(raw: Any) -> Optional[int]:
    """Labels are texts, so digits in a text are a number too."""
    if isinstance(raw, bool) or not isinstance(raw, (int, str)):
        return None
    if isinstance(raw, str):
        return int(raw) if len(raw) < 19 and raw.isascii() and raw.isdigit() else None
    return raw


def _flag(raw: Any) -> Optional[bool]:
    return bool(raw) if isinstance(raw, (bool, int)) else None


def _instance(raw: Any) -> Optional[int]:
    number = _number(raw)
    return None if number == 0xFFFFFFFF else number  # NVML's "no instance"


def _time(raw: Any) -> Optional[datetime]:
    return raw if isinstance(raw, datetime) else parse_time(raw, assume_utc=True)
