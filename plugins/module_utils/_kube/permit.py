# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""What is asked, in this order, before anything is written: may we (ledger), is it still ours (lock), is there room (breaker), is it on record."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Callable, Protocol

from ansible_collections.gpuops.remediation.plugins.module_utils._incident.errors import UnknownChange

NODE_PARTS = ("cordon", "taint")  # what stands in the node's own API object


class Change(Protocol):
    """One row of the ledger: something that we altered, and who wants it so."""

    @property
    def id(self) -> int: ...

    @property
    def target(self) -> str: ...

    @property
    def before(self) -> Any: ...

    @property
    def wanted(self) -> Any: ...

    @property
    def status(self) -> str: ...

    @property
    def owners(self) -> Sequence[str]: ...


class Ledger(Protocol):
    """What this package needs of the ledger. One that was opened for check mode takes back whatever is written."""

    def authorize(self, incident_id: str, write: str) -> object: ...

    def take_slot(self, incident_id: str, node: str, groups: Mapping[str, Any]) -> object: ...

    def intend(self, incident_id: str, target: str, before: Any, wanted: Any) -> Change: ...

    def applied(self, change_id: int, after: Any) -> Change: ...

    def open_change(self, target: str) -> object: ...

    def disown(self, incident_id: str, target: str) -> Change: ...

    def reverted(self, change_id: int) -> object: ...

    def changes(self, incident_id: str) -> Sequence[Change]: ...


@dataclass(frozen=True)
class Incident:
    """On whose behalf a node is written."""

    id: str
    ledger: Ledger
    groups: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Permit:
    """Asked before each write to one node. An operator's own use has neither incident nor, usually, lock.

    Changes are named here by their part of the node: `taint/<key>:<effect>`, `cordon`, or `device-taint/<rule>` for one of its devices.
    """

    node: str
    incident: Incident | None = None
    renew_lock: Callable[[], object] | None = None

    def check(self, write: str) -> None:
        """Raises whatever forbids this write now."""
        if self.incident:
            self.incident.ledger.authorize(self.incident.id, write)
        if self.renew_lock:
            self.renew_lock()

    def take_slot(self) -> None:
        if self.incident:
            self.incident.ledger.take_slot(self.incident.id, self.node, self.incident.groups)

    def changes(self, *kinds: str) -> dict[str, Change]:
        """What this incident has changed on this node's API object, as far as it stands, or else of the `kinds` of part that are named."""
        if not self.incident:
            return {}
        found = [change for change in self.incident.ledger.changes(self.incident.id) if change.status in ("intended", "applied")]
        prefix = self._target("")
        parts = {change.target[len(prefix) :]: change for change in found if change.target.startswith(prefix)}
        return {part: change for part, change in parts.items() if part.partition("/")[0] in (kinds or NODE_PARTS)}

    def intend(self, part: str, before: Any, wanted: Any) -> Change | None:
        if not self.incident:
            return None
        return self.incident.ledger.intend(self.incident.id, self._target(part), before, wanted)

    def applied(self, change: Change, after: Any) -> bool:
        """Whether anybody still wants it: without a lock, a release may have come between the ledger's word and the write."""
        if self.incident and change.status == "intended":
            return self.incident.ledger.applied(change.id, after).status != "reverted"
        return True

    def is_free(self, part: str) -> bool:
        """Whether no incident wants this part of the node to be as we made it."""
        return self.incident is None or self.incident.ledger.open_change(self._target(part)) is None

    def disown(self, parts: Iterable[str]) -> dict[str, Change]:
        """Stop wanting these changes; those that nobody else wants are ours to undo."""
        if not self.incident:
            return {}
        sole: dict[str, Change] = {}
        for part in parts:
            with contextlib.suppress(UnknownChange):  # another incident was the last to want it, and has undone it
                change = self.incident.ledger.disown(self.incident.id, self._target(part))
                if not change.owners:
                    sole[part] = change
        return sole

    def reverted(self, change: Change) -> None:
        if self.incident:
            self.incident.ledger.reverted(change.id)

    def _target(self, part: str) -> str:
        return target_of(self.node, part)


def target_of(node: str, part: str) -> str:
    """How the ledger names a part of a node."""
    return f"node/{node}/{part}"
