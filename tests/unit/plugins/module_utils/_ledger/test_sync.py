# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
from datetime import timedelta

from alerts import recorded, rewritten
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.alerts import DEFAULT_LABELS
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.parcels import parcels
from ledgers import NOON, alert, wanted


def test_until_when_a_source_was_asked(ledger):
    assert ledger.synced_at("prometheus") is None
    for minutes in (0, 5):
        ledger.synced("prometheus", NOON + timedelta(minutes=minutes))
    assert ledger.synced_at("prometheus") == NOON + timedelta(minutes=5)
    assert ledger.synced_at("another") is None


def test_what_is_known_is_decided_or_waits_in_a_message_of_several(ledger):
    ledger.open_incident(wanted(alert(fingerprint="aaaaaaaa")))
    ledger.open_incident(wanted(alert(fingerprint="bbbbbbbb", starts=NOON - timedelta(hours=1))))
    ledger.open_incident(wanted(alert(fingerprint="cccccccc", status="resolved")))
    message = rewritten(recorded("firing-grouped-two-gpus"), {"node": "gpu-2"}, starts_at=NOON)
    ledger.keep([(parcel, "x") for parcel in parcels(json.dumps(message).encode())])
    ledger.receive(b"no message", "x")
    known = ledger.known_episodes(NOON, DEFAULT_LABELS)
    assert [one.fingerprint for one in known] == ["aaaaaaaa", *(one["fingerprint"] for one in message["alerts"])]
    assert {one.facts["node"] for one in known} == {"gpu-1", "gpu-2"} and all(one.decided for one in known)
