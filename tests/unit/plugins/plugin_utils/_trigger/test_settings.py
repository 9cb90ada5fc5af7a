# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._errors import RemediationError
from ansible_collections.gpuops.remediation.plugins.plugin_utils._trigger.settings import Settings

LEAST = {"tokens": "s3cret", "port": "5055"}


def test_the_least_that_is_needed():
    settings = Settings.of({**LEAST, "eda_feedback_queue": object(), "feedback": True})
    assert (settings.tokens, settings.port, settings.host, settings.tls) == (("s3cret",), 5055, "127.0.0.1", None)
    assert "s3cret" not in repr(settings)


def test_secrets_are_not_shown():
    given = {
        "ledger_url": "postgresql://me:pass@host/db",
        "prometheus_url": "https://me:pass@host",
        "prometheus_token": "pass",
        "alertmanager_token": "pass",
    }
    settings = Settings.of({**LEAST, **given})
    assert settings.prometheus_token == "pass" and "pass" not in repr(settings)


@pytest.mark.parametrize(
    ("given", "warned"),
    [
        ({}, False),
        ({"host": "::1"}, False),
        ({"host": "localhost"}, False),
        ({"host": "0.0.0.0"}, True),
        ({"host": "controller.example.org"}, True),
        ({"host": "0.0.0.0", "certfile": "c", "keyfile": "k"}, False),
    ],
)
def test_where_tokens_come_unencrypted(given, warned):
    assert Settings.of({**LEAST, **given}).takes_tokens_in_the_clear is warned


@pytest.mark.parametrize("urls", ["http://a", ["http://a"]])
def test_one_alertmanager_or_a_list(urls):
    assert Settings.of({**LEAST, "alertmanager_urls": urls}).alertmanager_urls == ("http://a",)


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ({"tokens": ""}, "tokens is needed"),
        ({"tokens": []}, "tokens is needed"),
        ({"tokens": ["a", ""]}, "tokens is needed"),
        ({"tokens": {}}, "tokens is needed"),
        ({"tokens": 7}, "a token is a number"),
        ({"tokens": ["a", 7]}, "text that is none"),
        ({"prometheus_token": 7}, "prometheus_token is a number"),
        ({"port": "x"}, "port is no number"),
        ({"port": 70000}, "port is 70000"),
        ({"window_seconds": -1}, "window_seconds"),
        ({"batch_size": 0}, "batch_size"),
        ({"max_body_bytes": 1 << 30}, "max_body_bytes"),
        ({"certfile": "c"}, "TLS needs"),
        ({"cafile": "c"}, "TLS needs"),
        ({"alert_labels": {"nod": "x"}}, "alert_labels has no nod"),
        ({"hots": "0.0.0.0"}, "no argument hots"),
        ({"fence_in": "both"}, "fence_in is one of source, playbook"),
        ({"limits": {"isolat_seconds": 1}}, "no limit isolat_seconds"),
        ({"correlation_seconds": 301}, "correlation_seconds"),
        ({"alertmanager_urls": {"a": 1}}, "alertmanager_urls is a list"),
        ({"alertmanager_urls": ["http://a", 7]}, "alertmanager_urls is a list"),
        ({"alertmanager_token": 7}, "text that is no number"),
    ],
)
def test_what_is_wrong_is_said(args, text):
    with pytest.raises(RemediationError, match=text):
        Settings.of({**LEAST, **args})


def test_a_port_is_needed():
    with pytest.raises(RemediationError, match="port is needed"):
        Settings.of({"tokens": "t"})
