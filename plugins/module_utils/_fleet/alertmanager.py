# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Alertmanager's API, version 2: what fires, and what a human has silenced. Of a cluster, all are asked."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Optional
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode

from ansible.module_utils.urls import open_url
from ansible_collections.gpuops.remediation.plugins.module_utils._errors import RemediationError
from ansible_collections.gpuops.remediation.plugins.module_utils._fleet.bounded import each_within
from ansible_collections.gpuops.remediation.plugins.module_utils._fleet.expressions import fits
from ansible_collections.gpuops.remediation.plugins.module_utils._fleet.prometheus import without_secrets
from ansible_collections.gpuops.remediation.plugins.module_utils._fleet.silences import Silences

MAX_ANSWER_BYTES = 256 * 1024 * 1024


class AlertmanagerUnavailable(RemediationError):
    """None of the cluster gave a usable answer."""

    kind = "alertmanager_unavailable"


class UnknownReceiver(RemediationError):
    """Nobody is told of anything under that name, so nothing that fires is seen by it."""

    kind = "unknown_receiver"


class Alertmanager:
    def __init__(
        self, urls: Sequence[str], timeout_seconds: float = 5.0, token: Optional[str] = None, ca_file: Optional[str] = None
    ) -> None:
        self._urls = [url.rstrip("/") for url in urls]
        self._timeout, self._ca_file = timeout_seconds, ca_file
        self._headers = {"Accept": "application/json", **({"Authorization": "Bearer " + token} if token else {})}

    def firing(self, receiver: str) -> list[Mapping[str, Any]]:
        """What a receiver whose name matches the pattern is told of: not inhibited, and held back by nobody's silence or muted time.

        Only the groups say what is muted: it is a matter of the route. No group at all may mean that there is no such receiver.
        """
        wanted = urlencode({"active": "true", "silenced": "true", "inhibited": "false", "receiver": receiver})
        told: dict[str, Mapping[str, Any]] = {}
        quiet: set[str] = set()
        answers = self._get("/api/v2/alerts/groups?" + wanted)
        if not any(answers):
            self._check_receiver(receiver)
        for groups in answers:
            held: dict[str, bool] = {}
            for alert in (alert for group in groups for alert in group.get("alerts") or ()):
                fingerprint, status = str(alert.get("fingerprint")), alert.get("status") or {}
                told.setdefault(fingerprint, alert)
                held[fingerprint] = held.get(fingerprint, True) and bool(status.get("silencedBy") or status.get("mutedBy"))
            quiet.update(fingerprint for fingerprint, is_held in held.items() if is_held)
        return [alert for fingerprint, alert in told.items() if fingerprint not in quiet]

    def _check_receiver(self, receiver: str) -> None:
        names = {str(one.get("name")) for answer in self._get("/api/v2/receivers") for one in answer}
        if all(fits(receiver, name) is False for name in names):
            raise UnknownReceiver("Alertmanager has no receiver whose name matches %s; it has %s" % (receiver, ", ".join(sorted(names))))

    def listed(self) -> set[str]:
        """The fingerprints of all that it knows to fire, told to anybody or not."""
        wanted = {"active": "true", "silenced": "true", "inhibited": "true", "unprocessed": "true"}
        return {str(alert.get("fingerprint")) for alert in self._alerts(**wanted)}

    def silences(self) -> Silences:
        """One request while nothing is silenced, and else a second for the alerts that are. One that has just begun knows no silence yet."""
        silences = [one for answer in self._get("/api/v2/silences") for one in answer]
        active = [one for one in silences if (one.get("status") or {}).get("state") == "active"]
        if not active:
            return Silences()
        return Silences.of_api(active, self._alerts(active="false", silenced="true", inhibited="true", unprocessed="false"))

    def _alerts(self, **wanted: str) -> list[Mapping[str, Any]]:
        return [alert for answer in self._get("/api/v2/alerts?" + urlencode(wanted)) for alert in answer]

    def _get(self, path: str) -> list[list[Mapping[str, Any]]]:
        """The answers of all that give one."""
        found, whys = [], []
        answers = each_within(self._timeout, [partial(self._read, url + path) for url in self._urls])
        for url, answer in zip(self._urls, answers):
            if isinstance(answer, BaseException):
                whys.append("%s: %s" % (without_secrets(url), _words(answer)))
            elif isinstance(answer, list) and all(isinstance(one, dict) for one in answer):
                found.append(answer)
            else:
                whys.append("%s: its answer is not Alertmanager's" % without_secrets(url))
        if not found:
            raise AlertmanagerUnavailable("Alertmanager gives no answer: %s" % "; ".join(whys))
        return found

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


def _words(error: BaseException) -> str:
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
