# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.keys import STATES
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.records import next_command, place


def test_where_to_walk_to():
    assert place({"node": "gpu-1", "gpu": "-"}) == "gpu-1"
    assert place({"node": "gpu-1", "gpu": "GPU-1", "serial": "165", "slot": "4"}) == "gpu-1, GPU GPU-1, serial 165, slot 4"


@pytest.mark.parametrize("verdict", [None, {"quarantine_stands": True}])
@pytest.mark.parametrize("state", sorted(STATES))
def test_an_open_incident_says_what_to_type_next(state, verdict):
    command = next_command({"state": state, "id": "i1", "verdict": verdict})
    assert state != "held_for_human" or ("release" in command) == bool(verdict)
    assert command.startswith("ansible-playbook gpuops.remediation.") == (
        state not in ("no_action", "fence_lifted", "cancelled_by_human", "released")
    )


def test_a_groups_incident_is_released_by_who_has_looked():
    assert "release" in next_command({"kind": "group", "state": "held_for_human", "id": "i1", "verdict": None})
