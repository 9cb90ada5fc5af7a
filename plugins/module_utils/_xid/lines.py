# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Kernel-log lines of the NVIDIA driver -> Xid events. Never raises: what is no event gives None.

A line counts only if the driver's words are its very beginning, after a prefix that a log is known to add: a program that gets
`NVRM: Xid ...` into the middle of somebody else's message reports nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._xid.recovery import recovery_from_text
from ansible_collections.gpuops.remediation.plugins.module_utils._xid.times import UTC, parse_time, show_time

Event = dict[str, Any]

_LONGEST = 8192  # the kernel's own limit is far below; what is longer is no kernel record and is cut

# --- what logs put before the message ---
_KMSG = re.compile(r"[0-9]{1,10},[0-9]{1,20},(?P<usec>[0-9]{1,15}),[^;]{0,80};")
_PREFIX = re.compile(
    r"(?:<[0-9]{1,3}>)?\s*"
    r"(?:\[\s*(?P<uptime>[0-9]{1,9}\.[0-9]{1,9})\]\s*"
    r"|\[[A-Z][a-z]{2} [A-Z][a-z]{2} [ 0-9]?[0-9] [0-9:]{8} [0-9]{4}\]\s*"
    r"|(?P<iso>[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9:]{8}(?:[.,][0-9]{1,9})?\s?(?:Z|UTC|[+-][0-9]{2}:?[0-9]{2})?)\s+"
    r"|[A-Z][a-z]{2} (?P<full>[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9:]{8}(?:\.[0-9]{1,9})? [A-Z]{3,5})\s+"
    r"|[A-Z][a-z]{2} [ 0-9]?[0-9] [0-9:]{8}(?:\.[0-9]{1,9})?\s+"
    r"|(?P<unix>[0-9]{9,11}\.[0-9]{1,9})\s+)?"
    r"(?:(?:[A-Za-z0-9._:-]{1,253}\s+)?kernel:\s+)?"
    r"(?:\[\s*(?P<inner>[0-9]{1,9}\.[0-9]{1,9})\]\s*)?"
    r"(?:\[\s*[TC][0-9]{1,10}\]\s*)?"
)

# --- the driver's messages ---
_XID = re.compile(r"NVRM:\s+Xid\s*\((?P<where>[^)]{0,200})\)\s*:\s*(?P<code>[0-9]{1,6})(?![0-9A-Za-z])[,\s]*(?P<text>.*)", re.DOTALL)
_SXID = re.compile(
    r"nvidia-nvswitch[0-9]{0,4}:?\s+SXid\s*\((?P<where>[^)]{0,200})\)\s*:\s*(?P<code>[0-9]{1,6})(?![0-9A-Za-z])[,\s]*(?P<text>.*)",
    re.DOTALL,
)
_LOST = re.compile(r"NVRM:\s+(?P<text>[^\n]{0,300}\bfallen off the bus\b.*)", re.DOTALL)
_PCI = re.compile(r"(?<![0-9a-fA-F])([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})(?:\.([0-7]))?(?![0-9a-fA-F])")
_INSTANCE = re.compile(r"\bGPU-(CI|I):\s*([0-9]{1,5})")
_PROCESS = re.compile(r"pid=(?P<pid>'<unknown>'|<unknown>|[0-9]{1,10})(?:,\s*name=(?P<name>.{0,256}?))?(?:,\s+|,?$)(?P<text>.*)", re.DOTALL)
_SEVERITY = re.compile(r"(?<![\w-])(non[- ]?fatal|fatal|severity\s+[01])(?!\w)", re.IGNORECASE)
_NVLINK = re.compile(r"(?P<unit>[A-Z][A-Z0-9_/]{2,40})\b")
_LINK = re.compile(r"\bLink\s+(-?[0-9]{1,3})\b")
_REGISTERS = re.compile(r"\(\s*(0x[0-9a-fA-F]{1,8}(?:[\s,]+0x[0-9a-fA-F]{1,8}){0,9})")
_CAUSE = re.compile(r"\bcaused by previous Xid ([0-9]{1,6})\b", re.IGNORECASE)
_GPU_AT = re.compile(r"NVRM:\s+GPU at (?:PCI:)?(?P<where>[0-9a-fA-F:.]{1,20}): (?P<uuid>GPU-[0-9a-fA-F-]{36})")
_SERIAL = re.compile(r"NVRM:\s+GPU Board Serial Number:\s*(?P<serial>[0-9A-Za-z]{1,32})")

_NVLINK5 = range(144, 151)


def normalize_pci(text: Any) -> Optional[str]:
    """`00000000:3B:00.0`, `PCI:0000:3b:00`, ... -> `0000:3b:00.0`; None where there is no PCI address."""
    found = _PCI.search(text) if isinstance(text, str) else None
    if found is None:
        return None
    domain, bus, device, function = found.groups()
    return "{:04x}:{}:{}.{}".format(int(domain, 16), bus.lower(), device.lower(), function or "0")


def parse_line(text: Any, *, boot_time: Optional[datetime] = None, boot_id: Optional[str] = None) -> Optional[Event]:
    """One line of `/dev/kmsg`, dmesg, syslog or journalctl (short forms and JSON) -> event.

    `boot_time` dates lines that carry only the seconds since boot; without it, and where a log prints local time, `time` is None.
    """
    if not isinstance(text, str):
        return None
    raw = text[:_LONGEST].rstrip("\n\x00")
    message, time, boot_id = _unwrap(raw, boot_time, boot_id)
    for grammar, read in ((_XID, _read_xid), (_SXID, _read_sxid), (_LOST, _read_lost)):
        found = grammar.match(message)
        if found is not None:
            # The records of /dev/kmsg are followed by lines with the device's properties; they are no part of the message.
            words = found.group("text").split("\n", 1)[0].strip()
            event = _event(raw, time, boot_id)
            read(event, found, words)
            return event
    return None


def parse_lines(lines: Iterable[Any], *, boot_time: Optional[datetime] = None, boot_id: Optional[str] = None) -> list[Event]:
    """The events among the lines, in their order."""
    events = (parse_line(line, boot_time=boot_time, boot_id=boot_id) for line in lines)
    return [event for event in events if event is not None]


def gpu_identities(lines: Iterable[Any]) -> dict[str, dict[str, Optional[str]]]:
    """PCI address -> UUID and serial, which the driver prints before a GPU's first Xid: who a GPU is that NVML has lost."""
    known: dict[str, dict[str, Optional[str]]] = {}
    latest: Optional[dict[str, Optional[str]]] = None
    for line in lines:
        message = _unwrap(line[:_LONGEST], None, None)[0] if isinstance(line, str) else ""
        found = _GPU_AT.match(message)
        pci = normalize_pci(found.group("where")) if found else None
        if found and pci:
            latest = known[pci] = {"uuid": found.group("uuid").replace("gpu-", "GPU-"), "serial": None}
            continue
        serial = _SERIAL.match(message)
        if serial and latest is not None:
            latest["serial"] = serial.group("serial")
        latest = None
    return known


def _event(raw: str, time: Optional[datetime], boot_id: Optional[str]) -> Event:
    return {
        "source": "kernel_log",
        "time": show_time(time),
        "boot_id": boot_id,
        "pci_bus_id": None,
        "code": None,
        "sxid": False,
        "fallen_off_bus": False,
        "pid": None,
        "process_name": None,
        "gi": None,
        "ci": None,
        "severity": None,
        "recovery_action": None,
        "caused_by": None,
        "nvlink": None,
        "text": "",
        "raw": raw,
    }


def _read_xid(event: Event, found: re.Match[str], words: str) -> None:
    event["code"] = int(found.group("code"))
    event["pci_bus_id"] = normalize_pci(found.group("where"))
    for kind, number in _INSTANCE.findall(found.group("where")):
        event["gi" if kind == "I" else "ci"] = int(number)
    process = _PROCESS.match(words)
    if process:
        event["pid"] = int(process.group("pid")) if process.group("pid").isdigit() else None
        event["process_name"] = _known(process.group("name"))
        words = process.group("text").strip()
    cause = _CAUSE.search(words)
    event.update(
        text=words,
        severity=_severity(words),
        caused_by=int(cause.group(1)) if cause else None,
        fallen_off_bus="fallen off the bus" in words,
        recovery_action=recovery_from_text(words) if event["code"] == 154 else None,
        nvlink=_nvlink(words) if event["code"] in _NVLINK5 else None,
    )


def _read_sxid(event: Event, found: re.Match[str], words: str) -> None:
    event.update(
        sxid=True, code=int(found.group("code")), pci_bus_id=normalize_pci(found.group("where")), text=words, severity=_severity(words)
    )


def _read_lost(event: Event, found: re.Match[str], words: str) -> None:
    event.update(fallen_off_bus=True, pci_bus_id=normalize_pci(words), text=words)


def _known(name: Optional[str]) -> Optional[str]:
    name = (name or "").strip().strip("'")
    return None if name in ("", "<unknown>") else name


def _severity(words: str) -> Optional[str]:
    """The worst that the line says; a line that says nothing has none."""
    said = {word.lower() for word in _SEVERITY.findall(words)}
    if any(word == "fatal" or word.endswith("1") for word in said):
        return "fatal"
    return "nonfatal" if said else None


def _nvlink(words: str) -> dict[str, Any]:
    """`NETIR_LINK_EVT Fatal XC0 i0 Link 09 (intrInfo errorStatus ...)`; parts that are not in the line are None."""
    unit, link, registers = _NVLINK.match(words), _LINK.search(words), _REGISTERS.search(words)
    values = re.findall(r"0x[0-9a-fA-F]+", registers.group(1)) if registers else []
    return {
        "unit": unit.group("unit") if unit else None,
        "link": int(link.group(1)) if link else None,
        "intr_info": values[0].lower() if values else None,
        "error_status": values[1].lower() if len(values) > 1 else None,
        "subcode": (int(values[0], 16) >> 20) & 0x3F if values else None,
    }


def _unwrap(raw: str, boot_time: Optional[datetime], boot_id: Optional[str]) -> tuple[str, Optional[datetime], Optional[str]]:
    """The message without what the log put before it, its time, its boot."""
    if raw.startswith("{"):
        return _unwrap_json(raw, boot_id)
    record = _KMSG.match(raw)
    if record:
        return raw[record.end() :], _since(boot_time, int(record.group("usec")) / 1e6), boot_id
    prefix = _PREFIX.match(raw)
    if prefix is None:  # every part of it is optional, so this is only for the type checker
        return raw, None, boot_id
    uptime = prefix.group("uptime") or prefix.group("inner")
    time = parse_time(prefix.group("iso") or prefix.group("full"))
    if time is None and prefix.group("unix"):
        time = datetime.fromtimestamp(float(prefix.group("unix")), UTC)
    if time is None and uptime:
        time = _since(boot_time, float(uptime))
    return raw[prefix.end() :], time, boot_id


def _unwrap_json(raw: str, boot_id: Optional[str]) -> tuple[str, Optional[datetime], Optional[str]]:
    """One entry of `journalctl -o json`; only the kernel's own: any user can log under the name "kernel"."""
    try:
        entry = json.loads(raw)
    except (ValueError, RecursionError):
        return "", None, boot_id
    message = entry.get("MESSAGE")
    if not isinstance(message, str) or entry.get("_TRANSPORT") != "kernel":
        return "", None, boot_id
    stamp = str(entry.get("__REALTIME_TIMESTAMP"))
    time = datetime.fromtimestamp(int(stamp) / 1e6, UTC) if re.fullmatch(r"[0-9]{1,17}", stamp) else None
    boot = re.fullmatch(r"[0-9a-f]{32}", str(entry.get("_BOOT_ID")))
    if boot:  # journald writes it without the dashes of /proc/sys/kernel/random/boot_id
        text = boot.group()
        boot_id = "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
    return message, time, boot_id


def _since(boot_time: Optional[datetime], seconds: float) -> Optional[datetime]:
    try:
        return None if boot_time is None else boot_time + timedelta(seconds=seconds)
    except OverflowError:
        return None
