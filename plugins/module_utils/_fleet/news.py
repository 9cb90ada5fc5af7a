# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Which of the alerts that the fleet tells of are news to the ledger."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from ansible_collections.gpuops.remediation.plugins.module_utils._fleet.episodes import Told

NEAR = timedelta(seconds=5)  # Prometheus's clock, its evaluations and its whole seconds
_SAME = ("name", "node", "gpu_uuid", "pci_bus_id", "gpu_index", "xid")


@dataclass(frozen=True)
class Known:
    """A firing episode that the ledger has; `decided` is false where a human's silence was the reason to leave it."""

    fingerprint: str
    starts_at: datetime
    facts: Mapping[str, Any]
    decided: bool = True


def news(told: Iterable[Told], known: Iterable[Known], silences_known: bool = True) -> list[Told]:
    """Those that nobody has told of, or that were left for a silence which may be over; what cannot be judged is for the inbox to recognise."""
    decided = [one for one in known if one.decided or not silences_known]
    by_fingerprint: dict[str, list[Known]] = {}
    by_facts: dict[tuple[Any, ...], list[Known]] = {}
    for one in decided:
        by_fingerprint.setdefault(one.fingerprint, []).append(one)
        by_facts.setdefault(_facts(one.facts), []).append(one)
    return [one for one in told if not _is_known(one, by_fingerprint, by_facts)]


def _is_known(one: Told, by_fingerprint: Mapping[str, list[Known]], by_facts: Mapping[tuple[Any, ...], list[Known]]) -> bool:
    if one.alert is None or one.since is None or one.until is None:
        return False
    same = list(by_fingerprint.get(one.fingerprint, ()))
    if one.rebuilt:  # labels that Prometheus adds on the way may be missing
        same += by_facts.get(_facts(one.alert.record()), ())
    if not one.alert.hint:  # what fires is more than a hint of it
        same = [have for have in same if not have.facts.get("hint")]
    return any(one.since - NEAR <= have.starts_at <= one.until + NEAR for have in same)


def _facts(facts: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(facts.get(name) for name in _SAME)
