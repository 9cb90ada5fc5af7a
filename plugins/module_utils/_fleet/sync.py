# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""What fires, or fired since somebody last asked, put into the inbox as if a webhook had brought it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Optional, Protocol

from ansible_collections.gpuops.remediation.plugins.module_utils._errors import RemediationError
from ansible_collections.gpuops.remediation.plugins.module_utils._fleet.episodes import (
    Told,
    episodes,
    message,
    of_alertmanager,
    of_prometheus,
)
from ansible_collections.gpuops.remediation.plugins.module_utils._fleet.news import Known, news
from ansible_collections.gpuops.remediation.plugins.module_utils._fleet.prometheus import Series
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.alerts import LabelMap, is_own
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.parcels import Parcel, parcels
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.times import iso
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.reception import Kept

PROMETHEUS = "prometheus"
OVERLAP = timedelta(seconds=60)  # what was being scraped and evaluated when it was asked last
LONGEST = timedelta(days=1)  # a Prometheus that was not asked for longer has more samples than an answer can hold


class Alertmanager(Protocol):
    def firing(self, receiver: str) -> list[Mapping[str, Any]]: ...

    def listed(self) -> set[str]: ...


class Prometheus(Protocol):
    def raw(self, query: str) -> list[Series]: ...

    def external_labels(self) -> dict[str, str]: ...


class Ledger(Protocol):
    def now(self) -> datetime: ...

    def synced_at(self, source: str) -> Optional[datetime]: ...

    def synced(self, source: str, at: datetime) -> None: ...

    def known_episodes(self, since: datetime, labels: LabelMap) -> list[Known]: ...

    def keep_news(self, arrivals: Sequence[tuple[Parcel, str]], again: Sequence[bool]) -> list[Kept]: ...


@dataclass(frozen=True)
class Wanted:
    """receiver: whose alerts they are in Alertmanager, a pattern. selector: which they are in Prometheus, which knows no receivers."""

    receiver: str
    selector: str
    labels: LabelMap
    lookback: timedelta
    external_labels: Optional[Mapping[str, str]] = None


def sync(ledger: Ledger, alertmanager: Optional[Alertmanager], prometheus: Optional[Prometheus], wanted: Wanted) -> dict[str, Any]:
    """The news, the rows that they have become, and who could not be asked: that keeps nobody from the others."""
    now, missing = ledger.now(), []
    looked, silences_known = False, True
    fires: list[Told] = []
    past: list[Told] = []
    listed: set[str] = set()
    if alertmanager:
        try:
            fires = [of_alertmanager(one, wanted.labels) for one in alertmanager.firing(wanted.receiver)]
            listed = alertmanager.listed() if prometheus else set()
        except RemediationError as error:
            silences_known = False
            missing.append({"source": "alertmanager", "why": str(error)})
    if prometheus:
        last = ledger.synced_at(PROMETHEUS)
        if last and last > now:  # the clock was set back, so it is not known when that was
            last = None
        window = min(LONGEST, now - last + OVERLAP) if last else wanted.lookback
        if last and now - last > LONGEST:
            missing.append({"source": PROMETHEUS, "why": "it was not asked since %s; only its last day was looked at" % iso(last)})
        try:
            past = _of_prometheus(prometheus, wanted, window, now)
        except RemediationError as error:
            missing.append({"source": PROMETHEUS, "why": str(error)})
        else:
            looked = True
    told = [one for one in [*fires, *(one for one in past if one.fingerprint not in listed)] if not is_own(one.raw)]
    begun = [one.since for one in told if one.since]
    known = ledger.known_episodes(min(begun) - OVERLAP, wanted.labels) if begun else []
    found = news(told, known, silences_known)
    rows = _keep(ledger, found, known, wanted)
    if looked:  # not before its news are kept: nobody would ask for them again
        ledger.synced(PROMETHEUS, now)
    return {"news": [_record(one) for one in found], "rows": rows, "asked": len(told), "missing": missing}


def _of_prometheus(prometheus: Prometheus, wanted: Wanted, window: timedelta, now: datetime) -> list[Told]:
    """Only the last time that each fired: an earlier one is older than the newest delivery anyway."""
    external = prometheus.external_labels() if wanted.external_labels is None else wanted.external_labels
    span = "[%ds]" % window.total_seconds()
    firing = prometheus.raw("ALERTS{%s}%s" % (",".join(filter(None, ['alertstate="firing"', wanted.selector])), span))
    if not firing:
        return []
    found = episodes(firing, prometheus.raw("ALERTS_FOR_STATE{%s}%s" % (wanted.selector, span)))
    return [of_prometheus(one, external, now - window, now, wanted.labels) for one in found]


def _keep(ledger: Ledger, found: Sequence[Told], known: Sequence[Known], wanted: Wanted) -> list[Kept]:
    silenced = {(one.fingerprint, one.starts_at) for one in known if not one.decided}
    arrivals: list[tuple[Parcel, str]] = []
    again: list[bool] = []
    for one in found:
        [parcel] = parcels(message(one, wanted.receiver), wanted.labels)
        arrivals.append((parcel, "what %s knows" % (PROMETHEUS if one.rebuilt else "alertmanager")))
        again.append(bool(one.alert and (one.fingerprint, one.alert.starts_at) in silenced))
    return ledger.keep_news(arrivals, again) if arrivals else []


def _record(one: Told) -> dict[str, Any]:
    """What is believed of it, and nothing else (S1)."""
    return one.alert.record() if one.alert else {"fingerprint": one.fingerprint}
