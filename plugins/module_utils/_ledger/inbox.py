# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Messages: committed as they came, then judged alert by alert."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._fleet.silences import Silences
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.alerts import (
    Judged,
    LabelMap,
    is_own,
    judge_all,
    label_map,
    parse_message,
)
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.budget import Limits
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.errors import BadMessage
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.requests import UnknownNode, from_alert, place_of
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.changes import Changes
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.incidents import silenced_by

try:
    import sqlalchemy as sa
    from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.tables import INBOX
except ImportError:  # said by _ledger.database
    pass


class Inbox(Changes):
    def receive(self, body: bytes, source: str) -> int:
        """Keep a message; its id is all that anybody passes on (S1)."""
        with self.write() as connection:
            new = sa.insert(INBOX).values(received_at=self.now(), source=source, body=body).returning(INBOX.c.id)
            return int(connection.execute(new).scalar_one())

    def open_from_inbox(
        self,
        inbox_ids: Sequence[int],
        inventory: Mapping[str, Any],
        labels: Optional[LabelMap] = None,
        limits: Optional[Limits] = None,
        max_running: int = 0,
        silences: Optional[Silences] = None,
    ) -> dict[str, Any]:
        """Open or find the incidents of stored messages."""
        messages = []
        with self.read() as connection:
            for inbox_id in inbox_ids:
                row = connection.execute(sa.select(INBOX).where(INBOX.c.id == inbox_id)).first()
                if row is None:
                    raise BadMessage("the inbox has no message %s" % inbox_id)
                messages.append((row.id, row.body, row.received_at))
        return self._open_all(messages, inventory, labels, limits, max_running, silences)

    def open_from_file(
        self,
        body: bytes,
        source: str,
        inventory: Mapping[str, Any],
        labels: Optional[LabelMap] = None,
        limits: Optional[Limits] = None,
        max_running: int = 0,
        silences: Optional[Silences] = None,
    ) -> dict[str, Any]:
        """Open or find the incidents of a message that is received by being read."""
        return self._open_all([(self.receive(body, source), body, self.now())], inventory, labels, limits, max_running, silences)

    def _open_all(
        self,
        messages: Sequence[tuple[int, bytes, datetime]],
        inventory: Mapping[str, Any],
        labels: Optional[LabelMap],
        limits: Optional[Limits],
        max_running: int,
        silences: Optional[Silences],
    ) -> dict[str, Any]:
        records: dict[str, dict[str, Any]] = {}
        held: list[dict[str, Any]] = []
        ignored: list[dict[str, Any]] = []
        errors: list[BadMessage] = []
        truncated = 0
        for inbox_id, body, received_at in messages:
            try:
                message = parse_message(body)
            except BadMessage as error:
                self._handled(inbox_id, str(error))
                self._tell(inbox_id, "message_unreadable", str(error))
                errors.append(error)
                continue
            if message.truncated:
                truncated += message.truncated
                self._tell(inbox_id, "message_truncated", "Alertmanager left %d alerts out of the message" % message.truncated)
            for judged in judge_all(message, label_map(labels)):
                about = {"position": judged.position, "fingerprint": judged.fingerprint}
                if is_own(judged.raw):
                    ignored.append({**about, "reason": "our own notification"})
                    continue
                silence = silences.of(judged.fingerprint, judged.raw.get("labels")) if silences and judged.alert else None
                if judged.alert and silence:
                    self.leave_silenced(judged.alert, received_at, silence, None if self.check_mode else inbox_id)
                    ignored.append({**about, "reason": silenced_by(silence)})
                    continue
                try:
                    opening = self._open_judged(judged, inventory, received_at, limits, max_running)
                except UnknownNode:
                    opening = None
                if opening is None:
                    reason = judged.reason or "its node is not in the inventory"
                    self.hold_alert(judged.fingerprint, reason, judged.position, None if self.check_mode else inbox_id)
                    held.append({**about, "reason": reason})
                elif opening.record is None:
                    ignored.append({**about, "reason": opening.reason})
                else:
                    for record in opening.records:
                        key = "%s %s %s" % (record["id"], record["node"], record["gpu"])  # in check mode all new ones have the same id
                        records.setdefault(key, record)
            self._handled(inbox_id, None)
        if errors and not records and not held and not ignored:
            raise errors[0]
        held += [{"position": None, "fingerprint": None, "reason": str(error)} for error in errors]
        return {"incidents": list(records.values()), "held": held, "ignored": ignored, "truncated_alerts": truncated}

    def _open_judged(
        self, judged: Judged, inventory: Mapping[str, Any], received_at: datetime, limits: Optional[Limits], max_running: int
    ) -> Any:
        if judged.alert is None:
            return None
        place = place_of(inventory, judged.alert.node)
        return self.open_incident(from_alert(place, judged.alert, received_at), limits, max_running=max_running)

    def _tell(self, inbox_id: int, topic: str, reason: str) -> None:
        """What was not in a message, or could not be read of it, is lost to us but not to people."""
        self.notify("%s:%d" % (topic, inbox_id), topic, {"inbox_id": inbox_id, "reason": reason})

    def _handled(self, inbox_id: int, error: Optional[str]) -> None:
        with self.write() as connection:
            connection.execute(sa.update(INBOX).where(INBOX.c.id == inbox_id).values(handled_at=self.now(), error=error))
