# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Alerts as Prometheus and Alertmanager know them, turned into what a webhook would have said."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._fleet.prometheus import Series
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.alerts import Alert, HeldAlert, LabelMap, fingerprint_of, judge
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.times import iso

FRESH_SECONDS = 60  # an older sample is the recorded past, which is no evidence (S3)
_SERIES_LABELS = ("__name__", "alertstate")  # of Prometheus's own series about alerts, not of the alerts
_GAP = 2.5  # evaluations: what is not seen for longer has been resolved in between


@dataclass(frozen=True)
class Told:
    """One alert as a webhook would have told of it. It began between `since` and `until`.

    alert: None where it cannot be judged. rebuilt: its identity and start were not given by Alertmanager.
    """

    raw: Mapping[str, Any]
    alert: Optional[Alert]
    since: Optional[datetime]
    until: Optional[datetime]
    rebuilt: bool = False

    @property
    def fingerprint(self) -> str:
        return self.alert.fingerprint if self.alert else fingerprint_of(self.raw)


@dataclass(frozen=True)
class Episode:
    """The last time an alert fired: since when at the earliest, when it was first seen firing, and when last."""

    labels: Mapping[str, str]
    since: datetime
    first: datetime
    last: datetime


def fingerprint(labels: Mapping[str, str]) -> str:
    """Alertmanager's own: FNV-1a, 64 bits, over the sorted labels."""
    value = 0xCBF29CE484222325
    for name in sorted(labels):
        for byte in b"\xff".join([name.encode(), labels[name].encode(errors="surrogatepass"), b""]):
            value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return "%016x" % value


def episodes(alerts: Iterable[Series], states: Iterable[Series]) -> list[Episode]:
    """From the raw samples of ALERTS{alertstate="firing"} and of ALERTS_FOR_STATE, whose value is when the condition began to hold."""
    began = {_key(labels): datetime.fromtimestamp(points[-1][1], timezone.utc) for labels, points in states}
    found = []
    for labels, points in alerts:
        times = [time for time, _value in points]
        first = _last_start(times)
        since = min(first, began.get(_key(labels), first))
        found.append(Episode({name: value for name, value in labels.items() if name not in _SERIES_LABELS}, since, first, times[-1]))
    return found


def _key(labels: Mapping[str, str]) -> str:
    return json.dumps({name: value for name, value in labels.items() if name not in _SERIES_LABELS}, sort_keys=True)


def _last_start(times: list[datetime]) -> datetime:
    steps = [later - earlier for earlier, later in zip(times, times[1:])]
    longest = _GAP * min(steps, default=timedelta())
    return ([times[0]] + [later for later, step in zip(times[1:], steps) if step > longest])[-1]


def of_prometheus(episode: Episode, external_labels: Mapping[str, str], window_start: datetime, now: datetime, label_map: LabelMap) -> Told:
    """As Prometheus would have sent it. One that is not fresh is a hint: somebody is to look, and nothing may be done on its word."""
    labels = {**external_labels, **episode.labels}
    whole = episode.since >= window_start  # its first sample was taken when it began to fire
    raw = {
        "status": "firing",
        "labels": labels,
        "annotations": {},
        "startsAt": iso(episode.first if whole else episode.since),
        "fingerprint": fingerprint(labels),
        "hint": now - episode.last > timedelta(seconds=FRESH_SECONDS),
    }
    return Told(raw, _judged(raw, label_map), episode.since, episode.first, rebuilt=True)


def of_alertmanager(given: Mapping[str, Any], label_map: LabelMap) -> Told:
    raw = {"status": "firing", **{name: given.get(name) for name in ("labels", "annotations", "startsAt", "fingerprint")}}
    alert = _judged(raw, label_map)
    at = alert.starts_at if alert else None
    return Told(raw, alert, at, at)


def _judged(raw: Mapping[str, Any], label_map: LabelMap) -> Optional[Alert]:
    try:
        return judge(raw, fingerprint_of(raw), label_map)
    except HeldAlert:
        return None


def message(told: Told, receiver: str) -> bytes:
    """Alertmanager's webhook, version 4, with this alert alone."""
    whole = {"version": "4", "receiver": receiver, "status": "firing", "alerts": [told.raw], "truncatedAlerts": 0}
    return json.dumps(whole).encode()
