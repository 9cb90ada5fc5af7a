# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Many processes at once, and processes that die: what no test inside one process can show."""

from __future__ import annotations

import os
import signal
from collections import Counter

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.errors import BreakerTripped, LockHeld
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.store import Ledger
from forks import PROCESSES, at_once
from ledgers import alert, by_hand, opened, wanted


def side_by_side(count, work, url):
    return at_once(count, lambda number: work(Ledger.open(url), number))


def slot(ledger, number):
    try:
        ledger.take_slot(f"incident-{number}", f"gpu-{number}", {"fleet": 20})
        return "slot"
    except BreakerTripped:
        return "tripped"


def test_twenty_runs_leave_exactly_three(url):
    """S8"""
    Ledger.open(url).close()
    assert Counter(side_by_side(20, slot, url)) == {"slot": 3, "tripped": 17}
    pages = [one for one in Ledger.open(url).claim_notifications(1000) if one["topic"] == "breaker_tripped"]
    assert len(pages) == 1


def test_a_new_ledger_is_made_once(url):
    """The first runs of an installation may all come at once."""
    assert Counter(side_by_side(10, lambda ledger, number: ledger.mode(), url)) == {"observe": 10}


def test_one_fault_one_incident(url):
    Ledger.open(url).close()
    ids = side_by_side(10, lambda ledger, number: ledger.open_incident(wanted(alert(), received=ledger.now())).record["id"], url)
    assert len(set(ids)) == 1
    ids = side_by_side(10, lambda ledger, number: ledger.open_incident(by_hand(str(number % 2), now=ledger.now())).record["id"], url)
    assert len(set(ids)) == 2


def lock(ledger, number):
    try:
        return ledger.take_lock("gpu-1", f"run-{number}")
    except LockHeld:
        return None


def test_one_lock_one_holder(url):
    """S5"""
    Ledger.open(url).close()
    assert sorted(side_by_side(10, lock, url), key=str) == [1, *[None] * 9]


def test_each_notification_is_handed_out_once(url):
    ledger = Ledger.open(url)
    for number in range(20):
        ledger.notify(str(number), "x", {})
    claimed = side_by_side(5, lambda ledger, number: [one["id"] for one in ledger.claim_notifications(5)], url)
    assert len({one for ids in claimed for one in ids}) == sum(map(len, claimed)) == 20


def killed(url, work):
    """Runs `work(ledger)` in a process that ends by SIGKILL inside it."""

    def one():
        work(Ledger.open(url))
        raise AssertionError("still alive")

    process = PROCESSES.Process(target=one)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def test_killed_before_the_commit(url):
    """S9: it is as if it had never begun, and nobody waits for the dead."""
    ledger = Ledger.open(url)
    incident_id = opened(ledger, by_hand(now=ledger.now()))

    def write(mine):
        with mine.write() as connection:
            mine._notify(connection, "half", "x", {})
            die()

    killed(url, write)
    assert ledger.claim_notifications() == []
    assert ledger.start_stage(incident_id, "taint")["seconds"] > 0


def test_killed_between_the_write_and_its_commit(url):
    """S9: the change is on record as intended, with what was there before; the next run finishes it as one change."""
    ledger = Ledger.open(url)
    incident_id = opened(ledger, by_hand(now=ledger.now()))
    node = {"taint": None}

    def write(mine):
        mine.intend(incident_id, "node/gpu-1/taint/x", node["taint"], "ours")
        die()  # the write to the node may or may not have happened

    killed(url, write)
    node["taint"] = "ours"
    change = ledger.intend(incident_id, "node/gpu-1/taint/x", node["taint"], "ours")
    assert (change.status, change.before) == ("intended", None)
    ledger.applied(change.id, "ours")
    assert len(ledger.changes(incident_id)) == 1


@pytest.mark.parametrize("stage", ["diagnose", "isolate", "taint", "evict", "verify"])
def test_killed_after_every_stage(url, stage):
    """What had finished is skipped, the stage that was begun begins again, in its remaining time."""
    ledger = Ledger.open(url)
    incident_id = opened(ledger, by_hand(now=ledger.now()))
    stages = ["diagnose", "isolate", "taint", "evict", "verify"]

    def work(mine):
        for name in stages:
            mine.start_stage(incident_id, name)
            if name == stage:
                die()
            mine.finish_stage(incident_id, name, "ok", {"by": os.getpid()})

    killed(url, work)
    again = [ledger.start_stage(incident_id, name)["skip"] for name in stages]
    assert again == [stages.index(name) < stages.index(stage) for name in stages]
    assert ledger.incident(incident_id)["stages"][stage]["attempts"] == 2
