# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._fleet.prometheus import Prometheus, PrometheusUnavailable
from http_answers import Answers, answering

AT = datetime(2026, 3, 1, 10, tzinfo=timezone.utc)
QUERY, RANGE = "/api/v1/query", "/api/v1/query_range"


@pytest.fixture
def answers():
    with answering() as given:
        yield given


def series(kind: str, *results: dict) -> dict:
    return {"status": "success", "data": {"resultType": kind, "result": list(results)}}


def refusal(answers: Answers, **how) -> str:
    with pytest.raises(PrometheusUnavailable) as caught:
        Prometheus(how.pop("url", answers.url), **how).instant("up")
    assert caught.value.failure()["error_kind"] == "prometheus_unavailable"
    return str(caught.value)


def test_a_vector_has_the_time_of_the_evaluation(answers: Answers) -> None:
    answers.by_path[QUERY] = series("vector", {"metric": {"node": "n1"}, "value": [AT.timestamp(), "2"]})
    (sample,) = Prometheus(answers.url + "/").instant("up")
    assert (sample.labels, sample.value, sample.time) == ({"node": "n1"}, 2.0, AT)
    assert [(path, asked["query"]) for path, asked, _headers in answers.asked] == [(QUERY, ["up"])]


def test_of_a_range_the_newest_raw_sample_counts_and_an_empty_series_is_none(answers: Answers) -> None:
    older = [AT.timestamp() - 15.25, "1"]
    answers.by_path[QUERY] = series(
        "matrix", {"metric": {"node": "n1"}, "values": [older, [AT.timestamp() - 0.25, "3"]]}, {"metric": {"node": "n2"}, "histograms": []}
    )
    (sample,) = Prometheus(answers.url).instant("up[60s]")
    assert (sample.value, sample.time) == (3.0, AT - timedelta(seconds=0.25))


def test_over_gives_each_series_with_its_values(answers: Answers) -> None:
    answers.by_path[RANGE] = series("matrix", {"metric": {"a": "b"}, "values": [[AT.timestamp(), "1"], [AT.timestamp() + 15, "1"]]})
    found = Prometheus(answers.url).over("ALERTS", AT, AT + timedelta(seconds=15), 15.0)
    assert found == [({"a": "b"}, [(AT, 1.0), (AT + timedelta(seconds=15), 1.0)])]
    assert answers.asked[0][1] == {
        "query": ["ALERTS"],
        "start": ["%d" % AT.timestamp()],
        "end": ["%d" % (AT.timestamp() + 15)],
        "step": ["15s"],
    }


@pytest.mark.parametrize("status", [400, 401, 429, 500, 503])
def test_whatever_is_answered_but_200_is_asked_once(answers: Answers, status: int) -> None:
    answers.by_path[QUERY], answers.status = "secret in a body", status
    assert refusal(answers).endswith("HTTP status %d to up" % status)
    assert len(answers.asked) == 1


@pytest.mark.parametrize("answer", ["{", "[]", {"data": {"result": [1]}}, series("scalar", AT.timestamp(), "1")])
def test_what_is_not_prometheus_answer_is_no_evidence(answers: Answers, answer: object) -> None:
    answers.by_path[QUERY] = answer
    assert "its answer is not" in refusal(answers)


def test_an_answer_that_drips_is_given_up_in_time(answers: Answers) -> None:
    answers.by_path[QUERY], answers.pause_seconds = "x" * 100, 0.05
    began = time.monotonic()
    assert "no answer within 0.3 s" in refusal(answers, timeout_seconds=0.3)
    assert time.monotonic() - began < 2


def test_the_token_is_sent_there_and_nowhere_else(answers: Answers) -> None:
    answers.by_path[QUERY] = series("vector")
    assert Prometheus(answers.url, token="t0ken").instant("up") == []
    assert answers.asked[0][2]["Authorization"] == "Bearer t0ken"
    with answering() as other:
        answers.status, answers.location = 307, other.url + QUERY
        assert "only the configured address" in refusal(answers, token="t0ken")
        assert other.asked == []


def test_no_secret_is_in_an_error() -> None:
    words = refusal(Answers(), url="http://user:pass@127.0.0.1:1/prom?key=pass", token="t0ken")
    assert words == "Prometheus at http://127.0.0.1:1/prom gives no answer: no connection: [Errno 111] Connection refused"


def test_a_file_of_authorities_that_is_missing_is_named(tmp_path) -> None:
    assert str(tmp_path / "ca.pem") in refusal(Answers(), url="https://127.0.0.1:1", ca_file=str(tmp_path / "ca.pem"))


CONFIGURATION = "/api/v1/status/config"


def test_external_labels_are_read_of_its_configuration(answers: Answers) -> None:
    answers.by_path[CONFIGURATION] = {"data": {"yaml": "global:\n  external_labels:\n    cluster: a\n    shard: 2\n"}}
    assert Prometheus(answers.url).external_labels() == {"cluster": "a", "shard": "2"}
    answers.by_path[CONFIGURATION] = {"data": {"yaml": "global: {scrape_interval: 15s}\n"}}
    assert Prometheus(answers.url).external_labels() == {}


@pytest.mark.parametrize(
    ("answer", "status", "why"),
    [
        ({"data": {"yaml": "alerting: {alert_relabel_configs: [{action: labeldrop, regex: replica}]}"}}, 200, "it relabels alerts"),
        ({}, 403, "HTTP status 403"),
        ({"data": {"yaml": "[]"}}, 200, "its answer is not Prometheus's"),
    ],
)
def test_external_labels_that_are_not_sure_are_not_guessed(answers: Answers, answer: object, status: int, why: str) -> None:
    answers.by_path[CONFIGURATION], answers.status = answer, status
    with pytest.raises(PrometheusUnavailable, match=why):
        Prometheus(answers.url).external_labels()
