# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""What the evidence says about one GPU, or about the node as a whole: findings, each with its own decision. The verdict picks the worst."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._diagnosis.evidence import Alert, Event, Evidence, Gpu, Process
from ansible_collections.gpuops.remediation.plugins.module_utils._xid.policy import ACTIONS, QUARANTINES, Facts, Policy, Row
from ansible_collections.gpuops.remediation.plugins.module_utils._xid.recovery import worst_recovery
from ansible_collections.gpuops.remediation.plugins.module_utils._xid.times import show_time

Programs = dict[str, set[str]]  # program -> UUIDs of the GPUs on which it failed

RECOVERY_CHANGED = 154
OFF_THE_BUS = 79

# Without an answer to these calls NVML has not said whether the GPU is well.
_DECISIVE = ("RemappedRows", "EccError", "EccMode", "FieldValues", "field 230", "Handle", "read")
_REPAIRS_BY_DRIVER = ("reset_gpu", "reboot_node")


@dataclass(frozen=True)
class Sorted:
    """Events by whether they count (S3)."""

    counting: tuple[Event, ...]
    past: tuple[Event, ...]
    undated: tuple[Event, ...]


@dataclass(frozen=True)
class Subject:
    """The GPU that is judged; `gpu` is None where NVML does not list it."""

    uuid: Optional[str] = None
    pci_bus_id: Optional[str] = None
    serial: Optional[str] = None
    index: Optional[int] = None
    gpu: Optional[Gpu] = None

    def events(self, evidence: Evidence) -> Sorted:
        """Its Xids, by whether they count."""
        mine = evidence.events.get(self.pci_bus_id, ()) if self.pci_bus_id is not None else ()
        return sort_events(mine, evidence, evidence.released(self.uuid, self.pci_bus_id))


@dataclass(frozen=True)
class Finding:
    row: Row
    certainty: str  # certain, likely, none
    source: str
    says: str
    codes: tuple[int, ...] = ()
    events: tuple[Event, ...] = ()
    decides: bool = True  # False: the driver's own recovery action stands for it


def sort_events(events: Iterable[Event], evidence: Evidence, released: Optional[datetime]) -> Sorted:
    """S3: an event counts if it is of the node's present boot and newer than the last release of what it is about."""
    sorted_: dict[str, list[Event]] = {"counting": [], "past": [], "undated": []}
    for event in events:
        sorted_[_standing(event, evidence, released)].append(event)
    return Sorted(*(tuple(sorted_[name]) for name in ("counting", "past", "undated")))


def _standing(event: Event, evidence: Evidence, released: Optional[datetime]) -> str:
    if released is not None and event.time is not None and event.time <= released:
        return "past"
    if event.boot_id and evidence.boot_id:
        if event.boot_id != evidence.boot_id:
            return "past"
    elif event.time is None or evidence.boot_time is None:
        return "undated"
    elif event.time < evidence.boot_time:
        return "past"
    return "undated" if released is not None and event.time is None else "counting"


def gpu_findings(subject: Subject, evidence: Evidence, policy: Policy, alert: Optional[Alert], programs: Programs) -> list[Finding]:
    """Everything that the evidence says about one GPU; an empty list where it says nothing."""
    events = subject.events(evidence)
    driver, driver_says = _driver(subject.gpu, events.counting)
    facts = _facts(subject.gpu, events.counting, driver, evidence)
    found = _table(events.counting, facts, subject.gpu, policy)
    found = _under_driver(found, driver, driver_says, policy)
    found += _states(subject, facts, found, evidence, policy)
    found += _undated(events.undated, facts, policy)
    found += _repeats(subject, events.counting, programs, policy)
    if alert is not None:
        found += _alert(alert, subject, facts, evidence, policy)
    return found


def node_findings(evidence: Evidence, policy: Policy) -> list[Finding]:
    """What the evidence says about the node itself: its switches, NVML as a whole, lines that name no GPU."""
    found: list[Finding] = []
    for code, group in _by_code(sort_events(evidence.switches, evidence, evidence.released(None)).counting):
        row = policy.sxid.under({"xids": (), "later_xids": (), "severity": _severity(group)})
        found.append(_finding(row, "SXid %d" % code, group, policy.sxid.meaning))
    for code, group in _by_code(sort_events(evidence.events.get(None, ()), evidence, evidence.released(None)).counting):
        row = policy.row(code)
        if _takes(row):
            row = replace(row, scope="node", action="hold", repair="none", because="The line does not name its GPU.")
            found.append(_finding(row, "Xid %d" % code, group, row.meaning, codes=(code,), certainty="likely"))
    if not evidence.silent and not any(gpu.answered for gpu in evidence.gpus):
        found += _nvml(evidence, policy)
    return found


def is_complete(subject: Subject, evidence: Evidence) -> bool:
    """Whether the node said all that can clear this GPU: its kernel log, and NVML on the GPU's state."""
    gpu = subject.gpu
    if gpu is None or gpu.hung or not gpu.answered or not evidence.has_kernel_log:
        return False
    return not any(word in call for call, _error in gpu.errors for word in _DECISIVE)


def _facts(gpu: Optional[Gpu], events: Sequence[Event], driver: Optional[str], evidence: Evidence) -> dict[str, Any]:
    """What the conditions of policy rows look at; None: could not be read."""
    codes: set[int] = {code for event in events for code in (event.code, event.caused_by) if code is not None}
    facts: dict[str, Any] = {
        "xids": codes,
        "later_xids": (),
        "recovery_action": driver,
        "kernel_log": evidence.has_kernel_log,
        "mig": any(event.gi is not None for event in events),
        "mps": False,
    }
    if gpu is not None:
        facts.update(
            mig=facts["mig"] or gpu.mig,
            mps=gpu.mps_active,
            row_remap_failure=gpu.row_remap_failure,
            row_remap_pending=gpu.row_remap_pending,
            uncorrectable_ecc=None if gpu.uncorrectable is None else gpu.uncorrectable > 0,
            sram_threshold_exceeded=gpu.sram_threshold_exceeded,
        )
    return facts


def _driver(gpu: Optional[Gpu], events: Sequence[Event]) -> tuple[Optional[str], str]:
    """The driver's own verdict: what NVML reads now or the newest Xid 154 says, whichever takes more."""
    texts = [event for event in events if event.code == RECOVERY_CHANGED and event.recovery_action is not None]
    # The sort is stable, so that lines without a time keep the log's order.
    logged = sorted(texts, key=lambda event: event.time.timestamp() if event.time else 0.0)[-1].recovery_action if texts else None
    now = gpu.recovery_action if gpu is not None else None
    action = worst_recovery((logged, now))
    by = [name for name, said in (("Xid 154", logged), ("NVML", now)) if said is not None and worst_recovery((said,)) == action]
    return action, " and ".join(by)


def _table(events: Sequence[Event], facts: Facts, gpu: Optional[Gpu], policy: Policy) -> list[Finding]:
    """A finding for each code, the application's codes together: one crash prints many lines."""
    found: list[Finding] = []
    application: list[tuple[Row, list[Event], int]] = []
    groups = dict(_by_code(events))
    for cause in sorted({event.caused_by for event in events if event.caused_by is not None} - set(groups)):
        groups[cause] = []  # the log has lost its line, but the driver names it
    for code, group in groups.items():
        if code == RECOVERY_CHANGED and any(event.recovery_action is not None for event in group):
            continue
        later = {other for other, others in groups.items() if other != code and _last(others) > _last(group)}
        row = policy.row(code).under({**facts, "later_xids": later, "severity": _severity(group)})
        if row.domain == "application":
            application.append((row, group, code))
        else:
            certainty = "likely" if row.domain == "unknown" or row.action == "hold" else "certain"
            found.append(_finding(row, "Xid %d" % code, group, row.meaning, codes=(code,), certainty=certainty))
    if application:
        found.append(_crash(application, facts, gpu, policy))
    return found


def _crash(parts: list[tuple[Row, list[Event], int]], facts: Facts, gpu: Optional[Gpu], policy: Policy) -> Finding:
    row = max((row for row, _events, _code in parts), key=lambda one: one.rank)
    events = tuple(event for _row, group, _code in parts for event in group)
    lines = ", ".join("Xid %d %s" % (code, _times(len(group))) for _row, group, code in parts)
    names = sorted({event.process_name for event in events if event.process_name})
    says = "The application's fault%s: %s. %s" % (" (%s)" % ", ".join(names) if names else "", lines, parts[0][0].meaning)
    certainty = "certain" if facts["recovery_action"] == "none" and not facts.get("uncorrectable_ecc") else "likely"
    if facts["mps"] and gpu is not None:
        row = replace(policy.states["mps_application_fault"], key=row.key)
        says += " An MPS server is on the GPU, so the process named in the line is one of %d suspects." % len(gpu.mps_clients())
        certainty = "likely"
    return Finding(row, certainty, _source(events), says, tuple(code for _row, _events, code in parts), events)


def _under_driver(found: list[Finding], driver: Optional[str], by: str, policy: Policy) -> list[Finding]:
    """The driver knows its GPU better than the table: where it asks for a repair, its word replaces the table's decision."""
    if driver is None or driver == "none":
        return found
    row = policy.recovery(driver)
    covered = [finding for finding in found if _takes(finding.row)]
    if row.repair in _REPAIRS_BY_DRIVER and row.action in QUARANTINES:
        found = [replace(finding, decides=False) if finding in covered else finding for finding in found]
    known = [finding.row for finding in found if finding.row.domain not in ("application", "none", "unknown")]
    if known:  # the driver says what to do, the Xid what broke
        row = replace(row, domain=max(known, key=lambda one: one.rank).domain)
    return [*found, Finding(row, "certain", "driver", "%s (%s)." % (row.meaning.rstrip("."), by))]


def _states(subject: Subject, facts: Facts, found: list[Finding], evidence: Evidence, policy: Policy) -> list[Finding]:
    """What NVML reads from the GPU now."""
    gpu, states = subject.gpu, policy.states
    if evidence.silent:
        return []
    if gpu is None or (not gpu.answered and not gpu.lost and not gpu.hung):
        unread = _nvml(evidence, policy)
        if gpu is None and not unread:
            unread = [_state(states["gpu_not_listed"], "likely")]
        return unread
    seen = []
    if gpu.lost:
        seen.append(_state(states["gpu_lost"], "certain"))
    if gpu.hung:
        others = any(other.answered for other in evidence.gpus if other is not gpu)
        calls = ", ".join(call for call, _error in gpu.errors)
        seen.append(_state(states["gpu_hung" if others or gpu.answered else "nvml_hung"], "likely", "Call: %s." % calls))
    names = ["row_remap_failure", "row_remap_pending", "sram_threshold_exceeded"]
    if not any(finding.row.domain == "memory" for finding in found):
        names.append("uncorrectable_ecc")
    return seen + [_state(states[name].under(facts), "certain") for name in names if facts.get(name)]


def _nvml(evidence: Evidence, policy: Policy) -> list[Finding]:
    why = "; ".join(why for source, why in evidence.missing if source.startswith("nvml"))
    if evidence.nvml_hung:
        return [_state(policy.states["nvml_hung"], "likely", why)]
    return [_state(policy.states["nvml_unavailable"], "likely", why)] if evidence.nvml_missing else []


def _state(row: Row, certainty: str, detail: str = "") -> Finding:
    return Finding(row, certainty, "nvml", " ".join(part for part in (row.meaning, detail) if part))


def _undated(events: Sequence[Event], facts: Facts, policy: Policy) -> list[Finding]:
    found = []
    for code, group in _by_code(events):
        row = policy.row(code).under({**facts, "severity": _severity(group)})
        if code not in facts["xids"] and _takes(row):
            undated = replace(policy.states["evidence_undated"], domain=row.domain)
            found.append(_finding(undated, "Xid %d" % code, group, undated.meaning, codes=(code,), certainty="none"))
    return found


def _repeats(subject: Subject, events: Sequence[Event], programs: Programs, policy: Policy) -> list[Finding]:
    """S14: different programs, each of which failed on this GPU and on no other GPU of the node."""
    mine = sorted(name for name, uuids in programs.items() if subject.uuid is not None and uuids == {subject.uuid})
    if len(mine) < policy.repeats.programs:
        return []
    says = "%s Within %d hours: %s." % (policy.repeats.row.meaning, policy.repeats.hours, ", ".join(mine))
    return [Finding(policy.repeats.row, "likely", "ledger", says, events=tuple(events))]


def failing_programs(evidence: Evidence, policy: Policy) -> Programs:
    """Program -> UUIDs of the node's GPUs on which it failed by an application's Xid."""
    programs: Programs = {}
    start = evidence.collected_at - timedelta(hours=policy.repeats.hours) if evidence.collected_at is not None else None
    for failure in evidence.history:
        released = evidence.released(failure.gpu_uuid)
        if (start is None or failure.time >= start) and (released is None or failure.time > released):
            programs.setdefault(failure.program, set()).add(failure.gpu_uuid)
    for gpu in evidence.gpus:
        if gpu.uuid is None or gpu.mps_active:  # under MPS the line names any client
            continue
        subject = Subject(uuid=gpu.uuid, pci_bus_id=gpu.pci_bus_id, gpu=gpu)
        for event in subject.events(evidence).counting:
            name = program_of(event, gpu) if is_application(event, policy) else None
            if name is not None and (start is None or event.time is None or event.time >= start):
                programs.setdefault(name, set()).add(gpu.uuid)
    return programs


def is_application(event: Event, policy: Policy) -> bool:
    codes = [code for code in (event.code, event.caused_by) if code is not None]
    return bool(codes) and all(policy.row(code).domain == "application" for code in codes)


def program_of(event: Event, gpu: Gpu) -> Optional[str]:
    process = process_of(event, gpu)
    return (process and (process.executable or process.name)) or event.process_name


def process_of(event: Event, gpu: Gpu) -> Optional[Process]:
    """The process that the line names, unless it started later and only has the same number."""
    for process in gpu.processes:
        if process.pid == event.pid:
            later = event.time is not None and process.start_time is not None and process.start_time > event.time
            return None if later else process
    return None


def _alert(alert: Alert, subject: Subject, facts: Facts, evidence: Evidence, policy: Policy) -> list[Finding]:
    """Fleet evidence: certain only where the row says so, confirmed or refuted by the node where the node can be asked (S12)."""
    if is_past(alert, subject, evidence):
        return []
    complete = is_complete(subject, evidence)
    if alert.code is None:
        if evidence.silent or not complete:
            return [_unclear(alert, None, evidence, policy)]
        return []
    if alert.code in facts["xids"] or (alert.code == OFF_THE_BUS and subject.gpu is not None and subject.gpu.lost):
        return [_answered(alert, "alert_confirmed", policy)]
    if complete:
        return [_answered(alert, "alert_not_confirmed", policy)]
    row = policy.row(alert.code).under(facts)
    if alert.hint:
        return [_unclear(alert, row, evidence, policy)]
    says = "The alert %s reports Xid %d: %s" % (alert.name, alert.code, row.meaning)
    answered = subject.gpu is not None and subject.gpu.answered
    if row.certain_on_fleet_evidence and not answered:
        return [Finding(row, "certain", "alert", says + " The policy calls this certain without the node.", (alert.code,))]
    if row.domain == "application" and not evidence.silent:
        return [Finding(row, "likely", "alert", says, (alert.code,))]
    return [_unclear(alert, row, evidence, policy)]


def _answered(alert: Alert, state: str, policy: Policy) -> Finding:
    row = policy.states[state]
    return Finding(row, "certain", "alert", "%s The alert %s reports Xid %s." % (row.meaning, alert.name, alert.code))


def is_past(alert: Alert, subject: Subject, evidence: Evidence) -> bool:
    """S3 for alerts."""
    limits = [limit for limit in (evidence.boot_time, evidence.released(subject.uuid, subject.pci_bus_id)) if limit is not None]
    return alert.starts_at is not None and any(alert.starts_at <= limit for limit in limits)


def _unclear(alert: Alert, row: Optional[Row], evidence: Evidence, policy: Policy) -> Finding:
    held = policy.states["node_silent" if evidence.silent else "evidence_incomplete"]
    if row is not None and row.domain not in ("application", "none"):
        held = replace(held, domain=row.domain)
    what = (
        "The alert %s reports Xid %d." % (alert.name, alert.code) if alert.code is not None else "The alert %s names no Xid." % alert.name
    )
    return Finding(held, "none", "alert", "%s %s" % (held.meaning, what), () if alert.code is None else (alert.code,))


def _finding(
    row: Row, name: str, events: Sequence[Event], meaning: str, codes: tuple[int, ...] = (), certainty: str = "certain"
) -> Finding:
    if not events:
        return Finding(row, certainty, "kernel_log", "%s, named by a later line as its cause: %s" % (name, meaning), codes)
    last = max((event.time for event in events if event.time is not None), default=None)
    when = ", last at %s" % show_time(last) if last is not None else ""
    return Finding(row, certainty, _source(events), "%s %s%s: %s" % (name, _times(len(events)), when, meaning), codes, tuple(events))


def _by_code(events: Iterable[Event]) -> list[tuple[int, list[Event]]]:
    groups: dict[int, list[Event]] = {}
    for event in events:
        if event.code is not None:
            groups.setdefault(event.code, []).append(event)
    return sorted(groups.items())


def _severity(events: Sequence[Event]) -> Optional[str]:
    said = {event.severity for event in events}
    return "fatal" if "fatal" in said else "nonfatal" if "nonfatal" in said else None


def _last(events: Sequence[Event]) -> float:
    return max((event.time.timestamp() for event in events if event.time is not None), default=0.0)


def _takes(row: Row) -> bool:
    """Whether a row wants more than to be looked at."""
    return ACTIONS.index(row.action) >= ACTIONS.index("hold")


def _times(count: int) -> str:
    return "(1 line)" if count == 1 else "(%d lines)" % count


def _source(events: Sequence[Event]) -> str:
    return "+".join(sorted({event.source for event in events})) or "kernel_log"
