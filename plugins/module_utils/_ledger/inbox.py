# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Messages: committed as they came, then judged alert by alert."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Callable, Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._fleet.silences import Silences
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.alerts import (
    Alert,
    Judged,
    LabelMap,
    is_own,
    judge_all,
    label_map,
    parse_message,
)
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.arrivals import Arrived, Correlation, How, Told
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.budget import Limits
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.errors import BadMessage
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.requests import from_alert, place_with
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.chunks import chunks
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.groups import Groups
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.incidents import Opening, silenced_by
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.storm import Storm

try:
    import sqlalchemy as sa
    from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.tables import INBOX
except ImportError:  # said by _ledger.database
    pass

Message = tuple[int, bytes, datetime]


class Inbox(Groups, Storm):
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
        correlation: Optional[Correlation] = None,
        silences: Optional[Silences] = None,
    ) -> dict[str, Any]:
        """Open or find the incidents of stored messages that nobody has decided since they were handed over."""
        messages, decided = self._messages(inbox_ids)
        missing = sorted(set(inbox_ids) - {inbox_id for inbox_id, _body, _received_at in messages} - set(decided))
        if missing:
            raise BadMessage("the inbox has no message %s" % missing[0])
        answer = self._open_all(messages, How(inventory, label_map(labels), limits or Limits(), max_running, correlation, silences))
        answer["ignored"] += [{"inbox_id": inbox_id, "reason": "another run has decided this message"} for inbox_id in decided]
        return answer

    def open_from_file(
        self,
        body: bytes,
        source: str,
        inventory: Mapping[str, Any],
        labels: Optional[LabelMap] = None,
        limits: Optional[Limits] = None,
        max_running: int = 0,
        correlation: Optional[Correlation] = None,
        silences: Optional[Silences] = None,
    ) -> dict[str, Any]:
        """Open or find the incidents of a message that is received by being read."""
        message = (self.receive(body, source), body, self.now())
        return self._open_all([message], How(inventory, label_map(labels), limits or Limits(), max_running, correlation, silences))

    def open_some(self, inbox_ids: Sequence[int], how: How, wanted: Callable[[Alert], bool]) -> list[dict[str, Any]]:
        """Open or find the incidents of those alerts that are wanted now and not silenced; their messages wait on for a run that decides all."""
        arrived = [
            (Arrived(inbox_id, received_at, judged), judged.alert)
            for inbox_id, body, received_at in self._messages(inbox_ids)[0]
            for judged in judge_all(parse_message(body), how.labels)
            if judged.alert and judged.alert.node in how.inventory and wanted(judged.alert) and not _silence(judged, how)
        ]
        records, others = self.open_plain(arrived, how) if arrived else ([], [])
        for one, alert in others:
            if not self._is_recreated(place_with(how.inventory, alert)):  # who has only a list of the nodes may be behind it
                records += self._open_alert(one, alert, how).records
        return list({record["id"]: record for record in records}.values())

    def _messages(self, inbox_ids: Sequence[int]) -> tuple[list[Message], list[int]]:
        """Those that wait, and the ids of those that are decided."""
        waiting: list[Message] = []
        decided: list[int] = []
        rows = sa.select(INBOX.c.id, INBOX.c.body, INBOX.c.received_at).where(INBOX.c.handled_at.is_(None)).order_by(INBOX.c.id)
        others = sa.select(INBOX.c.id).where(INBOX.c.handled_at.is_not(None)).order_by(INBOX.c.id)
        with self.read() as connection:
            for some in chunks(sorted(set(inbox_ids))):
                waiting += [(row.id, row.body, row.received_at) for row in connection.execute(rows.where(INBOX.c.id.in_(some)))]
                decided += connection.execute(others.where(INBOX.c.id.in_(some))).scalars()
        return waiting, decided

    def _open_all(self, messages: Sequence[Message], how: How) -> dict[str, Any]:
        told, arrived, readable = Told(), [], []
        for inbox_id, body, received_at in messages:
            try:
                message = parse_message(body)
            except BadMessage as error:
                self._handled([inbox_id], str(error))
                self._tell(inbox_id, "message_unreadable", str(error))
                told.errors.append(error)
                continue
            if message.truncated:
                told.truncated += message.truncated
                self._tell(inbox_id, "message_truncated", "Alertmanager left %d alerts out of the message" % message.truncated)
            arrived += [Arrived(inbox_id, received_at, judged) for judged in judge_all(message, how.labels)]
            readable.append(inbox_id)
        still_left = self.left_for_silences() if how.silences and not how.silences.known else {}
        arrived = [one for one in arrived if not self._is_left(one, how, still_left, told)]
        for one in self.open_groups(arrived, how, told):
            self._open_or_hold(one, how, told)
        self._handled(readable, None)
        return told.answer()

    def _is_left(self, one: Arrived, how: How, still_left: Mapping[tuple[str, datetime], str], told: Told) -> bool:
        """Nothing is done for our own notifications, nor for what a human has silenced (S6)."""
        if is_own(one.judged.raw):
            told.ignored.append({**one.about, "reason": "our own notification"})
            return True
        alert = one.judged.alert
        if alert is None or how.silences is None:
            return False
        silence = _silence(one.judged, how) or still_left.get((alert.fingerprint, alert.starts_at))
        if silence is None:
            return False
        self.leave_silenced(alert, one.received_at, silence, None if self.check_mode else one.inbox_id)
        told.ignored.append({**one.about, "reason": silenced_by(silence)})
        return True

    def _open_or_hold(self, one: Arrived, how: How, told: Told) -> None:
        alert = one.judged.alert
        if alert is None or alert.node not in how.inventory:
            reason = one.judged.reason or "its node is not in the inventory"
            self.hold_alert(one.judged.fingerprint, reason, one.judged.position, None if self.check_mode else one.inbox_id)
            told.held.append({**one.about, "reason": reason})
            return
        opening = self._open_alert(one, alert, how)
        if opening.record is None:
            told.ignored.append({**one.about, "reason": opening.reason})
        for record in opening.records:
            told.add(record)

    def _open_alert(self, one: Arrived, alert: Alert, how: How) -> Opening:
        return self.open_incident(
            from_alert(place_with(how.inventory, alert), alert, one.received_at), how.limits, max_running=how.max_running
        )

    def _tell(self, inbox_id: int, topic: str, reason: str) -> None:
        """What was not in a message, or could not be read of it, is lost to us but not to people."""
        self.notify("%s:%d" % (topic, inbox_id), topic, {"inbox_id": inbox_id, "reason": reason})

    def _handled(self, inbox_ids: Sequence[int], error: Optional[str]) -> None:
        with self.write() as connection:
            for some in chunks(inbox_ids):
                connection.execute(sa.update(INBOX).where(INBOX.c.id.in_(some)).values(handled_at=self.now(), error=error))


def _silence(judged: Judged, how: How) -> Optional[str]:
    """The silence of an alert, in words."""
    return how.silences.of(judged.fingerprint, judged.raw.get("labels")) if how.silences and judged.alert else None
