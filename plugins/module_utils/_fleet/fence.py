# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""The fence: an early taint on what the fleet says, before anybody has asked the node.

Only for rows that the policy calls certain without the node, and where Prometheus is configured only if it confirms them. Nothing running is
touched, and the diagnosis confirms the fence or lifts it. It needs no lock, being one compare-and-swap a node whose change is written ahead (S5).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Optional, Protocol

from ansible_collections.gpuops.remediation.plugins.module_utils._diagnosis import witness
from ansible_collections.gpuops.remediation.plugins.module_utils._diagnosis.verdict import diagnose
from ansible_collections.gpuops.remediation.plugins.module_utils._errors import RemediationError
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.modes import TAINT, allows
from ansible_collections.gpuops.remediation.plugins.module_utils._kube import fences
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.client import KubeApi
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.deadline import Deadline
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.device_fences import DeviceFence, fence_devices
from ansible_collections.gpuops.remediation.plugins.module_utils._xid.policy import QUARANTINES, Policy

Record = Mapping[str, Any]


class Prometheus(Protocol):
    def instant(self, query: str) -> Sequence[witness.Sample]: ...


class Ledger(fences.Ledger, Protocol):
    def mode(self) -> str: ...

    def now(self) -> datetime: ...

    def detected(self, told: Mapping[str, tuple[Mapping[str, Any], str]]) -> None: ...


@dataclass(frozen=True)
class Weighed:
    """What the fleet says of one incident's alert, and whether that is enough for a fence."""

    incident: Record
    verdict: Record
    word: Optional[witness.Word]  # None where no Prometheus is configured

    @property
    def fences(self) -> bool:
        return self.word is None or self.word.says == witness.CONFIRMED

    @property
    def reason(self) -> str:
        return "%s %s" % (" ".join(self.verdict["reasons"]), "No Prometheus is configured." if self.word is None else self.word.why + ".")


def certain_alone(alert: Record, policy: Policy) -> Optional[Record]:
    """The verdict on an alert's word alone, if the policy calls that certain and asks for a quarantine."""
    if alert.get("status") != "firing" or alert.get("xid") is None:
        return None
    named = {"uuid": alert.get("gpu_uuid"), "pci_bus_id": alert.get("pci_bus_id"), "index": alert.get("gpu_index")}
    verdict = diagnose({"node": {"name": alert["node"]}, "gpu": named, "alert": alert}, policy)
    return verdict if verdict["action"] in QUARANTINES and verdict["certainty"] == "certain" else None


def weigh(incidents: Iterable[Record], policy: Policy, prometheus: Optional[Prometheus], now: datetime) -> list[Weighed]:
    """Those that are certain, each with what Prometheus says of it; one query for all of them."""
    certain = [(incident, certain_alone(incident["alert"], policy)) for incident in incidents if incident.get("alert")]
    found = [(incident, verdict) for incident, verdict in certain if verdict]
    if not prometheus or not found:
        return [Weighed(incident, verdict, None) for incident, verdict in found]
    try:
        samples = prometheus.instant(witness.query(incident["node"] for incident, _verdict in found))
    except RemediationError as error:
        return [Weighed(incident, verdict, witness.Word(witness.MISSING, str(error))) for incident, verdict in found]
    return [Weighed(incident, verdict, witness.ask(incident["alert"], samples, now)) for incident, verdict in found]


def fence(
    ledger: Ledger,
    api: KubeApi,
    policy: Policy,
    incidents: Sequence[Record],
    prometheus: Optional[Prometheus],
    deadline: Deadline,
    *,
    last: bool = True,
    check_mode: bool = False,
) -> list[dict[str, Any]]:
    """Fence what is certainly lost among new incidents that nobody has looked at yet; a result for each that was weighed.

    What was fenced or contradicted is stored with the stage detect. All else is too where this is the last to try, or whoever comes next tries again.
    """
    fresh = [one for one in incidents if _is_fresh(one)]
    if not fresh or not allows(ledger.mode(), TAINT):
        return []
    weighed = weigh(fresh, policy, prometheus, ledger.now())
    fenced = _fence_each([one for one in weighed if one.fences], ledger, api, deadline, check_mode)
    answers = {id(one): answer for one, answer in fenced}
    told = [_told(one, answers.get(id(one), {})) for one in weighed]
    names = ("fenced", "witness", "error_kind")
    settled = [one for one in told if last or one["fenced"] or one["witness"] == witness.CONTRADICTED]
    ledger.detected({one["incident_id"]: ({name: one[name] for name in names}, one["reason"]) for one in settled})
    return told


def _is_fresh(incident: Record) -> bool:
    """Opened, not weighed, and nothing since."""
    stages = incident["stages"]
    weighed = stages.get("detect", {}).get("data")
    return incident["kind"] == "fault" and incident["round"] == 1 and not (incident["resume"] or weighed or set(stages) - {"detect"})


def _fence(target: Record) -> fences.Fence:
    return fences.Fence(target["name"], target["uid"], target["incident_id"], target["groups"])


def _told(one: Weighed, result: Record) -> dict[str, Any]:
    error = result.get("error")
    return {
        "incident_id": one.incident["id"],
        "node": one.incident["node"],
        "fenced": bool(result) and not error,
        "changed": result.get("changed", False),
        "reason": "%s Not fenced: %s" % (one.reason, error) if error else one.reason,
        "witness": one.word.says if one.word else None,
        "error_kind": result.get("error_kind"),
        "diff": result.get("diff") or {},
    }


def _fence_each(
    wanted: Sequence[Weighed], ledger: Ledger, api: KubeApi, deadline: Deadline, check_mode: bool
) -> list[tuple[Weighed, dict[str, Any]]]:
    """The smallest thing that holds the fault: the GPU where it can be taken out alone, else its node."""
    of_gpus = [one for one in wanted if one.verdict["action"] == "quarantine_gpu" and _gpu(one)]
    answers = fence_devices(api, ledger, [DeviceFence(_fence(one.incident["target"]), _gpu(one)) for one in of_gpus], deadline, check_mode)
    alone = [(one, answer) for one, answer in zip(of_gpus, answers) if answer is not None]
    done = {id(one) for one, _answer in alone}
    of_nodes = [one for one in wanted if id(one) not in done]
    return [
        *alone,
        *zip(of_nodes, fences.fence_all(api, ledger, [_fence(one.incident["target"]) for one in of_nodes], deadline, check_mode)),
    ]


def _gpu(one: Weighed) -> list[str]:
    return [name for name in (one.verdict["gpu_uuid"], one.verdict["pci_bus_id"]) if name]
