# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import time

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._fleet.alertmanager import (
    Alertmanager,
    AlertmanagerUnavailable,
    UnknownReceiver,
)
from http_answers import Answers, answering

ALERTS, GROUPS, SILENCES, RECEIVERS = "/api/v2/alerts", "/api/v2/alerts/groups", "/api/v2/silences", "/api/v2/receivers"
NOWHERE = "http://user:pass@127.0.0.1:1/am?key=pass"


@pytest.fixture
def answers():
    with answering() as given:
        yield given


def refusal(*urls: str, **how) -> str:
    with pytest.raises(AlertmanagerUnavailable) as caught:
        Alertmanager(urls, **how).listed()
    return str(caught.value)


@pytest.fixture
def other():
    with answering() as given:
        yield given


def group(*alerts: dict) -> dict:
    return {"labels": {}, "receiver": {"name": "gpuops"}, "alerts": list(alerts)}


def listed(fingerprint: str, **held: list) -> dict:
    """As Alertmanager lists it; `mutedBy` is there since 0.28."""
    state = "suppressed" if held else "active"
    return {"fingerprint": fingerprint, "status": {"state": state, "silencedBy": [], "inhibitedBy": [], "mutedBy": [], **held}}


def fires(*urls: str) -> list:
    return [one["fingerprint"] for one in Alertmanager(urls).firing("gpuops")]


def test_what_fires_for_a_receiver(answers: Answers) -> None:
    alert = {"fingerprint": "a", "status": {"state": "active", "silencedBy": [], "inhibitedBy": []}}
    answers.by_path[GROUPS] = [group(alert), group(alert)]
    assert Alertmanager([answers.url + "/"], token="t0ken").firing("gpu.*") == [alert]
    [(_path, asked, headers)] = answers.asked
    assert asked == {"active": ["true"], "silenced": ["true"], "inhibited": ["false"], "receiver": ["gpu.*"]}
    assert headers["Authorization"] == "Bearer t0ken"


@pytest.mark.parametrize("receiver", ["gpuops", "gpu.*", "ml/(gpuops|other)", pytest.param("(?i)GPUOPS", id="not for us to say")])
def test_a_receiver_of_whom_nothing_fires(answers: Answers, receiver: str) -> None:
    answers.by_path.update({GROUPS: [], RECEIVERS: [{"name": "nobody"}, {"name": "gpuops"}, {"name": "ml/gpuops"}]})
    assert Alertmanager([answers.url]).firing(receiver) == []


@pytest.mark.parametrize("receiver", ["gpuop", "GPUOPS", "ml/.*"])
def test_a_receiver_that_is_not_there(answers: Answers, receiver: str) -> None:
    """It is told of nothing, which is not the same as nothing firing."""
    answers.by_path.update({GROUPS: [], RECEIVERS: [{"name": "nobody"}, {"name": "gpuops"}]})
    with pytest.raises(UnknownReceiver, match="it has gpuops, nobody"):
        Alertmanager([answers.url]).firing(receiver)


def test_a_muted_time_holds_back_as_a_silence_does(answers: Answers) -> None:
    """It is a matter of the route: another one of the same receiver may tell of the alert."""
    muted, silenced = {"mutedBy": ["nights"]}, {"silencedBy": ["1"]}
    answers.by_path[GROUPS] = [group(listed("a", **muted), listed("b", **silenced), listed("c", **muted)), group(listed("c"), listed("d"))]
    assert fires(answers.url) == ["c", "d"]


def test_all_of_a_cluster_are_asked(answers: Answers, other: Answers) -> None:
    """One that has just begun, or is cut off, knows neither all alerts nor all silences."""
    answers.by_path.update({GROUPS: [group(listed("a"), listed("b"))], ALERTS: [], SILENCES: []})
    other.by_path[GROUPS] = [group(listed("b", silencedBy=["1"]), listed("c"))]
    other.by_path[ALERTS] = [listed("b", silencedBy=["1"])]
    other.by_path[SILENCES] = [{"id": "1", "createdBy": "jane", "status": {"state": "active"}, "matchers": []}]
    assert fires(NOWHERE, answers.url, other.url) == ["a", "c"]
    cluster = Alertmanager([NOWHERE, answers.url, other.url])
    assert cluster.listed() == {"b"}
    assert cluster.silences().of("b") == "silence 1 of jane"


def test_all_of_a_cluster_are_asked_at_once(answers: Answers, other: Answers) -> None:
    for one in (answers, other):
        one.by_path[ALERTS], one.pause_seconds = "x" * 100, 0.2
    began = time.monotonic()
    with pytest.raises(AlertmanagerUnavailable):
        Alertmanager([answers.url, other.url], timeout_seconds=2).listed()
    assert time.monotonic() - began < 3.5


def test_without_silences_one_request(answers: Answers) -> None:
    answers.by_path[SILENCES] = [{"id": "1", "status": {"state": "expired"}}]
    assert Alertmanager([answers.url]).silences().of("a") is None
    assert len(answers.asked) == 1


def test_silences_with_the_alerts_that_they_hold_back(answers: Answers) -> None:
    answers.by_path[SILENCES] = [{"id": "1", "createdBy": "jane", "status": {"state": "active"}, "matchers": []}]
    answers.by_path[ALERTS] = [{"fingerprint": "a", "status": {"silencedBy": ["1"]}}]
    assert Alertmanager([answers.url]).silences().of("a") == "silence 1 of jane"
    assert answers.asked[1][1]["silenced"] == ["true"] and answers.asked[1][1]["active"] == ["false"]


def test_all_of_them_away_is_said_of_each_without_secrets(answers: Answers) -> None:
    answers.by_path[ALERTS], answers.status = "pass", 503
    said = refusal(NOWHERE, answers.url, token="t0ken")
    assert "http://127.0.0.1:1/am: no connection: Connection refused; " in said
    assert said.endswith("%s: HTTP status 503" % answers.url)


@pytest.mark.parametrize("answer", ["{", {"status": "error"}, ["x"]])
def test_what_is_not_alertmanagers_answer(answers: Answers, answer: object) -> None:
    answers.by_path[ALERTS] = answer
    assert "its answer is not" in refusal(answers.url)


def test_an_answer_that_drips_is_given_up_in_time(answers: Answers) -> None:
    answers.by_path[ALERTS], answers.pause_seconds = "x" * 100, 0.05
    began = time.monotonic()
    assert "no answer within 0.3 s" in refusal(answers.url, timeout_seconds=0.3)
    assert time.monotonic() - began < 2


def test_it_sends_nobody_elsewhere(answers: Answers, other: Answers) -> None:
    answers.by_path[ALERTS], answers.status, answers.location = [], 302, other.url + ALERTS
    assert "HTTP status 302" in refusal(answers.url, token="t0ken")
    assert other.asked == []
