# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._xid.recovery import (
    RECOVERY_ACTIONS,
    recovery_from_number,
    recovery_from_text,
    worst_recovery,
)


@pytest.mark.parametrize(
    "end, action",
    [
        ("0x0 (None)", "none"),
        ("0x1 (GPU Reset Required)", "gpu_reset"),
        ("0x1 (PF FLR)", "gpu_reset"),
        ("0x2 (Node Reboot Required)", "node_reboot"),
        ("0x2 (OS Reboot)", "node_reboot"),
        ("0x3 (Drain P2P)", "drain_p2p"),
        ("0x4 (Drain and Reset)", "drain_and_reset"),
        ("0x5 (Recover IMEX Domain)", "recover_imex_domain"),
        ("(DRAIN AND RESET)", "drain_and_reset"),
        ("0x1", "gpu_reset"),
        ("0x1 (New Words)", "gpu_reset"),
        ("0x63 (New Words)", "unknown"),
        ("(New Words)", "unknown"),
        ("nothing", None),
    ],
)
def test_texts(end, action):
    """Where driver branches changed the words, the number says it."""
    assert recovery_from_text("GPU recovery action changed from 0x7 (Whatever) to " + end) == action


def test_no_text():
    assert recovery_from_text("GPU has fallen off the bus.") is None


def test_numbers():
    assert [recovery_from_number(number) for number in range(8)] == list(RECOVERY_ACTIONS)
    assert recovery_from_number(-1) == recovery_from_number(8) == "unknown"


@pytest.mark.parametrize(
    "actions, worst",
    [
        ((), None),
        ((None, None), None),
        (("none", None), "none"),
        (("none", "gpu_reset"), "gpu_reset"),
        (("node_reboot", "gpu_reset"), "node_reboot"),
        (("unknown_9", "none"), "unknown"),
        (("unknown_9", "gpu_reset"), "gpu_reset"),
    ],
)
def test_worst(actions, worst):
    assert worst_recovery(actions) == worst
