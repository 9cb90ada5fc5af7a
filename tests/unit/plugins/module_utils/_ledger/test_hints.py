# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""S3: what opened an incident on the word of the recorded past proves nothing; what fires does."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from alerts import recorded, rewritten
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.alerts import DEFAULT_LABELS
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.parcels import parcels
from ledgers import NOON, alert, wanted

MESSAGE = rewritten(recorded("firing-single"), {"node": "gpu-1"}, starts_at=NOON)


def keep(ledger, hint):
    content = {**MESSAGE, "alerts": [{**MESSAGE["alerts"][0], "hint": hint}]}
    [row] = ledger.keep([(parcel, "x") for parcel in parcels(json.dumps(content).encode())])
    return row


def test_a_hint_gives_way_to_an_alert_that_fires(ledger):
    """What opened the incident proves nothing; what joins it does."""
    hint = replace(alert(fingerprint="aaaaaaaa", xid=79), hint=True)
    opened = ledger.open_incident(wanted(hint)).record
    assert opened["alert"]["hint"]
    joined = ledger.open_incident(wanted(alert(fingerprint="bbbbbbbb", xid=79))).record
    assert (joined["id"], joined["alert"]["hint"], joined["alert"]["fingerprint"]) == (opened["id"], False, "bbbbbbbb")
    assert not ledger.open_incident(wanted(hint)).record["alert"]["hint"], "and not the other way"


def test_a_late_delivery_is_no_repeat_of_its_hint(ledger):
    hinted = keep(ledger, True)
    ledger.open_from_inbox([hinted.inbox_id], {"gpu-1": {}})
    assert not keep(ledger, True).due
    delivered = keep(ledger, False)
    assert (delivered.due, delivered.repeat) == (True, False)
    [incident] = ledger.open_from_inbox([delivered.inbox_id], {"gpu-1": {}})["incidents"]
    assert (incident["found"], incident["alert"]["hint"]) == (True, False)
    [known] = ledger.known_episodes(NOON, DEFAULT_LABELS)
    assert not known.facts["hint"]


@pytest.mark.parametrize(("state", "found"), [("no_action", False), ("held_for_human", True)])
def test_what_ended_on_a_hint_is_taken_up_when_its_alert_fires_and_once(ledger, state, found):
    fires = alert(xid=79)
    incident_id = ledger.open_incident(wanted(replace(fires, hint=True))).record["id"]
    ledger.close_incident(incident_id, state, "nothing proves it")
    assert "running" not in [record["state"] for record in ledger.open_incident(wanted(replace(fires, hint=True))).records]
    taken_up = ledger.open_incident(wanted(fires)).record
    assert (taken_up["state"], taken_up["id"] == incident_id, taken_up["alert"]["hint"]) == ("running", found, False)
    ledger.close_incident(taken_up["id"], state, "nothing proves it")
    assert "running" not in [record["state"] for record in ledger.open_incident(wanted(fires)).records]
