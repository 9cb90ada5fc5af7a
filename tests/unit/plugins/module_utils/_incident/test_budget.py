# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.budget import (
    BadLimit,
    Limits,
    after_waiting,
    deadline,
    grant,
    left,
)

NOW = datetime(2026, 11, 29, 12, tzinfo=timezone.utc)


def at(seconds):
    return NOW + timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "starts, due, late",
    [
        pytest.param(None, 720, 0, id="a run without an alert"),
        pytest.param(at(0), 720, 0, id="at once"),
        pytest.param(at(-60), 660, 0, id="in time"),
        pytest.param(at(-90), 630, 0, id="in time to the second"),
        pytest.param(at(-91), 630, 91, id="late"),
        pytest.param(at(-14310), 630, 14310, id="very late"),
        pytest.param(at(3600), 720, 0, id="a clock ahead of ours"),
    ],
)
def test_deadline(starts, due, late):
    found = deadline(NOW, starts, Limits())
    assert (found.at, found.detected_late_seconds) == (at(due), late)
    assert found.at - found.clock_at in (timedelta(seconds=720), timedelta(seconds=630))


def test_waiting_ends_with_a_fresh_630_seconds():
    assert after_waiting(NOW, Limits()) == at(630)


@pytest.mark.parametrize(
    "stage, remaining, seconds",
    [
        ("diagnose", 720, 180),
        ("diagnose", 100, 100),
        ("diagnose", 0, 0),
        ("diagnose", -50, 0),
        ("evict", 300, 240),
        ("taint", 300, 60),
        ("taint", 45, 45),
        ("taint", 10, 30),
        ("taint", -500, 30),
    ],
)
def test_a_stage_gets_its_limit_or_what_is_left(stage, remaining, seconds):
    """S16: a spent budget never skips the taint."""
    assert grant(stage, NOW, at(remaining), Limits()) == seconds


def test_the_loop_fits_into_its_time():
    stages = Limits().stage_seconds
    assert sum(stages[name] for name in ("isolate", "taint", "evict", "verify")) == 450
    assert stages["detect"] + stages["diagnose"] + 450 == Limits().total_seconds


def test_limits_that_differ():
    limits = Limits.of({"total_seconds": 900, "evict_seconds": "300", "taint_floor_seconds": 20})
    assert (limits.total_seconds, limits.stage_seconds["evict"], limits.taint_floor_seconds) == (900, 300, 20)
    assert limits.stage_seconds["diagnose"] == 180
    assert Limits.of({"taint_floor_seconds": 0}).taint_floor_seconds == 0
    assert Limits.of(None) == Limits()


@pytest.mark.parametrize(
    "given", [{"evict": 3}, {"nap_seconds": 3}, {"evict_seconds": "soon"}, {"total_seconds": None}, {"total_seconds": -1}]
)
def test_no_such_limit(given):
    with pytest.raises(BadLimit):
        Limits.of(given)


def test_left():
    assert (left(NOW, at(5)), left(NOW, at(-5))) == (5, 0)
