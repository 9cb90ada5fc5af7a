# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Prometheus, asked once a question: who asks has no time for the library's retries."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Callable, Optional, TypeVar
from urllib.parse import urlsplit

from ansible_collections.gpuops.remediation.plugins.module_utils._errors import RemediationError
from ansible_collections.gpuops.remediation.plugins.module_utils._fleet.bounded import within

Answer = TypeVar("Answer")
Series = tuple[Mapping[str, str], list[tuple[datetime, float]]]

_STATUS = re.compile(r"HTTP Status Code (\d{3})")  # how the library words every answer but 200


class PrometheusUnavailable(RemediationError):
    """It gave no usable answer, whatever the cause."""

    kind = "prometheus_unavailable"


@dataclass(frozen=True)
class Sample:
    """`time` is the sample's own where a range was asked for, and else the time of the evaluation."""

    labels: Mapping[str, str]
    value: float
    time: datetime


class Prometheus:
    def __init__(self, url: str, timeout_seconds: float = 5.0, token: Optional[str] = None, ca_file: Optional[str] = None) -> None:
        self._url, self._timeout, self._token, self._ca_file = url.rstrip("/"), timeout_seconds, token, ca_file
        self._client: Any = None
        self._session: Any = None

    def instant(self, query: str) -> list[Sample]:
        """One sample a series. A range (`metric{...}[60s]`) gives the newest raw one of each, with its own time: only that tells its age."""
        return [Sample(labels, value, time) for labels, points in self.raw(query) for time, value in points[-1:]]

    def raw(self, query: str) -> list[Series]:
        """Of a range, all samples as they were stored, each with its own time."""
        return self._series(query, lambda client: client.custom_query(query))

    def over(self, query: str, since: datetime, until: datetime, step_seconds: float) -> list[Series]:
        """Each series with its values at every step of a time, whose ends Prometheus's client rounds to seconds."""
        return self._series(query, lambda client: client.custom_query_range(query, since, until, "%gs" % step_seconds))

    def external_labels(self) -> dict[str, str]:
        """What it adds to each alert that it sends, and to no series of its own; refused where its configuration changes alerts further."""

        def ask(client: Any) -> dict[str, str]:
            answer = self._session.get(self._url + "/api/v1/status/config", auth=client.auth, timeout=self._timeout)
            if answer.status_code != 200:
                raise PrometheusUnavailable("HTTP status %d to its configuration" % answer.status_code)
            return external_labels(answer.json()["data"]["yaml"])

        return self._asked("its configuration", ask)

    def _series(self, query: str, ask: Callable[[Any], Any]) -> list[Series]:
        return self._asked(query, lambda client: [series for series in map(_series, ask(client)) if series[1]])

    def _asked(self, what: str, ask: Callable[[Any], Answer]) -> Answer:
        try:
            return within(self._timeout, lambda: ask(self._connected()))
        except ImportError as error:
            why = "the Python library prometheus-api-client is not installed (%s)" % error.name
        except PrometheusUnavailable as error:
            why = str(error)
        except Exception as error:
            why = _words(error, what)
        raise PrometheusUnavailable("Prometheus at %s gives no answer: %s" % (without_secrets(self._url), why))

    def _connected(self) -> Any:
        if self._client is None:
            import requests
            from prometheus_api_client import PrometheusConnect  # slow to import

            session = requests.Session()
            session.verify = self._ca_file or True
            session.max_redirects = 0  # where it is comes from the configuration alone
            self._session = session
            auth = _bearer(self._token) if self._token else None
            self._client = PrometheusConnect(self._url, retry=0, auth=auth, session=session, timeout=self._timeout)
        return self._client


def _bearer(token: str) -> Callable[[Any], Any]:
    """As `auth`, since a header alone gives way to a netrc file."""

    def sign(request: Any) -> Any:
        request.headers["Authorization"] = "Bearer " + token
        return request

    return sign


def external_labels(configuration: str) -> dict[str, str]:
    """Of Prometheus's configuration file, a YAML text."""
    import yaml

    whole = yaml.safe_load(configuration)
    if (whole.get("alerting") or {}).get("alert_relabel_configs"):
        raise PrometheusUnavailable("it relabels alerts, so which labels they are sent with has to be said (external_labels)")
    return {str(name): str(value) for name, value in ((whole.get("global") or {}).get("external_labels") or {}).items()}


def _series(result: Mapping[str, Any]) -> Series:
    """One of a vector or of a matrix; a native histogram has no values."""
    points = result.get("values", [result["value"]] if "value" in result else [])
    return dict(result["metric"]), [(datetime.fromtimestamp(float(at), timezone.utc), float(value)) for at, value in points]


def without_secrets(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


def _words(error: Exception, query: str) -> str:
    """Of an error's own text only what can hold no secret: requests quotes URLs and headers."""
    from requests import exceptions

    status = _STATUS.match(str(error))
    if status:
        return "HTTP status %s to %s" % (status[1], query)
    if isinstance(error, (TimeoutError, exceptions.Timeout)):
        return str(error) if isinstance(error, TimeoutError) else "no answer in time"
    if isinstance(error, exceptions.SSLError):
        return "its certificate is not trusted"
    if isinstance(error, exceptions.TooManyRedirects):
        return "it sends elsewhere, and only the configured address is asked"
    if isinstance(error, exceptions.ConnectionError):
        reason = getattr(error.args[0] if error.args else None, "reason", None)
        return "no connection" + (": %s" % str(reason).rpartition(": ")[2] if reason else "")
    if isinstance(error, exceptions.JSONDecodeError):
        return "its answer is not JSON"
    if isinstance(error, exceptions.RequestException):
        return "it cannot be asked (%s)" % type(error).__name__
    if isinstance(error, OSError):  # the file of authorities
        return str(error)
    return "its answer is not Prometheus's (%s)" % type(error).__name__
