# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from alerts import RECORDINGS, recorded
from ansible_collections.gpuops.remediation.plugins.module_utils._fleet.episodes import (
    episodes,
    fingerprint,
    message,
    of_alertmanager,
    of_prometheus,
)
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.alerts import DEFAULT_LABELS
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.parcels import parcels
from ledgers import NOON

LABELS = {"alertname": "GpuXid", "node": "gpu-1", "gpu_uuid": "GPU-5f0c1a52-6a8d-4f0e-9f0e-3c1d4e8a2b11", "xid": "79"}
EXTERNAL = {"cluster": "spike"}


def at(seconds: float):
    return NOON + timedelta(seconds=seconds)


def alerts(*seconds: float, **labels: str):
    return {"__name__": "ALERTS", "alertstate": "firing", **LABELS, **labels}, [(at(one), 1.0) for one in seconds]


def states(value: float, *seconds: float, **labels: str):
    return {"__name__": "ALERTS_FOR_STATE", **LABELS, **labels}, [(at(one), at(value).timestamp()) for one in seconds]


@pytest.mark.parametrize("name", [path.stem for path in RECORDINGS.glob("*.json") if path.stem != "request-headers"])
def test_the_fingerprint_is_alertmanagers(name: str) -> None:
    for alert in recorded(name)["alerts"]:
        assert fingerprint(alert["labels"]) == alert["fingerprint"]


def test_an_episode_begins_with_its_first_sample() -> None:
    """Prometheus keeps no mark of an end in raw samples: an evaluation that is missed twice is one."""
    (one,) = episodes([alerts(0, 15, 30, 120, 135.5)], [states(118, 120, 135.5)])
    assert (one.labels, one.since, one.first, one.last) == (LABELS, at(118), at(120), at(135.5))


def test_one_sample_is_an_episode_and_states_of_others_do_not_count() -> None:
    (one,) = episodes([alerts(7.25)], [states(1, 7.25, xid="48")])
    assert (one.since, one.first, one.last) == (at(7.25), at(7.25), at(7.25))


@pytest.mark.parametrize(("age", "hint"), [(60, False), (61, True)])
def test_the_recorded_past_is_a_hint(age: float, hint: bool) -> None:
    """S3."""
    (one,) = episodes([alerts(0)], [])
    assert of_prometheus(one, EXTERNAL, at(-900), at(age), DEFAULT_LABELS).alert.hint is hint


@pytest.mark.parametrize(
    ("window_start", "starts_at"),
    [
        pytest.param(-900, 30.5, id="seen from its beginning: when it began to fire, as Alertmanager has it"),
        pytest.param(10, 0, id="it began before the window: when its condition began to hold"),
    ],
)
def test_when_it_started(window_start: float, starts_at: float) -> None:
    (one,) = episodes([alerts(30.5, 45.5)], [states(0, 30.5)])
    told = of_prometheus(one, EXTERNAL, at(window_start), at(50), DEFAULT_LABELS)
    assert (told.alert.starts_at, told.since, told.until) == (at(starts_at), at(0), at(30.5))
    assert told.fingerprint == fingerprint({**LABELS, **EXTERNAL})


def test_the_same_delivery_as_the_webhooks() -> None:
    """What the API and Prometheus tell of a recorded alert has the digest of the message that was recorded."""
    whole = recorded("firing-single")
    (webhook,) = parcels(json.dumps(whole).encode())
    raw = whole["alerts"][0]
    (api,) = parcels(message(of_alertmanager({**raw, "status": {"state": "active"}}, DEFAULT_LABELS), "eda"))
    begun = of_alertmanager(raw, DEFAULT_LABELS).since
    labels = {name: value for name, value in raw["labels"].items() if name != "cluster"}
    (episode,) = episodes([({"__name__": "ALERTS", "alertstate": "firing", **labels}, [(begun, 1.0)])], [])
    (rebuilt,) = parcels(message(of_prometheus(episode, EXTERNAL, begun, begun, DEFAULT_LABELS), "eda"))
    assert webhook.digest == api.digest == rebuilt.digest


def test_what_names_no_node_is_told_of_all_the_same() -> None:
    told = of_alertmanager({"labels": {"alertname": "GpuXid"}, "startsAt": "2026-11-29T12:00:00Z", "fingerprint": "f" * 16}, DEFAULT_LABELS)
    assert (told.alert, told.since, told.fingerprint) == (None, None, "f" * 16)
