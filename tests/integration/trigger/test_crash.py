# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Nothing is lost, done twice or left running, whoever is killed and wherever a run stands. `make crash-matrix` has all the other cases."""

from __future__ import annotations

from signal import SIGKILL

import pytest
from crash import BOUNDARIES, Case, Crashes
from loop import Controller


@pytest.mark.timeout(900)
def test_killed_at_every_boundary(tmp_path):
    """The playbook everywhere, the rulebook before, in and after the act; then all at once amid several nodes, with a new alert right after.

    One reconcile takes up all of it.
    """
    with Controller(tmp_path / "controller") as controller:
        controller.ledger(write=True).set_mode("act", "tests", "the test needs it")
        with Crashes(controller).running() as crashes:
            for boundary in BOUNDARIES:
                crashes.crash(Case("playbook", SIGKILL, boundary))
            for boundary in ("accepted", "written ahead", "verify"):
                crashes.crash(Case("rulebook", SIGKILL, boundary))
            everything = Case("group", SIGKILL, "diagnose")
            crashes.crash(everything, nodes=3)
            crashes.another(everything)
            crashes.reconcile()
            assert crashes.faults() == {}
