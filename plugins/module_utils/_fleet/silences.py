# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""What humans have silenced. An inhibition is no human's word, so it is none."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._fleet.expressions import fits

_ID = re.compile(r"[0-9A-Za-z-]{1,64}")
_AUTHOR = re.compile(r"[0-9A-Za-z_.@+-]{1,64}")


@dataclass(frozen=True)
class Silences:
    """of_alert: words about the silence of each alert that Alertmanager knows and holds back, by fingerprint.

    active: every silence, as the API gives it. known: false where nobody could be asked; what was left for a silence then stays left.
    """

    of_alert: Mapping[str, str] = field(default_factory=dict)
    active: Sequence[Mapping[str, Any]] = ()
    known: bool = True

    @classmethod
    def of_api(cls, active: Sequence[Mapping[str, Any]], alerts: Sequence[Mapping[str, Any]]) -> Silences:
        by_id = {str(one.get("id")): words(one) for one in active}
        of_alert = {}
        for alert in alerts:
            ids = [one for one in (alert.get("status") or {}).get("silencedBy") or () if one in by_id]
            if ids:
                of_alert[str(alert.get("fingerprint"))] = by_id[ids[0]]
        return cls(of_alert, active)

    def of(self, fingerprint: str, labels: Any = None) -> Optional[str]:
        """Who has silenced an alert, in words. One that Alertmanager has forgotten already is judged by its labels."""
        if fingerprint in self.of_alert:
            return self.of_alert[fingerprint]
        if not isinstance(labels, Mapping):
            return None
        return next((words(one) for one in self.active if matches(one, labels)), None)


def words(silence: Mapping[str, Any]) -> str:
    """Written by others: what does not look like an id or a name is left out (S1)."""
    silence_id, author = str(silence.get("id")), str(silence.get("createdBy"))
    named = author if _AUTHOR.fullmatch(author) else "somebody"
    return "silence %s of %s" % (silence_id if _ID.fullmatch(silence_id) else "without a usable id", named)


def matches(silence: Mapping[str, Any], labels: Mapping[str, Any]) -> bool:
    """As Alertmanager does: every matcher, and a label that is absent is empty. One that cannot be read matches nothing, whatever its sign."""
    matchers = silence.get("matchers") or ()
    return bool(matchers) and all(_fits(one, str(labels.get(one.get("name"), ""))) for one in matchers)


def _fits(matcher: Mapping[str, Any], value: str) -> bool:
    wanted = str(matcher.get("value"))
    same = fits(wanted, value) if matcher.get("isRegex") else wanted == value
    return same is bool(matcher.get("isEqual", True))
