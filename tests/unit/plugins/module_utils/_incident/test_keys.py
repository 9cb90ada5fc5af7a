# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.keys import (
    CLOSED_STATES,
    ENDED_OPEN_STATES,
    OPEN_STATES,
    fault_key,
    group_key,
    refined,
    slot_of,
    with_identity,
)

HAVE = {"gpu": "index:3", "pci_bus_id": None, "serial": None, "domain": "unknown", "scope": None}
GPU = "GPU-5f0c1a52-6a8d-4f0e-9f0e-3c1d4e8a2b11"


def test_keys_cannot_be_confused():
    assert fault_key("a", "b") != fault_key('a", "b', "-")
    assert fault_key("rack", "r1", "bus") != group_key("rack", "r1", "bus")


def test_states_are_open_or_closed():
    assert not OPEN_STATES & CLOSED_STATES
    assert ENDED_OPEN_STATES < OPEN_STATES


@pytest.mark.parametrize(
    "verdict, expected",
    [
        pytest.param({}, {"gpu": "index:3", "domain": "unknown"}, id="nothing learnt"),
        pytest.param(
            {"gpu_uuid": GPU, "domain": "memory", "scope": "gpu", "serial": "16"},
            {"gpu": GPU, "domain": "memory", "serial": "16"},
            id="uuid",
        ),
        pytest.param({"gpu_uuid": None, "pci_bus_id": "00000000:19:00.0", "scope": "gpu"}, {"gpu": "pci:0000:19:00.0"}, id="lost gpu"),
        pytest.param({"gpu_uuid": GPU, "domain": "fabric", "scope": "node"}, {"gpu": "-", "scope": "node"}, id="node scope"),
    ],
)
def test_a_verdict_refines_the_identity(verdict, expected):
    assert {name: refined(verdict, HAVE)[name] for name in expected} == expected


def test_what_was_known_of_the_place_stays_known():
    have = {**HAVE, "pci_bus_id": "0000:19:00.0", "serial": "165"}
    assert {name: refined({"scope": "node"}, have)[name] for name in ("pci_bus_id", "serial")} == {
        "pci_bus_id": "0000:19:00.0",
        "serial": "165",
    }
    assert refined({"pci_bus_id": "0000:20:00.0"}, have)["pci_bus_id"] == "0000:20:00.0"
    assert refined({"pci_bus_id": "0000:20:00.0"}, HAVE)["pci_bus_id"] == "0000:20:00.0"


def test_the_key_of_the_same_node_or_group():
    assert with_identity(fault_key("uid", "-"), GPU, "bus") == fault_key("uid", GPU, "bus")
    assert with_identity(group_key("rack", "r1"), "-", "power") == group_key("rack", "r1", "power")


def test_slot():
    info = {"gpus": [{"uuid": "other", "slot": 1}, {"uuid": GPU, "slot": 4}]}
    assert slot_of(GPU, info) == "4"
    assert slot_of(GPU, {"gpus": [{"uuid": GPU, "slot": None}]}) is None
    assert slot_of(GPU, None) is None
