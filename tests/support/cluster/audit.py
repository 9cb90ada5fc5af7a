# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The API server's audit log: what was asked of it, by whom, and with which answer.

An entry is written before its client has the whole answer, so that a test may read the log at once.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Container, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})


@dataclass(frozen=True)
class Entry:
    time: str  # when it was received, ISO UTC
    answered: str  # and answered
    user: str
    verb: str
    resource: str  # with its subresource: pods/eviction
    namespace: str
    name: str
    code: int  # 0 while it is unanswered
    dry_run: bool
    request: dict[str, Any]  # the body, where the policy keeps it
    response: dict[str, Any]


def now() -> str:
    """A point in time for `since`."""
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def read(
    log: Path,
    *,
    verb: str | Container[str] | None = None,
    resource: str | None = None,
    user: str | None = None,
    name: str | None = None,
    code: int | None = None,
    since: str = "",
) -> list[Entry]:
    """The entries that match everything given; `verb` may be a set, as WRITES."""
    wanted = {"resource": resource, "user": user, "name": name, "code": code}
    return [
        entry
        for entry in _entries(log)
        if entry.time >= since
        and (verb is None or (entry.verb == verb if isinstance(verb, str) else entry.verb in verb))
        and all(value is None or getattr(entry, key) == value for key, value in wanted.items())
    ]


def _entries(log: Path) -> Iterator[Entry]:
    with log.open() as lines:
        for line in lines:
            if not line.endswith("\n"):
                return  # half of an entry that is being written
            event = json.loads(line)
            if event["stage"] not in ("ResponseComplete", "Panic"):
                continue  # watches only say that they began
            target = event.get("objectRef", {})
            yield Entry(
                time=event["requestReceivedTimestamp"],
                answered=event["stageTimestamp"],
                user=event.get("user", {}).get("username", ""),
                verb=event["verb"],
                resource="/".join(filter(None, (target.get("resource"), target.get("subresource")))),
                namespace=target.get("namespace", ""),
                name=target.get("name", ""),
                code=event.get("responseStatus", {}).get("code", 0),
                dry_run="dryRun=" in event["requestURI"] or "dryRun" in (event.get("requestObject") or {}),
                request=event.get("requestObject") or {},
                response=event.get("responseObject") or {},
            )
