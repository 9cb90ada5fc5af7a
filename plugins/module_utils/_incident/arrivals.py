# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Alerts on their way to incidents: how they are to be opened, and what became of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Callable, Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._diagnosis.correlation import Rule, domain_of
from ansible_collections.gpuops.remediation.plugins.module_utils._fleet.silences import Silences
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.alerts import Judged, LabelMap
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.budget import Limits
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.errors import BadMessage
from ansible_collections.gpuops.remediation.plugins.module_utils._xid.policy import Policy


@dataclass(frozen=True)
class Correlation:
    """domain_of: the domain in which an alert with this Xid may be one of many that are one fault, or None."""

    rule: Rule
    domain_of: Callable[[Optional[int]], Optional[str]]

    @classmethod
    def by(cls, policy: Policy, rule: Mapping[str, Any]) -> Correlation:
        return cls(Rule(**rule), partial(domain_of, policy=policy))


@dataclass(frozen=True)
class How:
    """What holds for all alerts that are opened together."""

    inventory: Mapping[str, Any]
    labels: LabelMap
    limits: Limits
    max_running: int = 0
    correlation: Optional[Correlation] = None
    silences: Optional[Silences] = None


@dataclass(frozen=True)
class Arrived:
    """One alert of a stored message."""

    inbox_id: int
    received_at: datetime
    judged: Judged

    @property
    def about(self) -> dict[str, Any]:
        return {"position": self.judged.position, "fingerprint": self.judged.fingerprint}


@dataclass
class Told:
    """What became of them."""

    records: dict[str, dict[str, Any]] = field(default_factory=dict)
    held: list[dict[str, Any]] = field(default_factory=list)
    ignored: list[dict[str, Any]] = field(default_factory=list)
    errors: list[BadMessage] = field(default_factory=list)
    truncated: int = 0

    def add(self, record: Mapping[str, Any]) -> None:
        key = "%s %s %s" % (record["id"], record["node"], record["gpu"])  # in check mode all new ones have the same id
        self.records.setdefault(key, dict(record))

    def answer(self) -> dict[str, Any]:
        """The module's part; raises where there is nothing but a message that cannot be read."""
        if self.errors and not self.records and not self.held and not self.ignored:
            raise self.errors[0]
        unreadable = [{"position": None, "fingerprint": None, "reason": str(error)} for error in self.errors]
        return {
            "incidents": list(self.records.values()),
            "held": self.held + unreadable,
            "ignored": self.ignored,
            "truncated_alerts": self.truncated,
        }
