# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from datetime import timedelta

from ansible_collections.gpuops.remediation.plugins.module_utils._incident.arrivals import Correlation
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.replay import Fault, of_alert
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.backtest import backtest
from ansible_collections.gpuops.remediation.plugins.module_utils._xid.policy import load_policy
from gpu_evidence import POLICY_FILE
from ledgers import GPU, NOON, OTHER_GPU, alert

POLICY = load_policy(str(POLICY_FILE))


def fault(number=1, seconds=0, xid=79, gpu_uuid=GPU, **more) -> Fault:
    starts = NOON + timedelta(seconds=seconds)
    return of_alert(alert(starts, f"gpu-{number}", f"{number:08x}{xid:08x}", gpu_uuid=gpu_uuid, xid=xid, **more), POLICY)


CORRELATION = Correlation.by(POLICY, {})
RACK = {f"gpu-{number}": {"host": "h", "groups": {"fleet": 9, "rack": "r12"}} for number in range(9)}


def groups(result):
    return [(line["node"], line["nodes"], line["xids"], line["seen_again"]) for line in result["incidents"] if line["kind"] == "group"]


def breakers(result):
    return [line["breaker"] for line in result["incidents"]]


def test_the_breaker_counts_nodes_in_its_window():
    """S8: the fourth node within ten minutes is held, and so is all that comes later, for nobody resets it."""
    storm = [fault(number, seconds=60 * number) for number in range(4)]
    result = backtest([*storm, fault(5, seconds=9000)], {})
    assert (breakers(result), result["totals"]["held_by_breaker"]) == (["slot"] * 3 + ["tripped"] * 2, 2)
    assert [line["fence"] for line in result["incidents"]] == [True] * 3 + [False] * 2
    assert (result["breaker"]["tripped"], result["breaker"]["at"]) == (True, "2026-11-29T12:03:00.000Z")
    assert breakers(backtest([fault(number, seconds=400 * number) for number in range(4)], {})) == ["slot"] * 4


def test_the_breaker_has_the_fleets_size_and_the_numbers_given():
    storm = [fault(number) for number in range(4)]
    inventory = {f"gpu-{number}": {"host": "h", "groups": {"fleet": 80}} for number in range(80)}
    assert breakers(backtest(storm, inventory)) == ["slot"] * 4
    assert breakers(backtest(storm, {}, {"nodes": 1, "percent": None, "window_seconds": None})).count("slot") == 1


def test_what_is_open_is_not_opened_again():
    """A repeat, and a later episode of what stands; a crash ends at once, so the next one is another."""
    result = backtest([fault(), fault(), fault(seconds=5000), fault(xid=13, number=2), fault(xid=13, number=2, seconds=5000)], {})
    assert [(line["node"], line["xids"], line["seen_again"]) for line in result["incidents"]] == [
        ("gpu-1", [79], 2),
        ("gpu-2", [13], 0),
        ("gpu-2", [13], 0),
    ]
    assert result["totals"]["actions"] == {"none": 2, "quarantine_gpu": 1}


def test_two_gpus_of_a_node_take_one_slot():
    result = backtest([fault(), fault(xid=48, gpu_uuid=OTHER_GPU)], {})
    assert (breakers(result), result["totals"]["tainted_nodes"]) == (["slot", "slot"], 1)


def test_in_the_order_of_the_faults():
    assert [line["node"] for line in backtest([fault(2, seconds=5), fault(1)], {})["incidents"]] == ["gpu-1", "gpu-2"]


def test_what_knows_more_takes_the_place_of_what_is_held():
    """As in a run: an alert without an Xid is held, and one with an Xid of the same GPU acts."""
    result = backtest([of_alert(alert(NOON, gpu_uuid=GPU), POLICY), fault(seconds=800)], {})
    assert [line["action"] for line in result["incidents"]][-1] == "quarantine_gpu"


def test_resolved_and_opted_out_open_nothing():
    off = {"gpu-1": {"host": "h", "managed": False}}
    result = backtest([fault(status="resolved", number=2), fault()], off)
    assert (result["incidents"], result["totals"]["ignored"]) == ([], {"opted out": 1, "resolved": 1})
    assert result["totals"]["not_in_inventory"] == ["gpu-2"]


def test_a_rack_with_one_fault_is_one_incident():
    """As in a run: no node is tainted and no slot taken; whose fault is its own hardware's is worked on beside it."""
    faults = [*(fault(number, seconds=3 * number, xid=74) for number in range(5)), fault(7, seconds=4)]
    result = backtest(faults, RACK, correlation=CORRELATION)
    assert groups(result) == [("r12", [f"gpu-{number}" for number in range(5)], [74], 0)]
    assert [(line["kind"], line["action"], line["breaker"]) for line in result["incidents"]] == [
        ("group", "hold", None),
        ("fault", "quarantine_gpu", "slot"),
    ]
    totals = result["totals"]
    assert (totals["incidents"], totals["groups"], totals["nodes"], totals["tainted_nodes"]) == (2, 1, 6, 1)
    assert breakers(backtest(faults, RACK)).count("tripped") == 3, "each on its own, they would have tripped the breaker"


def test_who_joins_a_group_later_and_who_is_told_of_again():
    faults = [fault(number, seconds=number, xid=74) for number in range(3)]
    later = [fault(4, seconds=16, xid=74), fault(5, seconds=100, xid=74)]
    result = backtest([*faults, *faults, *later], RACK, correlation=CORRELATION)
    assert groups(result) == [("r12", ["gpu-0", "gpu-1", "gpu-2", "gpu-4"], [74], 3)]
    assert [line["node"] for line in result["incidents"] if line["kind"] == "fault"] == ["gpu-5"]


def test_a_label_names_the_group_of_nodes_that_the_inventory_does_not_have():
    faults = [fault(number, xid=13, groups={"job": "train-7"}) for number in range(3)]
    result = backtest(faults, {}, correlation=CORRELATION)
    assert [one[0] for one in groups(result)] == ["train-7"]
    assert result["totals"]["not_in_inventory"] == ["gpu-0", "gpu-1", "gpu-2"]


def test_too_few_or_too_far_apart_are_faults_of_their_own():
    for seconds, count in ((0, 2), (16, 5)):
        assert groups(backtest([fault(one, seconds=seconds * one, xid=74) for one in range(count)], RACK, correlation=CORRELATION)) == []


def test_two_faults_of_one_rack_at_once():
    faults = [fault(number, xid=xid) for number in range(3) for xid in (13, 74)]
    assert [one[2:] for one in groups(backtest(faults, RACK, correlation=CORRELATION))] == [([13], 0), ([74], 0)]
