# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What nobody has told of, out of what Alertmanager and Prometheus know; both are played, the ledger is real."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._fleet.alertmanager import AlertmanagerUnavailable
from ansible_collections.gpuops.remediation.plugins.module_utils._fleet.episodes import fingerprint
from ansible_collections.gpuops.remediation.plugins.module_utils._fleet.prometheus import PrometheusUnavailable
from ansible_collections.gpuops.remediation.plugins.module_utils._fleet.silences import Silences
from ansible_collections.gpuops.remediation.plugins.module_utils._fleet.sync import Wanted, sync
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.alerts import DEFAULT_LABELS
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.errors import LedgerUnavailable
from ledgers import NOON, clock, ledger, url

__all__ = ["clock", "ledger", "url"]

WANTED = Wanted("gpuops", 'alertname=~"Gpu.*"', DEFAULT_LABELS, timedelta(seconds=900))


class Alertmanager:
    def __init__(self, *firing: dict, listed: tuple = ()) -> None:
        self._firing, self._listed = list(firing), listed

    def firing(self, receiver: str) -> list:
        assert receiver == "gpuops"
        return self._firing

    def listed(self) -> set:
        return {one["fingerprint"] for one in [*self._firing, *self._listed]}


class Prometheus:
    def __init__(self, *series: tuple) -> None:
        self.series, self.asked = list(series), []

    def raw(self, query: str) -> list:
        self.asked.append(query)
        return self.series if query.startswith("ALERTS{") else []

    def external_labels(self) -> dict:
        return {"cluster": "a"}


class Away:
    def __getattr__(self, _name: str):
        def ask(*_arguments):
            raise self.error

        return ask

    def __init__(self, error: Exception) -> None:
        self.error = error


def labels(node: str = "gpu-1", **more: str) -> dict:
    return {"alertname": "GpuXid", "node": node, "xid": "79", **more}


def fires(seconds: float = 0, **more: str) -> dict:
    of = labels(**more)
    at = (NOON + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")
    return {"labels": of, "annotations": {}, "startsAt": at, "fingerprint": fingerprint(of), "status": {"state": "active"}}


def fired(*ages: float, **more: str) -> tuple:
    return {"__name__": "ALERTS", "alertstate": "firing", **labels(**more)}, [(NOON - timedelta(seconds=age), 1.0) for age in ages]


def test_what_no_webhook_has_brought(ledger):
    alertmanager = Alertmanager(fires(), fires(node="gpu-2"))
    found = sync(ledger, alertmanager, None, WANTED)
    assert [one["node"] for one in found["news"]] == ["gpu-1", "gpu-2"]
    assert [row.inbox_id for row in ledger.undecided()] == [row.inbox_id for row in found["rows"]]
    assert not any(one["hint"] for one in found["news"])

    assert sync(ledger, alertmanager, None, WANTED)["news"] == [], "while their rows wait"
    ledger.open_from_inbox([row.inbox_id for row in found["rows"]], {"gpu-1": {}, "gpu-2": {}})
    assert sync(ledger, alertmanager, None, WANTED)["news"] == [], "and when they are decided"


def test_what_is_over_is_a_hint_that_opens_an_incident(ledger):
    prometheus = Prometheus(fired(300, 285))
    found = sync(ledger, Alertmanager(), prometheus, WANTED)
    [incident] = ledger.open_from_inbox([row.inbox_id for row in found["rows"]], {"gpu-1": {}})["incidents"]
    assert incident["alert"]["hint"]
    assert incident["alert"]["fingerprint"] == fingerprint(labels(cluster="a"))
    assert sync(ledger, Alertmanager(), prometheus, WANTED)["news"] == []


@pytest.mark.parametrize(
    ("alertmanager", "hints"),
    [
        pytest.param(Alertmanager(), [False], id="it does not know it: Prometheus cannot reach it"),
        pytest.param(Alertmanager(listed=(fires(cluster="a"),)), [], id="it knows it, and tells somebody else or nobody"),
        pytest.param(None, [False], id="nobody else to ask"),
    ],
)
def test_what_prometheus_alone_sees_firing(ledger, alertmanager, hints):
    found = sync(ledger, alertmanager, Prometheus(fired(15, 0)), WANTED)
    assert [one["hint"] for one in found["news"]] == hints


def test_how_far_back_prometheus_is_asked(ledger, clock):
    """The first time a while, then since the last answer; an answer that failed is asked for again."""
    prometheus = Prometheus()

    def asked():
        sync(ledger, None, prometheus, WANTED)
        return prometheus.asked.pop()

    assert asked() == 'ALERTS{alertstate="firing",alertname=~"Gpu.*"}[900s]'
    clock.on(300)
    sync(ledger, None, Away(PrometheusUnavailable("away")), WANTED)
    clock.on(300)
    assert asked().endswith("[660s]")
    assert asked().endswith("[60s]")
    clock.on(10 * 86400)
    assert "its last day" in sync(ledger, None, prometheus, WANTED)["missing"][0]["why"]
    assert prometheus.asked.pop().endswith("[86400s]")


def test_a_look_whose_news_are_lost_is_repeated(ledger, clock, monkeypatch):
    """What fired and ended before a run that was killed is in nobody's memory but Prometheus's."""
    prometheus = Prometheus()
    sync(ledger, None, prometheus, WANTED)
    clock.on(300)
    prometheus.series = [fired(-30, -45)]
    with monkeypatch.context() as patch:
        patch.setattr(ledger, "keep_news", Away(LedgerUnavailable("away")).keep_news)
        with pytest.raises(LedgerUnavailable):
            sync(ledger, None, prometheus, WANTED)
    prometheus.asked.clear()
    assert len(sync(ledger, None, prometheus, WANTED)["rows"]) == 1
    assert prometheus.asked[0].endswith("[360s]")


def test_a_look_in_the_future_was_none(ledger, clock):
    """The clock was wrong, and was set back."""
    prometheus = Prometheus()
    sync(ledger, None, prometheus, WANTED)
    clock.on(-3600)
    for span in ("[900s]", "[60s]"):
        sync(ledger, None, prometheus, WANTED)
        assert prometheus.asked.pop().endswith(span)


def test_who_is_away_keeps_nobody_from_the_other(ledger):
    prometheus_away, alertmanager_away = Away(PrometheusUnavailable("p")), Away(AlertmanagerUnavailable("a"))
    found = sync(ledger, alertmanager_away, Prometheus(fired(0)), WANTED)
    assert (len(found["news"]), found["missing"]) == (1, [{"source": "alertmanager", "why": "a"}])
    found = sync(ledger, Alertmanager(fires(node="gpu-2")), prometheus_away, WANTED)
    assert (len(found["news"]), found["missing"]) == (1, [{"source": "prometheus", "why": "p"}])


def test_prometheus_brings_nothing_back_that_was_left_for_a_silence(ledger):
    """S6: it knows no silences, so that is for Alertmanager to say."""
    prometheus, away = Prometheus(fired(0)), Away(AlertmanagerUnavailable("a"))
    [row] = sync(ledger, Alertmanager(), prometheus, WANTED)["rows"]
    silences = Silences({fingerprint(labels(cluster="a")): "silence 1 of jane"})
    assert ledger.open_from_inbox([row.inbox_id], {"gpu-1": {}}, silences=silences)["incidents"] == []
    assert sync(ledger, away, prometheus, WANTED)["rows"] == []
    assert len(sync(ledger, Alertmanager(), prometheus, WANTED)["rows"]) == 1


def test_given_external_labels_are_not_asked_for(ledger):
    prometheus = Prometheus(fired(0))
    prometheus.external_labels = None
    found = sync(ledger, None, prometheus, replace(WANTED, external_labels={"cluster": "b"}))
    assert found["news"][0]["fingerprint"] == fingerprint(labels(cluster="b"))


def test_our_own_notifications_are_no_news_and_what_names_no_node_is_kept_for_people(ledger):
    nameless = fires(xid="48")
    del nameless["labels"]["node"]
    found = sync(ledger, Alertmanager(fires(alertname="GpuopsIncident"), nameless), None, WANTED)
    assert found["news"] == [{"fingerprint": nameless["fingerprint"]}]
    [row] = found["rows"]
    assert len(ledger.open_from_inbox([row.inbox_id], {})["held"]) == 1


def test_text_stays_in_the_inbox(ledger):
    """S1."""
    canary = "{{ lookup('pipe', 'id') }}"
    found = sync(ledger, Alertmanager(fires(alertname=canary, severity=canary)), Prometheus(fired(300, node="gpu-2", job=canary)), WANTED)
    assert len(found["news"]) == 2 and "{{" not in json.dumps(found["news"])
