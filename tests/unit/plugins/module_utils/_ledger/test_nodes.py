# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

NODES = {
    "gpu-1": {"host": "h1", "uid": "u1", "managed": True, "groups": {"fleet": 2, "rack": "r12"}},
    "gpu-2": {"host": "h2", "uid": "u2", "managed": False, "groups": {}},
}


def test_the_last_inventory_and_no_other(ledger):
    assert ledger.nodes() == {}
    assert (ledger.keep_nodes(NODES), ledger.nodes()) == (True, NODES)
    assert ledger.keep_nodes(NODES) is False
    assert (ledger.keep_nodes({"gpu-2": NODES["gpu-2"]}), list(ledger.nodes())) == (True, ["gpu-2"])


def test_what_is_not_said_is_nothing(ledger):
    ledger.keep_nodes({"gpu-1": {"host": "h1"}, "gpu-2": None})
    assert ledger.nodes()["gpu-1"] == {"host": "h1", "uid": None, "managed": None, "groups": None}
