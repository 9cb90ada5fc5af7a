# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""The Kubernetes API as plain JSON.

The kubernetes library finds the server and the credentials; the objects go around its models, which would rewrite the times and drop the
fields that other writers put into the lists we patch.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
import traceback
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import quote, urlencode

from ansible.module_utils.basic import missing_required_lib
from ansible_collections.gpuops.remediation.plugins.module_utils._errors import RemediationError
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.deadline import Deadline
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.errors import (
    ApiUnavailable,
    Conflict,
    Forbidden,
    KubeError,
    NotFound,
)

try:
    from kubernetes import client as kube_client
    from kubernetes import config as kube_config
    from urllib3.exceptions import HTTPError

    IMPORT_ERROR: str | None = None
except ImportError:
    IMPORT_ERROR = traceback.format_exc()

MERGE_PATCH = "application/merge-patch+json"
CONNECTIONS = 16  # as many nodes of one call are written side by side
_ERRORS = {401: Forbidden, 403: Forbidden, 404: NotFound, 409: Conflict, 429: ApiUnavailable}


class BadConnection(RemediationError):
    kind = "bad_connection"


class KubeApi:
    """One server. Safe to share between threads."""

    def __init__(self, api_client: Any, timeout_seconds: float) -> None:
        self._configuration = api_client.configuration
        self._pool = api_client.rest_client.pool_manager
        self._timeout_seconds = timeout_seconds
        self._auth = threading.Lock()  # a refresh of credentials may run a program
        self._server_ahead_seconds: float | None = None

    def get(self, path: str, deadline: Deadline, **query: str) -> dict[str, Any]:
        """The object or list at `path`; tried until the deadline."""
        return deadline.attempt(lambda: self.request("GET", path, deadline, query=query), ApiUnavailable)

    def patch(self, path: str, body: Mapping[str, Any], deadline: Deadline, **query: str) -> dict[str, Any]:
        """A merge patch, tried until the deadline: `body` names a resourceVersion, so a patch whose answer was lost cannot happen twice."""
        return deadline.attempt(lambda: self.request("PATCH", path, deadline, body, query), ApiUnavailable)

    def request(
        self, method: str, path: str, deadline: Deadline, body: Mapping[str, Any] | None = None, query: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """One try."""
        what = f"{method} {path}"
        timeout = max(1.0, min(self._timeout_seconds, deadline.left()))
        headers = {"Accept": "application/json", "User-Agent": "gpuops.remediation", **self._credentials()}
        if body is not None:
            headers["Content-Type"] = MERGE_PATCH if method == "PATCH" else "application/json"
        try:
            answer = self._pool.request(
                method,
                self._configuration.host + path + ("?" + urlencode(query) if query else ""),
                body=None if body is None else json.dumps(body),
                headers=headers,
                timeout=timeout,
                retries=False,  # ours know the deadline
            )
        except HTTPError as error:
            raise ApiUnavailable(f"{what}: no answer: {error}") from error
        self._set_clock(answer.headers.get("Date"))
        if answer.status < 300:
            return _json(answer.data)
        raise _error(what, answer.status, _json(answer.data), answer.headers.get("Retry-After"))

    def now(self) -> float:
        """The server's time, which all its clients share, in seconds since 1970; to about a second, and ours before its first answer."""
        return time.time() + (self._server_ahead_seconds or 0.0)

    def _set_clock(self, date: str | None) -> None:
        """Answers are dated to the second, rounded down: the latest that any of them says is nearest to the truth."""
        with contextlib.suppress(TypeError, ValueError):
            ahead = parsedate_to_datetime(date or "").timestamp() - time.time()
            self._server_ahead_seconds = ahead if self._server_ahead_seconds is None else max(self._server_ahead_seconds, ahead)

    def _credentials(self) -> dict[str, str]:
        with self._auth:
            try:
                settings = self._configuration.auth_settings().values()
            except Exception as error:  # whatever a credential plugin raises; its text may hold a secret
                raise BadConnection(f"no Kubernetes credentials: {type(error).__name__}") from None
        return {setting["key"]: setting["value"] for setting in settings if setting["in"] == "header" and setting["value"]}


def _json(data: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(data or b"{}")
    except ValueError:  # a proxy's page, an admission handler's plain text
        answer = {"message": data[:200].decode("utf-8", "replace")}
    return answer if isinstance(answer, dict) else {"message": str(answer)}


def _error(what: str, status: int, answer: Mapping[str, Any], retry_after: str | None) -> KubeError:
    causes: list[str] = [
        "{}: {}".format(cause.get("reason", ""), cause.get("message", "")) for cause in (answer.get("details") or {}).get("causes") or ()
    ]
    error = _ERRORS.get(status, ApiUnavailable if status >= 500 else KubeError)
    return error(
        "{}: {} {}".format(what, status, answer.get("message") or answer.get("reason") or "").strip(),
        status=status,
        causes=causes,
        retry_after=float(retry_after) if retry_after and retry_after.isdigit() else None,
    )


def node_path(name: str) -> str:
    return "/api/v1/nodes/" + quote(name, safe="")


def connect(kubeconfig: str | None, context: str | None, timeout_seconds: float) -> KubeApi:
    """The API that the kubeconfig names; without one, the cluster in which this process runs."""
    if IMPORT_ERROR:
        raise BadConnection(missing_required_lib("kubernetes"), exception=IMPORT_ERROR)
    config: Any = kube_config
    configuration = kube_client.Configuration()
    configuration.connection_pool_maxsize = CONNECTIONS
    path = kubeconfig or os.path.expanduser(config.KUBE_CONFIG_DEFAULT_LOCATION)
    try:
        if kubeconfig or context or any(os.path.exists(part) for part in path.split(os.pathsep)):
            config.load_kube_config(path, context, configuration)
        else:
            config.load_incluster_config(configuration)
    except config.ConfigException as error:
        raise BadConnection(f"no Kubernetes connection from {path}: {error}") from error
    except Exception as error:  # YAML's, the system's, a credential plugin's: their texts may quote the file
        raise BadConnection(f"no Kubernetes connection from {path}: {type(error).__name__}") from None
    return KubeApi(kube_client.ApiClient(configuration), timeout_seconds)
