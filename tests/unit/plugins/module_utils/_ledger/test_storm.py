# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.alerts import DEFAULT_LABELS
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.arrivals import How
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.budget import Limits
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.parcels import parcels
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.store import Ledger
from ledgers import by_hand

INVENTORY = {f"gpu-{number}": {"host": f"h{number}", "uid": f"u{number}", "groups": {"fleet": 9}} for number in range(9)}
NEVER_THE_SAME = {"id", "target", "found"}


def raw(number, status="firing", starts="2026-11-29T11:59:30Z", **labels):
    labels = {"alertname": "GpuXid", "node": f"gpu-{number}", "xid": "79", "pci_bus_id": "0000:19:00.0", "rack": "r12", **labels}
    return {"status": status, "labels": labels, "startsAt": starts, "fingerprint": f"{number:016x}"}


def kept(ledger, *alerts):
    return [row.inbox_id for row in ledger.keep([(one, "t") for one in parcels(json.dumps({"version": "4", "alerts": alerts}).encode())])]


def opened(ledger, *alerts, inventory=INVENTORY, max_running=0):
    how = How(inventory, DEFAULT_LABELS, Limits(), max_running)
    return ledger.open_some(kept(ledger, *alerts), how, lambda alert: True)


def plain(ledger, *alerts, inventory=INVENTORY):
    """How many of them need no second look."""
    counts = []
    real = ledger._open_new
    ledger._open_new = lambda connection, wants, how: counts.append(len(wants)) or real(connection, wants, how)
    opened(ledger, *alerts, inventory=inventory)
    return sum(counts)


def test_many_new_ones_are_what_one_at_a_time_would_be(ledger, url, tmp_path, clock):
    """Their records, alerts and deadlines are equal, and a run that comes later finds them."""
    together = opened(ledger, *[raw(number) for number in range(5)])
    other = Ledger.open(f"sqlite:///{tmp_path}/other.db", clock=clock)
    apart = other.open_from_inbox(kept(other, *[raw(number) for number in range(5)]), INVENTORY)["incidents"]
    other.close()

    def comparable(records):
        return [{name: value for name, value in record.items() if name not in NEVER_THE_SAME} for record in records]

    assert comparable(together) == comparable(apart)
    assert [record["found"] for record in together] == [False] * 5
    again = ledger.open_from_inbox([row.inbox_id for row in ledger.undecided()], INVENTORY)["incidents"]
    assert [(one["id"], one["found"]) for one in again] == [(one["id"], True) for one in together]
    assert opened(ledger, *[raw(number) for number in range(5)]) == [], "what is decided is not opened again"


def test_beyond_the_capacity_they_wait_and_people_are_told_once(ledger):
    """The oldest do not, in whatever order the alerts came."""
    storm = [raw(number, starts=f"2026-11-29T11:59:{30 - number}Z") for number in range(5)]
    states = [one["state"] for one in opened(ledger, *storm, max_running=2)]
    assert states == ["fenced_waiting"] * 3 + ["running"] * 2
    [told] = ledger.claim_notifications()
    assert (told["topic"], told["payload"]["nodes"]) == ("fenced_waiting", ["gpu-0", "gpu-1", "gpu-2"])
    assert [one["state"] for one in opened(ledger, raw(5), max_running=2)] == ["fenced_waiting"]
    assert [one["state"] for one in opened(ledger, raw(6), raw(7, starts="2026-11-29T11:59:31Z"), max_running=7)] == [
        "running",
        "fenced_waiting",
    ], "behind those that wait"


@pytest.mark.parametrize(
    "before, alerts, count",
    [
        pytest.param(None, [raw(1), raw(2)], 2, id="nothing is known of either"),
        pytest.param(by_hand(node="gpu-1", uid="u1"), [raw(1), raw(2)], 1, id="one had an incident"),
        pytest.param(by_hand(node="gpu-1", uid="old"), [raw(1)], 0, id="it was recreated"),
        pytest.param(None, [raw(1, status="resolved")], 0, id="it is over"),
        pytest.param(None, [raw(1), {**raw(1, pci_bus_id="0000:1a:00.0"), "fingerprint": "f" * 16}], 1, id="two GPUs of a node"),
        pytest.param(None, [raw(1), {**raw(2), "fingerprint": f"{1:016x}"}], 1, id="the same alert"),
    ],
)
def test_who_is_plain(ledger, before, alerts, count):
    """All others are opened as ever, one at a time."""
    if before:
        ledger.open_incident(before)
    assert plain(ledger, *alerts) == count


def test_a_node_that_is_opted_out_is_not_plain(ledger):
    inventory = {"gpu-1": {**INVENTORY["gpu-1"], "managed": False}}
    assert plain(ledger, raw(1), inventory=inventory) == 0
    assert [one["state"] for one in ledger.overview(closed=True)["incidents"]] == ["no_action"]


def wants(ledger, count):
    records = opened(ledger, *[raw(number) for number in range(count)])
    return {one["id"]: (one["node"], f"node/{one['node']}/taint/x", {"fleet": 9}) for one in records}


def test_granted_is_allowed_counted_and_on_record(ledger):
    """S4, S8, S9: in one transaction, up to the breaker's limit, and without tripping it."""
    asked = wants(ledger, 5)
    assert ledger.grant(asked, {"key": "x"}) == {}, "the mode forbids"
    ledger.set_mode("fence", "tests", "the test needs it")
    granted = ledger.grant(asked, {"key": "x"})
    assert list(granted) == list(asked)[:3] and not ledger.breaker()["tripped"]
    assert {(one.status, one.before, one.owners[0] == name) for name, one in granted.items()} == {("intended", None, True)}
    assert ledger.open_change("node/gpu-0/taint/x") == granted[next(iter(asked))]
    ledger.all_applied(granted.values(), {"key": "x"})
    assert {ledger.open_change(f"node/gpu-{number}/taint/x").status for number in range(3)} == {"applied"}
    assert ledger.grant(asked, {"key": "x"}) == {}, "what stands needs a second look, and there is no room for the others"


def test_nothing_is_granted_to_what_has_ended(ledger):
    ledger.set_mode("fence", "tests", "the test needs it")
    asked = wants(ledger, 2)
    ended, live = asked
    ledger.close_incident(ended, "cancelled_by_human", "somebody said so")
    assert list(ledger.grant(asked, {})) == [live]


def test_what_was_weighed_is_a_stage_and_is_not_overwritten(ledger):
    asked = list(wants(ledger, 2))
    ledger.detected({asked[0]: ({"fenced": True}, "because")})
    ledger.detected({asked[0]: ({"fenced": False}, "again"), asked[1]: ({"fenced": False}, "other")})
    stages = [ledger.incident(name)["stages"]["detect"] for name in asked]
    assert [(one["outcome"], one["reason"], one["data"]["fenced"]) for one in stages] == [("ok", "because", True), ("ok", "other", False)]


def test_a_list_of_nodes_that_is_behind_ends_no_incident(ledger):
    """S6: only who has just asked the API may say that a node was recreated."""
    incident = ledger.open_incident(by_hand(node="gpu-1", uid="the new one")).record
    assert opened(ledger, raw(1)) == []
    assert ledger.incident(incident["id"])["state"] == "running"


def test_where_a_node_stands_the_inventory_knows_and_its_job_the_alert(ledger):
    """S8: the sizes that the breaker needs are the inventory's."""
    inventory = {"gpu-1": {**INVENTORY["gpu-1"], "groups": {"rack": {"name": "r9", "size": 16}, "job": {"name": "train", "size": 400}}}}
    [same] = opened(ledger, raw(1, hpc_job="train"), inventory=inventory)
    assert same["groups"] == {"rack": {"name": "r9", "size": 16}, "job": {"name": "train", "size": 400}}
    ledger.close_incident(same["id"], "no_action", "over")
    [other] = opened(ledger, raw(1, hpc_job="eval", starts="2026-11-29T11:59:50Z"), inventory=inventory)
    assert other["groups"] == {"rack": {"name": "r9", "size": 16}, "job": "eval"}
