# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Alertmanager's webhook message (version 4), judged alert by alert.

Only values that passed a strict pattern leave this file: label text is written by others and reaches playbooks (S1).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Optional, Union

from ansible_collections.gpuops.remediation.plugins.module_utils._errors import RemediationError
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.errors import BadMessage
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.times import from_iso, iso
from ansible_collections.gpuops.remediation.plugins.module_utils._names import ALERT_NAME

NODE_WIDE = "-"
MAX_TEXT = 16384  # characters of one label or annotation
MAX_MESSAGE_BYTES = 16 * 1024 * 1024
MAX_DEPTH = 50  # Alertmanager's own has five; Python's decoder and encoder give up at a depth that depends on who calls
MAX_TRUNCATED = 1_000_000_000  # sums of more have too many digits to be printed

LabelMap = Mapping[str, Sequence[str]]

# Where each fact stands, in the order of trust; the names of other exporters (dcgm) stand behind our own.
DEFAULT_LABELS: LabelMap = {
    "node": ("node", "Hostname"),
    "gpu_uuid": ("gpu_uuid", "UUID"),
    "pci_bus_id": ("pci_bus_id",),
    "gpu_index": ("gpu",),
    "gi": ("gpu_instance_id", "GPU_I_ID"),
    "xid": ("xid", "err_code"),
    # what its node had in common with others; Prometheus' own label job is the exporter's
    "job": ("hpc_job",),
    "nvlink_domain": ("nvlink_domain",),
    "rack": ("rack",),
}
GROUP_KINDS = ("job", "nvlink_domain", "rack")

_NODE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
_UUID = re.compile(r"(?:GPU|MIG)-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_PCI = re.compile(r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})(?:\.([0-7]))?")
_NUMBER = re.compile(r"[0-9]{1,4}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,127}")
_YEARS = range(2000, 2200)  # others, such as Go's zero time, do not fit every database
_GROUP = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._:/-]{0,126}[A-Za-z0-9])?")
_FINGERPRINT = re.compile(r"[0-9a-f]{8,64}")


class BadLabels(RemediationError):
    kind = "bad_alert_labels"


class HeldAlert(Exception):
    """Why one alert is held; names the field and never quotes its value."""


@dataclass(frozen=True)
class Alert:
    """What is believed of one alert. hint: it is over and was told of by a record of the past, so it proves nothing; somebody is to look (S3)."""

    fingerprint: str
    status: str
    starts_at: datetime
    node: str
    name: Optional[str] = None
    gpu_uuid: Optional[str] = None
    pci_bus_id: Optional[str] = None
    gpu_index: Optional[int] = None
    gi: Optional[int] = None
    xid: Optional[int] = None
    groups: Mapping[str, str] = field(default_factory=dict)  # by kind
    hint: bool = False

    @property
    def gpu(self) -> str:
        return gpu_name(self.gpu_uuid, self.pci_bus_id, self.gpu_index)

    def record(self) -> dict[str, Any]:
        return {**asdict(self), "starts_at": iso(self.starts_at)}


@dataclass(frozen=True)
class Message:
    """truncated: how many alerts Alertmanager left out. whole: all that the message says."""

    alerts: Sequence[Any]
    truncated: int = 0
    whole: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Judged:
    """One alert of a message: usable (`alert`) or held (`reason`)."""

    position: int
    fingerprint: str
    raw: Any = field(repr=False)
    alert: Optional[Alert] = None
    reason: Optional[str] = None


def label_map(given: Optional[Mapping[str, Union[str, Sequence[str]]]]) -> LabelMap:
    """The default map with what is given; a single name may stand without its list."""
    unknown = sorted(set(given or ()) - set(DEFAULT_LABELS))
    if unknown:
        raise BadLabels("alert_labels has no %s; it has %s" % (", ".join(unknown), ", ".join(DEFAULT_LABELS)))
    return {**DEFAULT_LABELS, **{fact: [names] if isinstance(names, str) else list(names) for fact, names in (given or {}).items()}}


def gpu_name(uuid: Optional[str], pci_bus_id: Optional[str], index: Optional[int]) -> str:
    """How an incident names a GPU before the node was asked; an index is never certain."""
    if uuid:
        return uuid
    if pci_bus_id:
        return "pci:" + pci_bus_id
    return NODE_WIDE if index is None else "index:%d" % index


def parse_message(text: bytes) -> Message:
    """The message's alerts, unjudged."""
    if len(text) > MAX_MESSAGE_BYTES:
        raise BadMessage("the message has %d bytes; more than %d are not read" % (len(text), MAX_MESSAGE_BYTES))
    try:
        body = json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise BadMessage(
            "the message is not JSON: %s" % (error if isinstance(error, json.JSONDecodeError) else type(error).__name__)
        ) from None
    if _depth_exceeds(body, MAX_DEPTH):
        raise BadMessage("the message is nested deeper than %d" % MAX_DEPTH)
    if not isinstance(body, dict) or not isinstance(body.get("alerts"), list):
        raise BadMessage("the message is not Alertmanager's: it has no list 'alerts'")
    if body.get("version") != "4":
        raise BadMessage("the message is not of Alertmanager's webhook version 4")
    return Message(body["alerts"], _truncated(body.get("truncatedAlerts")), body)


def _depth_exceeds(value: Any, most: int) -> bool:
    level = [value]
    for _depth in range(most):
        level = [
            inner
            for outer in level
            if isinstance(outer, (dict, list))
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, (dict, list))
        ]
        if not level:
            return False
    return True


def _truncated(count: Any) -> int:
    return max(0, min(count, MAX_TRUNCATED)) if type(count) is int else 0  # JSON's true is an int to Python


def judge_all(message: Message, labels: Optional[LabelMap] = None) -> Iterator[Judged]:
    """Each alert alone: what is wrong with one says nothing about the others (S2)."""
    for position, raw in enumerate(message.alerts):
        fingerprint = fingerprint_of(raw)
        try:
            yield Judged(position, fingerprint, raw, alert=judge(raw, fingerprint, labels))
        except HeldAlert as held:
            yield Judged(position, fingerprint, raw, reason=str(held))


def is_own(raw: Any) -> bool:
    """Whether it is one of our own notifications, which an Alertmanager may route back to us."""
    labels = raw.get("labels") if isinstance(raw, dict) else None
    return isinstance(labels, dict) and labels.get("alertname") == ALERT_NAME


def fingerprint_of(raw: Any) -> str:
    """Alertmanager's fingerprint (of the labels only), or our own of the whole alert where that is unusable."""
    given = raw.get("fingerprint") if isinstance(raw, dict) else None
    if isinstance(given, str) and _FINGERPRINT.fullmatch(given):
        return given
    return hashlib.sha256(json.dumps(raw, sort_keys=True).encode()).hexdigest()


def judge(raw: Any, fingerprint: str, label_map: Optional[LabelMap] = None) -> Alert:
    """The alert, or HeldAlert with the reason."""
    label_map = label_map or DEFAULT_LABELS
    if not isinstance(raw, dict):
        raise HeldAlert("the alert is not an object")
    labels, annotations = _texts(raw, "labels"), _texts(raw, "annotations")
    status = raw.get("status")
    if status not in ("firing", "resolved"):
        raise HeldAlert("its status is neither firing nor resolved")
    starts_at = from_iso(raw.get("startsAt"))
    if starts_at is None or starts_at.year not in _YEARS:
        raise HeldAlert("its startsAt is not a time that a fault can have")

    def find(fact: str, pattern: re.Pattern[str], what: str, *places: Mapping[str, str]) -> Optional[str]:
        for place in places:
            for name in label_map.get(fact, ()):
                value = place.get(name)
                if value:
                    if not pattern.fullmatch(value):
                        raise HeldAlert("label %s is not %s" % (name, what))
                    return value
        return None

    node = find("node", _NODE, "a node name", labels)
    if node is None:
        raise HeldAlert("no label names a node; looked for %s" % ", ".join(label_map.get("node", ())))
    uuid = find("gpu_uuid", _UUID, "the UUID of a GPU", labels)
    pci = find("pci_bus_id", _PCI, "a PCI address", labels)
    name = labels.get("alertname", "")
    return Alert(
        fingerprint=fingerprint,
        status=status,
        starts_at=starts_at,
        node=node,
        name=name if _NAME.fullmatch(name) else None,
        gpu_uuid=uuid,
        pci_bus_id=normal_pci(pci) if pci else None,
        gpu_index=_number(find("gpu_index", _NUMBER, "the index of a GPU", labels)),
        gi=_number(find("gi", _NUMBER, "the id of a GPU instance", labels)),
        xid=_number(find("xid", _NUMBER, "an Xid code", labels, annotations)),
        groups=dict(_groups(labels, label_map)),
        hint=raw.get("hint") is True,
    )


def _groups(labels: Mapping[str, str], label_map: LabelMap) -> Iterator[tuple[str, str]]:
    """A name that is not fit to be one is left out: the alert is good without it."""
    for kind in GROUP_KINDS:
        name = next((labels[label] for label in label_map.get(kind, ()) if labels.get(label)), "")
        if _GROUP.fullmatch(name):
            yield kind, name


def normal_pci(address: str) -> str:
    """`0000:19:00.0`, from any of the forms in use (`00000000:19:00.0`, `0000:19:00`)."""
    match = _PCI.fullmatch(address)
    if not match:
        raise ValueError("not a PCI address: %r" % address)
    domain, bus, device, function = match.groups()
    return "%04x:%s:%s.%s" % (int(domain, 16), bus.lower(), device.lower(), function or "0")


def _number(text: Optional[str]) -> Optional[int]:
    return int(text) if text else None


def _texts(raw: Mapping[str, Any], part: str) -> Mapping[str, str]:
    values = raw.get(part) or {}
    if not isinstance(values, dict):
        raise HeldAlert("its %s are not an object" % part)
    for value in values.values():
        if not isinstance(value, str):
            raise HeldAlert("one of its %s is not text" % part)
        if len(value) > MAX_TEXT:
            raise HeldAlert("one of its %s is longer than %d characters" % (part, MAX_TEXT))
    return values
