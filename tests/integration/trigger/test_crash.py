# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Nothing is lost, done twice or left running, whoever is killed and wherever a run stands. `make crash-matrix` has all the other cases.

In each test one reconcile takes up what all the deaths have left.
"""

from __future__ import annotations

from signal import SIGKILL

import pytest
from crash import BOUNDARIES, FENCED, TAINTED, Case, Crashes
from fleet import Fleet
from loop import Controller

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def controller(tmp_path):
    with Controller(tmp_path / "controller") as made:
        made.ledger(write=True).set_mode("act", "tests", "the test needs it")
        yield made


def test_the_playbook_is_killed_at_every_boundary(controller):
    with Crashes(controller).running() as crashes:
        for boundary in BOUNDARIES:
            crashes.crash(Case("playbook", SIGKILL, boundary))
        crashes.reconcile()
        assert crashes.faults() == {}


def test_the_rulebook_is_killed_at_every_boundary(controller):
    """And all at once amid two nodes, with a new alert right after."""
    with Crashes(controller).running() as crashes:
        for boundary in BOUNDARIES:
            crashes.crash(Case("rulebook", SIGKILL, boundary))
        everything = Case("group", SIGKILL, "diagnose")
        crashes.crash(everything, nodes=2)
        crashes.another(everything)
        crashes.reconcile()
        assert crashes.faults() == {}


def test_killed_between_a_taint_and_its_commit(cluster, tmp_path):
    """On a real control plane, with a pod to evict: the event source's fence, and the taint of a run that dies alone and with all others."""
    with Fleet(tmp_path / "controller", cluster) as fleet:
        fleet.set("act", nodes=10)
        with Crashes(fleet).running() as crashes:
            crashes.crash(Case("rulebook", SIGKILL, FENCED))
            crashes.crash(Case("playbook", SIGKILL, TAINTED))
            crashes.crash(Case("rulebook", SIGKILL, TAINTED))
            crashes.reconcile()
            assert crashes.faults() == {}
