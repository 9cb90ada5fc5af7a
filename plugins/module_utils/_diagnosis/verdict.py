# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Evidence and policy -> verdict. The last step of diagnosis: pick the GPU, take its worst finding, say why in plain words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._diagnosis.evidence import (
    Alert,
    Event,
    Evidence,
    Process,
    Target,
    read_evidence,
)
from ansible_collections.gpuops.remediation.plugins.module_utils._diagnosis.findings import (
    Finding,
    Subject,
    failing_programs,
    gpu_findings,
    is_complete,
    is_past,
    node_findings,
    process_of,
)
from ansible_collections.gpuops.remediation.plugins.module_utils._xid.policy import ACTIONS, REPAIRS, Policy, Row
from ansible_collections.gpuops.remediation.plugins.module_utils._xid.times import show_time

SCHEMA_VERSION = 1

Verdict = dict[str, Any]

_CERTAINTIES = ("none", "likely", "certain")
_WELL = Row("well", "Nothing is wrong.", "none", "gpu", "none", "none", "")
_UNSEEN = Row("unseen", "Nothing wrong was seen, but not everything could be read.", "none", "gpu", "observe", "none", "")
_ONE_PROGRAM = ("process", "container", "mig_instance")


def diagnose(evidence: Mapping[str, Any], policy: Policy) -> Verdict:
    """One verdict: on the GPU that the evidence (else its alert) names, or the worst on the node where nobody names one."""
    read = read_evidence(evidence)
    target = read.target if read.target.named else read.alert.target if read.alert is not None else read.target
    if not target.named:
        verdicts = _all(read, policy)
        return verdicts[0] if verdicts else _node(read, policy, [])
    subject, notes = _resolve(target, read)
    found = gpu_findings(subject, read, policy, read.alert, failing_programs(read, policy))
    keys = {finding.row.key for finding in found}
    found += [finding for finding in node_findings(read, policy) if finding.row.key not in keys]
    return _assemble(subject, found, read, policy, notes)


def diagnose_all(evidence: Mapping[str, Any], policy: Policy) -> list[Verdict]:
    """A verdict for each GPU of the node on which anything was found, and one for the node itself where it has a fault; worst first."""
    return _all(read_evidence(evidence), policy)


def _all(evidence: Evidence, policy: Policy) -> list[Verdict]:
    subjects = _subjects(evidence)
    notes: list[str] = []
    suspect: Optional[Subject] = None
    if evidence.alert is not None:
        target = evidence.alert.target if evidence.alert.target.named else evidence.target
        if target.named:
            suspect, notes = _resolve(target, evidence)
            if suspect not in subjects:
                subjects.append(suspect)
    of_node = {finding.row.key: finding for finding in node_findings(evidence, policy)}
    programs = failing_programs(evidence, policy)
    verdicts = []
    for subject in subjects:
        mine = subject == suspect
        found = gpu_findings(subject, evidence, policy, evidence.alert if mine else None, programs)
        of_node.update({finding.row.key: finding for finding in found if finding.row.scope == "node"})
        own = [finding for finding in found if finding.row.scope != "node"]
        if own:
            verdicts.append(_assemble(subject, own, evidence, policy, notes if mine else []))
    of_node.update({finding.row.key: finding for finding in _unplaced(evidence, policy, subjects)} if suspect is None else {})
    if of_node:
        verdicts.append(_node(evidence, policy, list(of_node.values())))
    return sorted(verdicts, key=_weight, reverse=True)


def _weight(verdict: Verdict) -> tuple[int, int, int]:
    return ACTIONS.index(verdict["action"]), REPAIRS.index(verdict["repair"]), _CERTAINTIES.index(verdict["certainty"])


def _node(evidence: Evidence, policy: Policy, found: list[Finding]) -> Verdict:
    if not found and evidence.silent:
        found = [Finding(policy.states["node_silent"], "none", "node", policy.states["node_silent"].meaning)]
    return _assemble(None, found, evidence, policy, [])


def _unplaced(evidence: Evidence, policy: Policy, subjects: Sequence[Subject]) -> list[Finding]:
    """An alert that names no GPU: confirmed by any GPU of the node that has its Xid, else judged for the node."""
    alert = evidence.alert
    if alert is None or (
        alert.code is not None and any(event.code == alert.code for events in evidence.events.values() for event in events)
    ):
        return []
    if not evidence.silent and subjects and all(is_complete(subject, evidence) for subject in subjects):
        return []
    found = gpu_findings(Subject(), evidence, policy, alert, {})
    return [finding for finding in found if finding.source == "alert"]


def _subjects(evidence: Evidence) -> list[Subject]:
    """Every GPU of the node: those that NVML lists, and those that only the kernel log still knows."""
    subjects = [_of_gpu(evidence, number) for number in range(len(evidence.gpus))]
    known = {subject.pci_bus_id for subject in subjects}
    return subjects + [_by_pci(pci, evidence) for pci in evidence.events if pci is not None and pci not in known]


def _of_gpu(evidence: Evidence, number: int) -> Subject:
    gpu = evidence.gpus[number]
    identity = evidence.identities.get(gpu.pci_bus_id or "", {})
    return Subject(gpu.uuid or identity.get("uuid"), gpu.pci_bus_id, gpu.serial or identity.get("serial"), gpu.index, gpu)


def _by_pci(pci: str, evidence: Evidence, uuid: Optional[str] = None) -> Subject:
    identity = evidence.identities.get(pci, {})
    return Subject(uuid or identity.get("uuid"), pci, identity.get("serial"))


def _resolve(target: Target, evidence: Evidence) -> tuple[Subject, list[str]]:
    """The GPU that is meant, and what people should know about how it was found."""
    subjects = [_of_gpu(evidence, number) for number in range(len(evidence.gpus))]
    for subject in subjects:
        if target.uuid is not None and (target.uuid == subject.uuid or (subject.gpu and target.uuid in subject.gpu.mig_uuids)):
            return subject, []
    if target.uuid is not None:
        pci = next((pci for pci, identity in evidence.identities.items() if identity.get("uuid") == target.uuid), target.pci_bus_id)
        return (_by_pci(pci, evidence, target.uuid) if pci else Subject(uuid=target.uuid)), []
    if target.pci_bus_id is not None:
        return next((one for one in subjects if one.pci_bus_id == target.pci_bus_id), _by_pci(target.pci_bus_id, evidence)), []
    return _by_index(target, subjects, evidence)


def _by_index(target: Target, subjects: Sequence[Subject], evidence: Evidence) -> tuple[Subject, list[str]]:
    """An index is a hint: the numbers move when a GPU is lost, so a GPU that has the alert's own Xid is believed over it."""
    hinted = next((one for one in subjects if one.index == target.index), Subject(index=target.index))
    notes = ["The GPU was named by its index %s only, which proves nothing." % target.index]
    code = evidence.alert.code if evidence.alert is not None else None
    have = [one for one in _subjects(evidence) if code is not None and code in _codes_of(one, evidence)]
    if len(have) != 1 or (hinted.pci_bus_id is not None and have[0].pci_bus_id == hinted.pci_bus_id):
        return hinted, notes
    notes.append("Xid %s is logged for %s alone, so that GPU is judged." % (code, have[0].uuid or have[0].pci_bus_id))
    return have[0], notes


def _codes_of(subject: Subject, evidence: Evidence) -> list[Optional[int]]:
    return [event.code for event in subject.events(evidence).counting]


def _assemble(subject: Optional[Subject], found: Sequence[Finding], evidence: Evidence, policy: Policy, notes: Sequence[str]) -> Verdict:
    deciding = max((one for one in found if one.decides), key=_order, default=None)
    if deciding is None:
        deciding = _nothing(subject, evidence)
    row, by_index = deciding.row, bool(notes)
    certainty = deciding.certainty
    if by_index and deciding.source == "alert" and certainty == "certain":
        certainty = "likely"  # that the fault is this GPU's rests on the index alone
    subject_or_none = subject or Subject()
    gi, ci = _instance(deciding, subject_or_none, evidence)
    return {
        "schema_version": SCHEMA_VERSION,
        "policy_version": policy.version,
        "node": evidence.node,
        "node_uid": evidence.node_uid,
        "gpu_uuid": subject_or_none.uuid,
        "pci_bus_id": subject_or_none.pci_bus_id,
        "serial": subject_or_none.serial,
        "gi": gi,
        "ci": ci,
        "domain": row.domain,
        "scope": "node" if subject is None else row.scope,
        "action": row.action,
        "repair": row.repair,
        "certainty": certainty,
        "evict_blind": row.evict_blind,
        "reasons": _reasons(subject_or_none, deciding, found, evidence, policy, notes),
        "evidence": [_shown(one, subject_or_none, evidence) for one in found],
        "missing": [{"source": source, "why": why} for source, why in evidence.missing],
        "suspects": _suspects(subject_or_none, deciding),
        "xids": sorted({code for one in found for code in one.codes}),
    }


def _order(finding: Finding) -> tuple[int, int, int, int]:
    return (*finding.row.rank, _CERTAINTIES.index(finding.certainty))


def _nothing(subject: Optional[Subject], evidence: Evidence) -> Finding:
    subjects = [subject] if subject is not None else _subjects(evidence)
    complete = bool(subjects) and all(is_complete(one, evidence) for one in subjects)
    return Finding(_WELL if complete else _UNSEEN, "certain" if complete else "none", "nvml", (_WELL if complete else _UNSEEN).meaning)


def _reasons(
    subject: Subject, deciding: Finding, found: Sequence[Finding], evidence: Evidence, policy: Policy, notes: Sequence[str]
) -> list[str]:
    """What somebody who is woken by this wants to read, the decisive first."""
    reasons = [deciding.says]
    if deciding.row.because:
        reasons.append(deciding.row.because)
    if deciding.row.rationale:
        reasons.append("Policy %s: %s" % (policy.version, deciding.row.rationale))
    for other in found:
        if other is not deciding:
            reasons.append("%s: %s" % ("Also seen" if other.decides else "The driver speaks for", other.says))
    reasons += notes
    past = len(subject.events(evidence).past)
    if past:
        reasons.append("%d older lines do not count: they are of an earlier boot or before the last release." % past)
    if evidence.alert is not None and is_past(evidence.alert, subject, evidence):
        reasons.append("The alert %s does not count: it began before this boot or before the last release." % evidence.alert.name)
    if evidence.alert is not None and evidence.alert.hint:
        reasons.append("The alert %s was over when somebody looked, so it proves nothing by itself." % evidence.alert.name)
    reasons += ["Could not be read: %s (%s)." % (source, why) for source, why in evidence.missing]
    return reasons


def _shown(finding: Finding, subject: Subject, evidence: Evidence) -> dict[str, Any]:
    times = [event.time for event in finding.events if event.time is not None]
    alert: Optional[Alert] = evidence.alert if finding.source == "alert" else None
    return {
        "source": finding.source,
        "time": show_time(max(times) if times else alert.starts_at if alert is not None else evidence.collected_at),
        "boot_id": evidence.boot_id,
        "gpu_uuid": subject.uuid,
        "fact": finding.says,
    }


def _instance(deciding: Finding, subject: Subject, evidence: Evidence) -> tuple[Optional[int], Optional[int]]:
    """The MIG instance, where all events of the deciding finding name the same one."""
    if deciding.row.scope not in _ONE_PROGRAM:
        return None, None
    named = {(event.gi, event.ci) for event in deciding.events}
    if not named and subject.gpu is not None:  # only an alert, which may name the instance by its UUID
        target = evidence.target if evidence.target.named else evidence.alert.target if evidence.alert is not None else evidence.target
        named = {subject.gpu.mig_uuids.get(target.uuid or "", (None, None))}
    return next(iter(named)) if len(named) == 1 else (None, None)


def _suspects(subject: Subject, deciding: Finding) -> list[dict[str, Any]]:
    """Whom the Xid lines name. Under MPS any client may be named, so all clients are suspects and none is a culprit."""
    gpu = subject.gpu
    if deciding.row.domain == "application" and gpu is not None and gpu.mps_active:
        return [_suspect(process, None) for process in gpu.mps_clients()]
    if deciding.row.scope not in _ONE_PROGRAM and deciding.row.key != "repeats":
        return []
    found: dict[int, dict[str, Any]] = {}
    for event in deciding.events:
        if event.pid is not None and event.pid not in found:
            found[event.pid] = _suspect(process_of(event, gpu) if gpu is not None else None, event)
    return list(found.values())


def _suspect(process: Optional[Process], event: Optional[Event]) -> dict[str, Any]:
    name = event.process_name if event is not None else None
    if process is None:
        return {"pid": event.pid if event is not None else None, "start_time": None, "container": None, "pod_uid": None, "name": name}
    container = process.container
    return {
        "pid": process.pid,
        "start_time": process.start_text,
        "container": container.get("id") if container is not None else None,
        "pod_uid": container.get("pod_uid") if container is not None else None,
        "name": process.name or name,
    }
