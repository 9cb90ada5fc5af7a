# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Times: aware, in UTC, and as text the way Alertmanager writes them."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from typing import Any, Optional

_ISO = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?(?:[Zz]|([+-])(\d\d):?(\d\d))",
    re.ASCII,
)


def utc_now() -> datetime:
    return datetime.now(timezone.utc)


def iso(time: Optional[datetime]) -> Optional[str]:
    """`2026-11-29T20:19:40.555Z`"""
    if time is None:
        return None
    return time.astimezone(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def as_written(time: datetime) -> datetime:
    """What `iso` keeps of it: who goes by the text then stands in the same order as who goes by the time."""
    return time.replace(microsecond=time.microsecond // 1000 * 1000)


def from_iso(text: Any) -> Optional[datetime]:
    """The time that an RFC 3339 text names, or None. Python 3.9's fromisoformat knows neither Z nor nanoseconds."""
    match = _ISO.fullmatch(text) if isinstance(text, str) else None
    if not match:
        return None
    year, month, day, hour, minute, second = (int(part) for part in match.groups()[:6])
    fraction, sign, hours, minutes = match.groups()[6:]
    offset = timedelta(hours=int(hours), minutes=int(minutes)) if sign else timedelta()
    try:
        time = datetime(year, month, day, hour, minute, second, int((fraction or "0").ljust(6, "0")[:6]), timezone.utc)
        return time + offset if sign == "-" else time - offset
    except (ValueError, OverflowError):
        return None
