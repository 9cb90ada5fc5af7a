# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._diagnosis.correlation import Rule
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.arrivals import Correlation
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.parcels import parcels

DOMAINS = {13: "application", 74: "nvlink"}
CORRELATION = Correlation(Rule(nodes=3, seconds=15), DOMAINS.get)
INVENTORY = {f"gpu-{number}": {"host": f"h{number}", "uid": f"u{number}", "groups": {"fleet": 100, "rack": "r12"}} for number in range(9)}


def raw(number, xid=74, starts="2026-11-29T12:00:00Z", status="firing", **labels):
    labels = {"alertname": "GpuXid", "node": f"gpu-{number}", "xid": str(xid), **labels}
    return {"status": status, "labels": labels, "startsAt": starts, "fingerprint": f"{number:015x}{xid % 16:x}"}


def opened(ledger, *alerts, inventory=None, correlation=CORRELATION):
    rows = ledger.keep([(parcel, "test") for parcel in parcels(json.dumps({"version": "4", "alerts": alerts}).encode())])
    return ledger.open_from_inbox([row.inbox_id for row in rows], inventory or INVENTORY, correlation=correlation)


def told(ledger):
    return [one["topic"] for one in ledger.claim_notifications()]


def test_one_incident_for_many_nodes(ledger):
    """It is people's at once, told of once, and no node gets an incident of its own."""
    [incident] = opened(ledger, raw(1), raw(2), raw(3))["incidents"]
    assert (incident["kind"], incident["node"], incident["nodes"]) == ("group", "r12", ["gpu-1", "gpu-2", "gpu-3"])
    assert (incident["state"], incident["domain"], incident["scope"], incident["host"]) == ("held_for_human", "nvlink", "job", None)
    assert incident["reason"].startswith("3 nodes of rack r12 have a fault of the nvlink at once (gpu-1, gpu-2, gpu-3)")
    assert told(ledger) == ["held_for_human"]
    assert len(ledger.overview(closed=True)["incidents"]) == 1
    assert ledger.undecided() == []


def test_a_label_names_the_group_too(ledger):
    alerts = [raw(number, xid=13, hpc_job="train-7") for number in (1, 2, 3)]
    [incident] = opened(ledger, *alerts, inventory={name: {**entry, "groups": {}} for name, entry in INVENTORY.items()})["incidents"]
    assert (incident["node"], incident["domain"]) == ("train-7", "application")


def test_who_comes_later_joins(ledger, clock):
    [group] = opened(ledger, raw(1), raw(2), raw(3))["incidents"]
    clock.on(14)
    [again] = opened(ledger, raw(4), raw(5))["incidents"]
    assert (again["id"], again["state"], again["nodes"]) == (group["id"], "held_for_human", [f"gpu-{number}" for number in range(1, 6)])
    assert told(ledger) == ["held_for_human"] * 2, "with all names, once for both"


def test_after_the_window_a_node_is_on_its_own(ledger, clock):
    opened(ledger, raw(1), raw(2), raw(3))
    clock.on(16)
    [alone] = opened(ledger, raw(4))["incidents"]
    assert (alone["kind"], alone["node"], alone["state"]) == ("fault", "gpu-4", "running")


def test_a_repeat_of_one_of_them_opens_nothing(ledger, clock):
    [group] = opened(ledger, raw(1), raw(2), raw(3))["incidents"]
    clock.on(300)
    ledger.set_mode("fence", "jane", "so that repeats count")
    [again] = opened(ledger, raw(1), raw(2), raw(3))["incidents"]
    assert (again["id"], again["state"], told(ledger)) == (group["id"], "held_for_human", ["held_for_human"])
    clock.on(300)
    [alone] = opened(ledger, raw(1, starts="2026-11-29T12:10:00Z"))["incidents"]
    assert alone["node"] == "gpu-1", "another episode is another fault"


@pytest.mark.parametrize(
    "alerts",
    [
        pytest.param([raw(1), raw(2)], id="too few"),
        pytest.param([raw(1, xid=79), raw(2, xid=79), raw(3, xid=79)], id="hardware speaks for itself"),
        pytest.param([raw(1), raw(2), raw(3, status="resolved")], id="one is over"),
        pytest.param([raw(1), raw(2), raw(77)], id="one is not ours"),
    ],
)
def test_what_is_opened_one_by_one(ledger, alerts):
    assert {one["kind"] for one in opened(ledger, *alerts)["incidents"]} == {"fault"}


def test_who_is_opted_out_is_no_part_of_it(ledger):
    inventory = {**INVENTORY, "gpu-3": {**INVENTORY["gpu-3"], "managed": False}}
    assert {one["kind"] for one in opened(ledger, raw(1), raw(2), raw(3), inventory=inventory)["incidents"]} == {"fault"}


def test_released_by_a_human_it_makes_room_for_the_next(ledger, clock):
    [group] = opened(ledger, raw(1), raw(2), raw(3))["incidents"]
    assert ledger.release_incident(group["id"])[1]["state"] == "released"
    clock.on(60)
    later = [raw(number, starts="2026-11-29T12:01:00Z") for number in (1, 2, 3)]
    [next_one] = opened(ledger, *later)["incidents"]
    assert (next_one["kind"], next_one["id"] == group["id"]) == ("group", False)


def test_in_check_mode_it_is_predicted(url, ledger):
    rows = ledger.keep([(parcel, "t") for parcel in parcels(json.dumps({"version": "4", "alerts": [raw(1), raw(2), raw(3)]}).encode())])
    dry = type(ledger).open(url, check_mode=True, clock=ledger.now)
    [incident] = dry.open_from_inbox([row.inbox_id for row in rows], INVENTORY, correlation=CORRELATION)["incidents"]
    dry.close()
    assert (incident["id"], incident["kind"]) == ("predicted", "group")
    assert ledger.overview(closed=True)["incidents"] == []


def test_hints_are_looked_at_on_each_node(ledger):
    """S3: what is over proves no common fault."""
    found = opened(ledger, *({**raw(number), "hint": True} for number in (1, 2, 3)))["incidents"]
    assert [(one["kind"], one["state"]) for one in found] == [("fault", "running")] * 3
