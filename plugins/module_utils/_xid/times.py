# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Times in evidence: ISO 8601 with any number of fraction digits (Go prints nine), `Z` or an offset; always UTC inside."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from typing import Any, Optional

UTC = timezone.utc

_ISO = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[T ]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:[.,]([0-9]{1,9}))?\s*(Z|UTC|[+-][0-9]{2}:?[0-9]{2})?"
)


def parse_time(text: Any, *, assume_utc: bool = False) -> Optional[datetime]:
    """The moment that `text` names. None for anything else, also for a time without a zone unless `assume_utc`."""
    found = _ISO.fullmatch(text.strip()) if isinstance(text, str) else None
    if found is None:
        return None
    *fields, fraction, zone = found.groups()
    if zone is None and not assume_utc:
        return None
    offset = timedelta(0)
    if zone and zone[0] in "+-":
        offset = timedelta(hours=int(zone[1:3]), minutes=int(zone[-2:])) * (-1 if zone[0] == "-" else 1)
    try:
        return datetime(*map(int, fields), int((fraction or "0").ljust(6, "0")[:6]), tzinfo=UTC) - offset  # type: ignore[misc, arg-type]
    except (ValueError, OverflowError):
        return None


def show_time(moment: Optional[datetime]) -> Optional[str]:
    """ISO 8601 in the form that `datetime.fromisoformat` of Python 3.9 reads back."""
    return None if moment is None else moment.astimezone(UTC).isoformat()
