# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._xid.times import parse_time, show_time

MOMENT = datetime(2026, 11, 29, 20, 19, 40, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    "text, moment",
    [
        ("2026-11-29T20:19:40Z", MOMENT),
        ("2026-11-29T20:19:40.555Z", MOMENT + timedelta(milliseconds=555)),
        ("2026-11-29T20:19:40.555123456Z", MOMENT + timedelta(microseconds=555123)),
        ("2026-11-29T20:19:40,5+00:00", MOMENT + timedelta(milliseconds=500)),
        ("2026-11-29 21:49:40+0130", MOMENT),
        ("2026-11-29T18:19:40-02:00", MOMENT),
        (" 2026-11-29T20:19:40 UTC ", MOMENT),
        ("2026-11-29T20:19:40", None),
        ("2026-13-29T20:19:40Z", None),
        ("0001-01-01T00:00:00+14:00", None),
        ("tomorrow", None),
        (17, None),
    ],
)
def test_parse_time(text, moment):
    assert parse_time(text) == moment


def test_no_zone_can_mean_utc():
    assert parse_time("2026-11-29T20:19:40", assume_utc=True) == MOMENT


def test_show_time():
    assert show_time(None) is None
    assert datetime.fromisoformat(show_time(MOMENT.astimezone(timezone(timedelta(hours=5))))) == MOMENT
