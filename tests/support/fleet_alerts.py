# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a Prometheus and people tell Alertmanager by its API: alerts that fire, and silences."""

from __future__ import annotations

import datetime as dt
import json
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def now(seconds: float = 0) -> str:
    return (dt.datetime.now(dt.timezone.utc) + dt.timedelta(seconds=seconds)).isoformat()


def fire(url: str, message: Path) -> None:
    """The alerts of a webhook message, as Prometheus would have sent them."""
    alerts = json.loads(message.read_text())["alerts"]
    names = ("labels", "annotations", "startsAt")
    _request("POST", url + "/api/v2/alerts", [{**{name: alert[name] for name in names}, "endsAt": now(3600)} for alert in alerts])


def silence(url: str, labels: Mapping[str, str], author: str = "jane") -> str:
    """The id of a silence that begins now."""
    matchers = [{"name": name, "value": value, "isRegex": False} for name, value in labels.items()]
    wanted = {"matchers": matchers, "startsAt": now(), "endsAt": now(3600), "createdBy": author, "comment": "a test"}
    return str(_request("POST", url + "/api/v2/silences", wanted)["silenceID"])


def unsilence(url: str, silence_id: str) -> None:
    _request("DELETE", f"{url}/api/v2/silence/{silence_id}")


def _request(method: str, url: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.loads(answer.read() or b"null")
