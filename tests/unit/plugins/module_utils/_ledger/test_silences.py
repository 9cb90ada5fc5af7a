# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""S6: nothing is done for a silenced alert, and what still fires when the silence is over is taken up."""

from __future__ import annotations

import json

import pytest
from alerts import recorded, rewritten
from ansible_collections.gpuops.remediation.plugins.module_utils._fleet.silences import Silences
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.alerts import DEFAULT_LABELS
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.parcels import parcels
from ledgers import NOON

INVENTORY = {"gpu-1": {"host": "host-1", "uid": "uid-1"}}
MESSAGE = rewritten(recorded("firing-single"), {"node": "gpu-1"}, starts_at=NOON)
FINGERPRINT = MESSAGE["alerts"][0]["fingerprint"]
SILENCED = Silences({FINGERPRINT: "silence 1 of jane"})
REASON = "its alert is silenced by silence 1 of jane"


def keep(ledger):
    [row] = ledger.keep([(parcel, "alertmanager at ::1") for parcel in parcels(json.dumps(MESSAGE).encode())])
    return row


def running(ledger):
    """An incident of the alert, by its id."""
    [incident] = ledger.open_from_inbox([keep(ledger).inbox_id], INVENTORY)["incidents"]
    return incident["id"]


def again(ledger):
    """As reconcile finds it: the same delivery, told of by Alertmanager."""
    known = ledger.known_episodes(NOON, DEFAULT_LABELS)
    silenced = any(not one.decided for one in known)
    rows = ledger.keep_news([(parcel, "x") for parcel in parcels(json.dumps(MESSAGE).encode())], [silenced])
    return [row.inbox_id for row in rows]


def test_a_waiting_row_is_decided_and_opens_nothing(ledger):
    row = keep(ledger)
    answer = ledger.open_from_inbox([row.inbox_id], INVENTORY, silences=SILENCED)
    assert (answer["incidents"], answer["held"]) == ([], [])
    assert answer["ignored"] == [{"position": 0, "fingerprint": FINGERPRINT, "reason": REASON}]
    assert ledger.undecided() == [] and ledger.overview(closed=True)["incidents"] == []


def test_a_silence_by_labels_counts_too(ledger):
    """Alertmanager lists no alert that is over."""
    matcher = {"name": "node", "value": "gpu-1", "isRegex": False}
    silences = Silences({}, [{"id": "1", "createdBy": "jane", "matchers": [matcher]}])
    assert ledger.open_from_inbox([keep(ledger).inbox_id], INVENTORY, silences=silences)["ignored"][0]["reason"] == REASON


def test_when_it_is_over_the_next_delivery_counts(ledger, clock):
    row = keep(ledger)
    ledger.open_from_inbox([row.inbox_id], INVENTORY, silences=SILENCED)
    clock.on(61)
    assert keep(ledger).due, "Alertmanager's repeat"
    [incident] = ledger.open_from_inbox([row.inbox_id], INVENTORY)["incidents"]
    assert incident["state"] == "running"
    clock.on(61)
    assert not keep(ledger).due


def test_when_it_is_over_reconcile_brings_it_back_at_once_and_once(ledger):
    row = keep(ledger)
    ledger.open_from_inbox([row.inbox_id], INVENTORY, silences=SILENCED)
    assert again(ledger) == [row.inbox_id]
    ledger.open_from_inbox([row.inbox_id], INVENTORY)
    assert all(one.decided for one in ledger.known_episodes(NOON, DEFAULT_LABELS))


@pytest.mark.parametrize("begun", [(), ("detect",), ("detect", "diagnose")])
def test_an_incident_that_has_not_begun_to_act_ends(ledger, begun):
    incident_id = running(ledger)
    for stage in begun:
        ledger.start_stage(incident_id, stage)
    opening = ledger.reopen(incident_id, inventory=INVENTORY, silences=SILENCED)
    assert (opening.how, opening.records, opening.reason) == ("ignored", [], REASON)
    assert (ledger.incident(incident_id)["state"], ledger.incident(incident_id)["reason"]) == ("no_action", REASON)

    [row] = again(ledger)
    [incident] = ledger.open_from_inbox([row], INVENTORY)["incidents"]
    assert incident["id"] != incident_id and incident["state"] == "running"


@pytest.mark.parametrize("begun", ["isolate", "taint", "evict"])
def test_what_has_begun_to_act_is_brought_to_its_end(ledger, begun):
    incident_id = running(ledger)
    ledger.start_stage(incident_id, begun)
    opening = ledger.reopen(incident_id, inventory=INVENTORY, silences=SILENCED)
    assert (opening.how, opening.record["state"]) == ("found", "running")


def test_a_fence_stays_for_a_human(ledger, clock):
    """S12: a silence is no verdict, so it lifts nothing; when it is over the incident is diagnosed anew."""
    ledger.set_mode("fence", "jane", "a test")
    incident_id = running(ledger)
    change = ledger.intend(incident_id, "node/gpu-1/taint", None, "gpu.unhealthy")
    ledger.applied(change.id, "gpu.unhealthy")
    ledger.reopen(incident_id, inventory=INVENTORY, silences=SILENCED)
    held = ledger.incident(incident_id)
    assert held["state"] == "held_for_human"
    assert held["reason"] == REASON + "; node/gpu-1/taint stands until a diagnosis confirms or lifts it"

    assert ledger.reopen(incident_id, anew=True, inventory=INVENTORY, silences=SILENCED).how == "ignored"
    assert ledger.overview()["due_again"] == [incident_id]
    assert ledger.reopen(incident_id, anew=True, inventory=INVENTORY).record["round"] == 2


UNKNOWN = Silences(known=False)


def test_while_nobody_says_that_it_is_over_a_row_stays_left(ledger, clock):
    """And counts again when somebody does."""
    row = keep(ledger)
    ledger.open_from_inbox([row.inbox_id], INVENTORY, silences=SILENCED)
    clock.on(61)
    assert keep(ledger).due
    answer = ledger.open_from_inbox([row.inbox_id], INVENTORY, silences=UNKNOWN)
    assert (answer["incidents"], answer["ignored"][0]["reason"]) == ([], REASON)
    clock.on(61)
    assert keep(ledger).due
    assert len(ledger.open_from_inbox([row.inbox_id], INVENTORY, silences=Silences())["incidents"]) == 1


def test_while_nobody_says_that_it_is_over_an_incident_stays_left(ledger):
    ledger.set_mode("fence", "jane", "a test")
    incident_id = running(ledger)
    ledger.applied(ledger.intend(incident_id, "node/gpu-1/taint", None, "gpu.unhealthy").id, "gpu.unhealthy")
    ledger.reopen(incident_id, inventory=INVENTORY, silences=SILENCED)
    assert ledger.reopen(incident_id, anew=True, inventory=INVENTORY, silences=UNKNOWN).how == "ignored"
    assert ledger.incident(incident_id)["round"] == 1
    assert ledger.reopen(incident_id, anew=True, inventory=INVENTORY, silences=Silences()).record["round"] == 2


def test_what_nobody_has_left_goes_on_while_nobody_can_be_asked(ledger):
    [incident] = ledger.open_from_inbox([keep(ledger).inbox_id], INVENTORY, silences=UNKNOWN)["incidents"]
    assert ledger.reopen(incident["id"], inventory=INVENTORY, silences=UNKNOWN).record["state"] == "running"


def test_an_operator_who_names_an_incident_means_it(ledger):
    incident_id = running(ledger)
    assert ledger.reopen(incident_id, inventory=INVENTORY).record["state"] == "running"
