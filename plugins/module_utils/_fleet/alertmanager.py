# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Alertmanager's API, version 2: what fires, and what a human has silenced. Of a cluster, the first that answers speaks for all."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Optional
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode

from ansible.module_utils.urls import open_url
from ansible_collections.gpuops.remediation.plugins.module_utils._errors import RemediationError
from ansible_collections.gpuops.remediation.plugins.module_utils._fleet.bounded import within
from ansible_collections.gpuops.remediation.plugins.module_utils._fleet.prometheus import without_secrets
from ansible_collections.gpuops.remediation.plugins.module_utils._fleet.silences import Silences

MAX_ANSWER_BYTES = 256 * 1024 * 1024


class AlertmanagerUnavailable(RemediationError):
    """None of the cluster gave a usable answer."""

    kind = "alertmanager_unavailable"


class Alertmanager:
    def __init__(
        self, urls: Sequence[str], timeout_seconds: float = 5.0, token: Optional[str] = None, ca_file: Optional[str] = None
    ) -> None:
        self._urls = [url.rstrip("/") for url in urls]
        self._timeout, self._ca_file = timeout_seconds, ca_file
        self._headers = {"Accept": "application/json", **({"Authorization": "Bearer " + token} if token else {})}

    def firing(self, receiver: str) -> list[Mapping[str, Any]]:
        """What a receiver whose name matches the pattern is told of: neither silenced nor inhibited."""
        return self._alerts(active="true", silenced="false", inhibited="false", unprocessed="true", receiver=receiver)

    def listed(self) -> set[str]:
        """The fingerprints of all that it knows to fire, told to anybody or not."""
        return {
            str(alert.get("fingerprint")) for alert in self._alerts(active="true", silenced="true", inhibited="true", unprocessed="true")
        }

    def silences(self) -> Silences:
        """One request while nothing is silenced, and else a second for the alerts that are."""
        active = [one for one in self._get("/api/v2/silences") if (one.get("status") or {}).get("state") == "active"]
        if not active:
            return Silences()
        return Silences.of_api(active, self._alerts(active="false", silenced="true", inhibited="true", unprocessed="false"))

    def _alerts(self, **wanted: str) -> list[Mapping[str, Any]]:
        return self._get("/api/v2/alerts?" + urlencode(wanted))

    def _get(self, path: str) -> list[Mapping[str, Any]]:
        whys = []
        for url in self._urls:
            try:
                answer = within(self._timeout, lambda url=url: self._read(url + path))  # type: ignore[misc]
            except Exception as error:
                whys.append("%s: %s" % (without_secrets(url), _words(error)))
                continue
            if isinstance(answer, list) and all(isinstance(one, dict) for one in answer):
                return answer
            whys.append("%s: its answer is not Alertmanager's" % without_secrets(url))
        raise AlertmanagerUnavailable("Alertmanager gives no answer: %s" % "; ".join(whys))

    def _read(self, url: str) -> Any:
        """Where it is comes from the configuration alone, so it may send nobody elsewhere."""
        response = open_url(
            url, headers=self._headers, timeout=self._timeout, ca_path=self._ca_file, follow_redirects="none", use_netrc=False
        )
        with response:
            body = response.read(MAX_ANSWER_BYTES + 1)
        if len(body) > MAX_ANSWER_BYTES:
            raise ValueError("too long")
        return json.loads(body)


def _words(error: Exception) -> str:
    """Of an error's own text only what can hold no secret."""
    if isinstance(error, HTTPError):
        return "HTTP status %d" % error.code
    if isinstance(error, URLError):
        reason = error.reason
        return "no connection: %s" % (reason.strerror or type(reason).__name__ if isinstance(reason, OSError) else reason)
    if isinstance(error, TimeoutError):
        return str(error)
    if isinstance(error, ValueError):
        return "its answer is not JSON"
    return type(error).__name__
