# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._fleet.argspec import prometheus_of
from ansible_collections.gpuops.remediation.plugins.module_utils._fleet.prometheus import PrometheusUnavailable
from ansible_collections.gpuops.remediation.plugins.plugin_utils._trigger.fencer import witnesses
from ansible_collections.gpuops.remediation.plugins.plugin_utils._trigger.settings import Settings
from http_answers import answering


def test_prometheus_gets_its_token():
    with answering() as answers:
        answers.by_path["/api/v1/query"] = {"status": "success", "data": {"resultType": "vector", "result": []}}
        prometheus = prometheus_of(witnesses(Settings(("t",), 5055, prometheus_url=answers.url, prometheus_token="s3cret")))
        assert prometheus and prometheus.instant("up") == []
    assert answers.asked[0][2]["Authorization"] == "Bearer s3cret"


def test_prometheus_is_known_by_its_authority(tmp_path):
    """A file that is not there is missed, so it is what the certificate is checked by."""
    missing = tmp_path / "ca.crt"
    prometheus = prometheus_of(witnesses(Settings(("t",), 5055, prometheus_url="https://127.0.0.1:1", prometheus_ca_file=str(missing))))
    with pytest.raises(PrometheusUnavailable, match=str(missing)):
        prometheus.instant("up")
