# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import time
from email.utils import formatdate
from types import SimpleNamespace

import pytest
import urllib3
from ansible_collections.gpuops.remediation.plugins.module_utils._kube import errors
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.client import BadConnection, KubeApi, connect, node_path
from kube_fakes import Clock


class Server:
    """Answers in a row, as urllib3 would bring them; what was asked is kept."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = []
        configuration = SimpleNamespace(
            host="https://h", auth_settings=lambda: {"t": {"in": "header", "key": "authorization", "value": "S"}}
        )
        self.api = KubeApi(SimpleNamespace(configuration=configuration, rest_client=SimpleNamespace(pool_manager=self)), 10)

    def request(self, method, url, **rest):
        self.asked.append((method, url, rest))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        status, body, headers = answer
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return SimpleNamespace(status=status, data=data, headers=headers)


@pytest.mark.parametrize(
    "status, error, kind",
    [
        (401, errors.Forbidden, "forbidden"),
        (403, errors.Forbidden, "forbidden"),
        (404, errors.NotFound, "not_found"),
        (409, errors.Conflict, "conflict"),
        (422, errors.KubeError, "kube_error"),
        (429, errors.ApiUnavailable, "api_unavailable"),
        (500, errors.ApiUnavailable, "api_unavailable"),
        (503, errors.ApiUnavailable, "api_unavailable"),
    ],
)
def test_an_error_says_what_was_asked_and_what_the_server_said(status, error, kind):
    causes = [{"reason": "DisruptionBudget", "message": "needs 2"}]
    server = Server((status, {"message": "because", "details": {"causes": causes}}, {"Retry-After": "7"}))
    with pytest.raises(error, match=f"GET /x: {status} because") as raised:
        server.api.request("GET", "/x", Clock().deadline())
    assert (raised.value.kind, raised.value.status, raised.value.retry_after) == (kind, status, 7.0)
    assert raised.value.causes == ["DisruptionBudget: needs 2"]


@pytest.mark.parametrize(
    "body, told", [(b"<html>bad gateway", "<html>bad gateway"), (b"", ""), (b'["x"]', "x"), (b'{"reason": "Gone"}', "Gone")]
)
def test_an_answer_that_is_not_the_api_servers(body, told):
    with pytest.raises(errors.ApiUnavailable, match=f"502.*{told}"):
        Server((502, body, {"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"})).api.request("GET", "/x", Clock().deadline())


def test_no_answer():
    server = Server(urllib3.exceptions.ReadTimeoutError(None, "/x", "timed out"))
    with pytest.raises(errors.ApiUnavailable, match=r"no answer: .*timed out"):
        server.api.request("GET", "/x", Clock().deadline())


def test_each_request_has_a_timeout_within_the_deadline_and_no_other_retries():
    server = Server(*[(200, {}, {})] * 3)
    for seconds in (60, 4, 0):
        server.api.request("GET", "/x", Clock().deadline(seconds))
    assert [rest["timeout"] for _method, _url, rest in server.asked] == [10, 4, 1]
    assert {rest["retries"] for _method, _url, rest in server.asked} == {False}


def test_get_and_patch_are_tried_again():
    busy = (503, {}, {"Retry-After": "1"})
    server = Server(busy, (200, {"a": 1}, {}), busy, (200, {"b": 2}, {}))
    clock = Clock()
    assert server.api.get("/x", clock.deadline(), limit="5") == {"a": 1}
    assert server.api.patch("/x", {"c": 3}, clock.deadline()) == {"b": 2}
    assert clock.time == 2
    _method, url, _rest = server.asked[0]
    assert url == "https://h/x?limit=5"
    method, _url, rest = server.asked[-1]
    assert (method, rest["body"]) == ("PATCH", '{"c": 3}')
    assert rest["headers"]["Content-Type"] == "application/merge-patch+json"
    assert rest["headers"]["authorization"] == "S"


def test_the_servers_clock():
    """S5: whatever our own clock says; an answer that is late, or not dated, does not move it."""
    dates = [{"Date": formatdate(time.time() + ahead, usegmt=True)} for ahead in (-3600, -3603)]
    server = Server(*[(200, {}, headers) for headers in (*dates, {"Date": "yesterday"}, {})])
    assert server.api.now() == pytest.approx(time.time(), abs=1)
    while server.answers:
        server.api.request("GET", "/x", Clock().deadline())
        assert server.api.now() == pytest.approx(time.time() - 3600, abs=2)


def test_a_credential_plugins_words_are_not_repeated():
    server = Server()

    def broken():
        raise ValueError("token hunter2 refused")

    server.api._configuration.auth_settings = broken
    with pytest.raises(BadConnection) as raised:
        server.api.request("GET", "/x", Clock().deadline())
    assert "hunter2" not in str(raised.value)


def test_names_are_quoted():
    assert node_path("../secrets") == "/api/v1/nodes/..%2Fsecrets"


CONFIG = {
    "apiVersion": "v1",
    "kind": "Config",
    "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
    "users": [{"name": "u", "user": {"token": "hunter2"}}],
    "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
    "current-context": "x",
}


def test_connect(tmp_path):
    file = tmp_path / "kubeconfig"
    file.write_text(json.dumps(CONFIG))
    api = connect(str(file), "x", 1)
    with pytest.raises(errors.ApiUnavailable, match="GET /version: no answer") as raised:
        api.get("/version", Clock().deadline(1))
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    "content, context",
    [
        pytest.param(json.dumps(CONFIG), "y", id="no such context"),
        pytest.param("{hunter2", None, id="not YAML"),
        pytest.param(None, None, id="no file"),
    ],
)
def test_connect_fails_clearly(tmp_path, content, context):
    file = tmp_path / "kubeconfig"
    if content:
        file.write_text(content)
    with pytest.raises(BadConnection, match=r"no Kubernetes connection from .*kubeconfig") as raised:
        connect(str(file), context, 1)
    assert "hunter2" not in str(raised.value)


def test_in_cluster(tmp_path, monkeypatch):
    """Without any kubeconfig the pod's service account is meant; here there is none."""
    monkeypatch.setattr("kubernetes.config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "none"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(BadConnection, match="Service host/port is not set"):
        connect(None, None, 1)
