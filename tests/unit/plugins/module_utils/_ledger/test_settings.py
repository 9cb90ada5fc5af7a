# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.errors import BreakerTripped
from ledgers import opened


def test_a_new_ledger_observes(ledger):
    """S4"""
    assert ledger.mode() == "observe"


def test_the_mode_is_kept_with_who_and_why(ledger):
    """S4"""
    assert ledger.set_mode("fence", "jane", "first week")
    assert not ledger.set_mode("fence", "joe", "again")
    assert ledger.set_mode("act", "joe", "second week")
    assert ledger.mode() == "act"
    told = [(entry["value"], entry["who"], entry["why"]) for entry in ledger.settings_history() if entry["name"] == "mode"]
    assert told == [("act", "joe", "second week"), ("fence", "jane", "first week")]


def take(ledger, *nodes, groups=None):
    """The nodes that got a slot."""
    got = []
    for node in nodes:
        try:
            ledger.take_slot("i", node, groups)
            got.append(node)
        except BreakerTripped:
            pass
    return got


def test_three_nodes_and_then_none(ledger):
    """S8: sticky until reset, one page, whatever comes."""
    assert take(ledger, *"abcdefg") == ["a", "b", "c"]
    pages = [one for one in ledger.claim_notifications() if one["topic"] == "breaker_tripped"]
    assert len(pages) == 1
    assert "breaker_reset" in pages[0]["payload"]["next_command"]
    assert ledger.breaker()["tripped"]


def test_a_node_keeps_its_slot(ledger):
    """S8: one slot a node and window, however many writes, even while tripped."""
    assert take(ledger, *"abcd", *"abc") == [*"abc", *"abc"]


def test_the_window_moves_on(ledger, clock):
    assert take(ledger, *"abc") == [*"abc"]
    clock.on(601)
    assert take(ledger, *"defg") == [*"def"]
    clock.on(6000)
    assert take(ledger, "h") == [], "time alone does not reset it"


def test_a_reset_starts_a_new_count(ledger, clock):
    """S8"""
    take(ledger, *"abcd")
    clock.on(1)
    assert ledger.configure(None, None, True, "jane", "the switch is replaced")["breaker"]["tripped"] is False
    assert take(ledger, *"defg") == [*"def"]
    assert ledger.breaker()["tripped"]


def test_large_groups_and_small_ones(ledger):
    """S8: 5 % of the fleet, and still no more than 3 of one job."""
    assert len(take(ledger, *range(10), groups={"fleet": 100})) == 5
    assert ledger.breaker()["group"].startswith("fleet: more than 5 nodes")


def test_a_job_is_full_before_the_fleet(ledger):
    assert len(take(ledger, *range(10), groups={"fleet": 1000, "job": {"name": "train-7", "size": 16}})) == 3
    assert ledger.breaker()["group"].startswith("job train-7")


def test_the_breakers_numbers_are_set_for_all(ledger):
    before = ledger.configure(None, None, False, "", "")
    after = ledger.configure("act", {"nodes": 10, "percent": None, "window_seconds": None}, False, "jane", "ten nodes at once")
    assert (before["breaker"]["nodes"], after["breaker"]["nodes"], after["breaker"]["percent"], after["mode"]) == (3, 10, 5.0, "act")
    assert len(take(ledger, *range(20))) == 10


def test_an_incident_under_a_tripped_breaker(ledger):
    """S8: releases still work."""
    ledger.set_mode("act", "jane", "why")
    incident_id = opened(ledger)
    take(ledger, *"abcd")
    with pytest.raises(BreakerTripped) as error:
        ledger.take_slot(incident_id, "gpu-1")
    assert error.value.kind == "breaker_tripped"
    ledger.authorize(incident_id, "release")
