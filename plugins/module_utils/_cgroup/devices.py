# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Which devices may be opened: the list, and its form in the map that the kernel's program asks.

The program looks for the device itself, then for its major number, then for all devices. What it finds nowhere may be opened.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._errors import RemediationError

ANY = 0xFFFFFFFF
_KINDS = {"b": 1, "c": 2}  # BPF_DEVCG_DEV_BLOCK, BPF_DEVCG_DEV_CHAR
_LETTERS = {number: letter for letter, number in _KINDS.items()}
_KEY, _VERDICT = struct.Struct("=III"), struct.Struct("=I")
_TEXT = re.compile(r"([bc]) (\d+):(\d+|\*)")
_LARGEST_MAJOR, _LARGEST_MINOR = (1 << 12) - 1, (1 << 20) - 1


class BadDevice(RemediationError):
    kind = "bad_device"


class Device(NamedTuple):
    """`c` or `b`, and the numbers; no minor means every one."""

    kind: str
    major: int
    minor: Optional[int]

    def __str__(self) -> str:
        return f"{self.kind} {self.major}:{'*' if self.minor is None else self.minor}"

    @property
    def key(self) -> bytes:
        return _KEY.pack(_KINDS[self.kind], self.major, ANY if self.minor is None else self.minor)

    @classmethod
    def from_key(cls, key: bytes) -> Device:
        kind, major, minor = _KEY.unpack(key)
        return cls(_LETTERS[kind], major, None if minor == ANY else minor)

    @classmethod
    def parse(cls, text: str) -> Device | None:
        """`c 195:254`, or `c 136:*`; None for what is of another form."""
        found = _TEXT.fullmatch(text)
        if found is None:
            return None
        kind, major, minor = found[1], int(found[2]), None if found[3] == "*" else int(found[3])
        if major > _LARGEST_MAJOR or (minor or 0) > _LARGEST_MINOR:
            raise BadDevice(f"{text}: there are no such numbers")
        return cls(kind, major, minor)


# What every program may need, as systemd has it for DevicePolicy=closed.
PSEUDO_DEVICES = tuple(
    Device("c", major, minor)
    for major, minor in ((1, 3), (1, 5), (1, 7), (1, 8), (1, 9), (5, 0), (5, 2), *((major, None) for major in range(136, 144)))
)


@dataclass(frozen=True)
class Policy:
    """Of the character devices of the `guarded` majors, and with `deny_others` of all devices, only those `allowed` may be opened."""

    allowed: frozenset[Device]
    guarded: frozenset[int]
    deny_others: bool = False

    @classmethod
    def of(cls, allowed: Iterable[Device], guarded: Iterable[int], deny_others: bool) -> Policy:
        found = frozenset([*allowed, *(PSEUDO_DEVICES if deny_others else ())])
        whole = {device.major for device in found if device.kind == "c" and device.minor is None}
        return cls(found, frozenset(guarded) - whole, deny_others)

    def allows(self, device: Device) -> bool:
        if device in self.allowed or device._replace(minor=None) in self.allowed:
            return True
        return not (self.deny_others or (device.kind == "c" and device.major in self.guarded))

    def entries(self) -> dict[bytes, bytes]:
        allow, deny = _VERDICT.pack(1), _VERDICT.pack(0)
        everything = [_KEY.pack(kind, ANY, ANY) for kind in _LETTERS] if self.deny_others else []
        return {
            **dict.fromkeys(everything, deny),
            **{Device("c", major, None).key: deny for major in self.guarded},
            **{device.key: allow for device in self.allowed},
        }

    @classmethod
    def from_entries(cls, entries: Mapping[bytes, bytes]) -> Policy:
        allowed, guarded, deny_others = set(), set(), False
        for key, value in entries.items():
            _kind, major, _minor = _KEY.unpack(key)
            if _VERDICT.unpack(value)[0]:
                allowed.add(Device.from_key(key))
            elif major == ANY:
                deny_others = True
            else:
                guarded.add(major)
        return cls(frozenset(allowed), frozenset(guarded), deny_others)
