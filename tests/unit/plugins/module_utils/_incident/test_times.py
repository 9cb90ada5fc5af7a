# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.times import from_iso, iso, utc_now

NOON = datetime(2026, 11, 29, 12, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    "text, time",
    [
        ("2026-11-29T12:00:00Z", NOON),
        ("2026-11-29T12:00:00.000000000Z", NOON),
        ("2026-11-29T12:00:00.555Z", NOON + timedelta(milliseconds=555)),
        ("2026-11-29T12:00:00.123456789Z", NOON + timedelta(microseconds=123456)),
        ("2026-11-29T13:30:00+01:30", NOON),
        ("2026-11-29T07:00:00-0500", NOON),
        ("2026-11-29 12:00:00z", NOON),
        ("2026-11-29T12:00:00", None),
        ("2026-13-29T12:00:00Z", None),
        ("2026-11-29T25:00:00Z", None),
        ("0001-01-01T00:00:00+23:59", None),
        ("", None),
        (None, None),
        (1764417600, None),
    ],
)
def test_reading(text, time):
    assert from_iso(text) == time


def test_writing():
    assert iso(NOON + timedelta(milliseconds=555)) == "2026-11-29T12:00:00.555Z"
    assert iso(NOON.astimezone(timezone(timedelta(hours=2)))) == "2026-11-29T12:00:00.000Z"
    assert iso(None) is None
    assert from_iso(iso(utc_now())) <= utc_now()
