# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Twenty runs come to their taint at the same moment, each in a process of its own with one ledger and one API server between them."""

from __future__ import annotations

from collections import Counter

from forks import at_once
from postgresql import server, url
from responder import TAINT, Responder

__all__ = ["server", "url"]


def test_exactly_three_of_twenty(cluster, tmp_path, url):
    """S8: the breaker lets three nodes through and holds the rest, whatever the order; the API server saw three writes, people get one page."""
    responder = Responder(cluster, tmp_path, url)
    uids = cluster.objects.make_nodes(*[f"gpu-{number}" for number in range(20)])
    incidents = {name: responder.incident(name, uid) for name, uid in uids.items()}

    def run(number):
        name = f"gpu-{number}"
        entry = {"name": name, "uid": uids[name], "incident_id": incidents[name], "groups": {"fleet": 20}}
        return responder.taint_nodes(nodes=[entry]).get("error_kind", "tainted")

    assert Counter(at_once(20, run)) == {"tainted": 3, "breaker_tripped": 17}
    assert sum(cluster.objects.taints(name) == [TAINT] for name in uids) == 3
    assert [entry.code for entry in responder.writes()] == [200] * 3
    assert Counter(change.status for incident in incidents.values() for change in responder.ledger.changes(incident)) == {"applied": 3}
    assert [one["topic"] for one in responder.ledger.claim_notifications(1000)].count("breaker_tripped") == 1
