# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.gpuops.remediation.plugins.filter.unit_steps import unit_steps

BEGAN = 1796055433  # Mon 2026-11-30 16:17:13 UTC
UNIT, OWN, SETTINGS = "a.service", "/units/a.service", "/etc/a.json"
NOTHING = {"pending": [], "reload": False, "restart": []}


def loaded(pending="no", state="active", unit=UNIT, stamp="Mon 2026-11-30 16:17:13 UTC"):
    status = {"NeedDaemonReload": pending, "ActiveState": state, "LoadState": "loaded", "ActiveEnterTimestamp": stamp}
    return {"item": unit, "status": status}


def steps(*units, own=BEGAN - 9.5, settings=BEGAN - 9.5, **more):
    """By when unit file and settings were written."""
    files = [{"stat": {"exists": True, "path": path, "mtime": mtime}} for path, mtime in ((OWN, own), (SETTINGS, settings))]
    files.append({"stat": {"exists": False}})
    return unit_steps(units, "/units", files, {UNIT: [SETTINGS]}, **more)


def test_what_runs_as_its_files_say_is_left():
    assert steps(loaded()) == NOTHING
    assert steps(loaded(), own=BEGAN + 0.9, settings=BEGAN + 0.9) == NOTHING, (
        "systemd tells no fractions; a run that wrote and started is done"
    )


@pytest.mark.parametrize("late", ["own", "settings"])
def test_what_was_started_before_its_files_were_written_is_restarted(late):
    """Whoever wrote them, in whichever run."""
    assert steps(loaded(), **{late: BEGAN + 1.0})["restart"] == [UNIT]


def test_what_this_run_has_written_needs_no_clock():
    assert steps(loaded(), written=[SETTINGS])["restart"] == [UNIT]


@pytest.mark.parametrize("state", ["inactive", "failed", "activating"])
def test_what_does_not_run_is_not_restarted(state):
    assert steps(loaded(state=state), settings=BEGAN + 5, written=[SETTINGS], own=BEGAN + 5) == NOTHING


def test_a_reload_that_is_pending_waits_until_it_is_allowed():
    """A restart would start the old unit again."""
    assert steps(loaded("yes"), own=BEGAN + 5, written=[OWN]) == {**NOTHING, "pending": [UNIT]}


def test_a_reload_that_is_allowed_later_is_made_for_what_an_earlier_run_has_written():
    """This run finds every file as it should be."""
    done = {"pending": [UNIT], "reload": True, "restart": [UNIT]}
    assert steps(loaded("yes"), own=BEGAN + 5, may_reload=True) == done
    assert steps(loaded(), may_reload=True) == NOTHING


def test_settings_are_taken_up_without_the_reload():
    assert steps(loaded("yes"), own=BEGAN + 5, settings=BEGAN + 5) == {"pending": [UNIT], "reload": False, "restart": [UNIT]}


def test_check_mode_foretells_both():
    """It has written nothing, so systemd sees nothing."""
    assert steps(loaded(), written=[OWN], foretell=True) == {**NOTHING, "pending": [UNIT]}
    assert steps(loaded(), written=[OWN], foretell=True, may_reload=True) == {"pending": [UNIT], "reload": True, "restart": [UNIT]}


def test_units_in_their_order_and_without_a_status_none():
    """Without systemd nobody was asked."""
    assert steps(loaded("yes"), loaded("yes", unit="b.timer"))["pending"] == [UNIT, "b.timer"]
    assert steps({"item": UNIT, "skipped": True}) == NOTHING


def test_another_time_zone_is_no_guess():
    with pytest.raises(ValueError, match="UTC"):
        steps(loaded(stamp="Mon 2026-11-30 17:17:13 CET"))
