# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Incidents and alerts: opened once a fault, ended in a named state, told of once."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._fleet.silences import Silences
from ansible_collections.gpuops.remediation.plugins.module_utils._incident import outcome
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.alerts import NODE_WIDE, Alert
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.budget import Limits, after_waiting, deadline
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.errors import (
    ChangesLeft,
    IncidentCancelled,
    IncidentEnded,
    ModeForbids,
    UnknownIncident,
)
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.keys import (
    CLOSED_STATES,
    ENDED_OPEN_STATES,
    LIVE_STATES,
    OPEN_STATES,
    SETTLED_STATES,
    group_of,
)
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.modes import FORGET, RELEASE, allows, needed_mode, permitted
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.records import (
    PREDICTED,
    incident_record,
    next_command,
    place,
    predicted,
)
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.requests import Place, Want, place_of
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.rounds import asks_for_quarantine, kept, unseen
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.times import as_written, iso
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.queue import Queue

try:
    import sqlalchemy as sa
    from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.tables import (
        ALERTS,
        CHANGES,
        INCIDENTS,
        OWNERS,
        STAGES,
    )
except ImportError:  # said by _ledger.database
    pass

Record = dict[str, Any]


@dataclass(frozen=True)
class Opening:
    """What became of a request: a new incident, the open one that stands for the fault, or nothing and why."""

    how: str  # opened | found | ignored
    record: Optional[Record] = None
    reason: Optional[str] = None
    beside: Sequence[Record] = ()  # where no GPU is named for certain: those of the node that have ended, to be looked at too

    @property
    def records(self) -> list[Record]:
        return [*([self.record] if self.record else []), *self.beside]


class Incidents(Queue):
    def _before_write(self, connection: sa.Connection) -> None:
        """In check mode the predicted incident exists, for as long as the transaction that is rolled back."""
        super()._before_write(connection)
        if self.check_mode:
            self._insert(connection, Want(Place("-", "-"), self.now()), Limits(), incident_id=PREDICTED)

    # Opening

    def open_incident(self, want: Want, limits: Optional[Limits] = None, *, max_running: int = 0, anew: bool = False) -> Opening:
        """The incident of a fault: the open one, or a new one, never two."""
        limits = limits or Limits()
        with self.write() as connection:
            self._end_recreated(connection, want)
            if want.alert:
                self._deliver(connection, want.alert, want.received_at)
                ignored = self._why_ignored(connection, want, want.alert)
                if ignored:
                    return Opening("ignored", reason=ignored)
            row = self._open_one(connection, want)
            given = (limits, max_running)
            opening = self._found(connection, row, want, *given, anew=anew) if row else self._opened(connection, want, *given)
            if want.alert and opening.record and opening.record["id"] != PREDICTED:
                self._attach(connection, want.alert, opening.record["id"])
            return replace(opening, beside=self._beside(connection, want, opening.record)) if want.vague and opening.record else opening

    def reopen(
        self,
        incident_id: str,
        limits: Optional[Limits] = None,
        *,
        max_running: int = 0,
        anew: bool = False,
        only_due: bool = False,
        inventory: Optional[Mapping[str, Any]] = None,
        silences: Optional[Silences] = None,
    ) -> Opening:
        """Take up an incident by its id, as reconcile does; release does so too, and must find it as it ended."""
        with self.write() as connection:
            row = self._incident(connection, incident_id)
            if row.kind == "group":  # it has no node whose stages would end it
                return Opening("found", self._record(connection, self._end_group(connection, row) if row.state in LIVE_STATES else row))
            place = place_of(inventory, row.node) if inventory and row.node in inventory else None
            if place:
                self._end_recreated(connection, Want(place, self.now()))
                row = self._incident(connection, incident_id)
            if place and not place.managed:
                return Opening("found", self._record(connection, self._end_opted_out(connection, row) if row.state in LIVE_STATES else row))
            silence = silences.of(row.alert["fingerprint"]) if silences and row.alert else None
            if silences and not silences.known and row.state not in LIVE_STATES:
                silence = _silence_in(row.reason)
            if silence and not self._acting(connection, row):
                return self._left_silenced(connection, row, silence)
            if only_due and not self._due_again(connection, row):
                return Opening("ignored", reason="another run has taken it up")
            return self._found(connection, row, None, limits or Limits(), max_running, anew=anew and row.state in OPEN_STATES)

    def _acting(self, connection: sa.Connection, row: Any) -> bool:
        """Whether a stage that may hurt somebody has begun: what is half done is brought to its end."""
        return row.state in LIVE_STATES and any(stage.name in _ACTING for stage in self._stages(connection, row))

    def _left_silenced(self, connection: sa.Connection, row: Any, silence: str) -> Opening:
        """Nothing is done for a silenced alert (S6). A fence stays, since no silence is a verdict (S12); what fires when it is over comes back."""
        reason = silenced_by(silence)
        if row.state in LIVE_STATES:
            standing = self._standing(connection, row.id)
            stands = "; %s stands until a diagnosis confirms or lifts it" % ", ".join(standing) if standing else ""
            self._end(connection, row, "held_for_human" if standing else "no_action", reason + stands)
            episode = (ALERTS.c.incident_id == row.id, ALERTS.c.status == "firing")
            connection.execute(sa.update(ALERTS).where(*episode).values(reason=reason))
        return Opening("ignored", reason=reason)

    def leave_silenced(self, alert: Alert, received_at: datetime, silence: str, inbox_id: Optional[int] = None) -> None:
        """Store a delivery that nothing is done for while a human's silence lasts; its row is looked at again when it is delivered again."""
        with self.write() as connection:
            self._deliver(connection, alert, received_at)
            same = (ALERTS.c.fingerprint == alert.fingerprint, ALERTS.c.starts_at == alert.starts_at, ALERTS.c.status == alert.status)
            connection.execute(sa.update(ALERTS).where(*same).values(reason=silenced_by(silence), inbox_id=inbox_id))

    def left_for_silences(self) -> dict[tuple[str, datetime], str]:
        """The silence of each episode that was left for one, when it was judged last."""
        left = sa.select(ALERTS.c.fingerprint, ALERTS.c.starts_at, ALERTS.c.reason).where(ALERTS.c.reason.startswith(_SILENCED))
        with self.read() as connection:
            return {(row.fingerprint, row.starts_at): _silence_in(row.reason) or "" for row in connection.execute(left)}

    def _found(self, connection: sa.Connection, row: Any, want: Optional[Want], limits: Limits, max_running: int, *, anew: bool) -> Opening:
        if want and not want.place.managed and row.state in OPEN_STATES:
            row = self._end_opted_out(connection, row)
        elif want and want.group_kind and row.state in LIVE_STATES:
            row = self._update(connection, row.id, nodes=list(want.nodes))
        elif anew or (want and self._again(connection, row, want)):
            # Diagnosed anew, never replayed: nothing of the earlier round but its changes is believed (S8), and a quarantine is not lifted by it.
            at = deadline(self.now(), None, limits).at
            proven = self._proven(connection, row, row.round + 1)
            episode = self._episode(want) if want and want.alert else {}
            waits = row.kind == "fault" and not self._has_room(connection, row.node, max_running)
            row = self._update(
                connection,
                row.id,
                state="fenced_waiting" if waits else "running",
                round=row.round + 1,
                nodes=list(want.nodes) if want and want.group_kind else row.nodes,
                **episode,
                verdict=kept(proven["verdict"]) if proven else None,
                reason=None,
                ended_at=None,
                clock_at=as_written(self.now()),
                deadline_at=at,
                mode=self._mode(connection),
            )
            self._detected(connection, row, want.words if want else "taken up anew", want.received_at if want else self.now())
            if waits:
                self._tell_of_waiting(connection)
            if self.check_mode:
                return Opening("found", predicted(self._record(connection, row)))
        elif want and _is_more(want.alert, row) and row.state in LIVE_STATES:
            row = self._update(connection, row.id, **self._episode(want))
        if row.state == "fenced_waiting":  # by whoever is going to ask for room
            row = self._update(connection, row.id, asked_at=self.now())
        return Opening("found", self._record(connection, row))

    def _again(self, connection: sa.Connection, row: Any, want: Want) -> bool:
        """Whether this asks for another round of an incident that has ended: what kept it is gone, or nobody has looked yet.

        Not by another delivery of the same episode: whoever is to look was told, unless it was only a hint of it.
        """
        if self._due_again(connection, row):
            return True
        if row.state not in ("held_for_human", "quarantined_overdue"):
            return False
        if self._is_repeat(connection, row, want):
            return _is_more(want.alert, row)
        if want.group_kind:
            return set(row.nodes) != set(want.nodes)
        return self._unseen(connection, row) or (want.vague and row.state == "held_for_human" and row.open_key == want.key)

    def _unseen(self, connection: sa.Connection, row: Any) -> bool:
        return unseen(row.state, row.verdict, self._record(connection, row)["stages"])

    def _is_repeat(self, connection: sa.Connection, row: Any, want: Want) -> bool:
        if not want.alert:
            return False
        same = (ALERTS.c.fingerprint == want.alert.fingerprint, ALERTS.c.starts_at == want.alert.starts_at)
        return connection.execute(sa.select(ALERTS.c.id).where(*same, ALERTS.c.incident_id == row.id)).first() is not None

    def _beside(self, connection: sa.Connection, want: Want, opened: Mapping[str, Any]) -> list[Record]:
        """What has ended on the node of a request that names no GPU, or that was asked by the same index: it keeps what it has, and is verified."""
        ended = sa.select(INCIDENTS).where(
            INCIDENTS.c.kind == "fault",
            INCIDENTS.c.node_uid == want.place.uid,
            INCIDENTS.c.state.in_(ENDED_OPEN_STATES),
            INCIDENTS.c.id != opened["id"],
        )
        if want.gpu != NODE_WIDE:
            ended = ended.where(INCIDENTS.c.asked_key == want.key)
        rows = connection.execute(ended.order_by(INCIDENTS.c.opened_at, INCIDENTS.c.id)).all()
        rows = [row for row in rows if not (self._due_again(connection, row) or self._unseen(connection, row))]
        return [self._record(connection, row if want.place.managed else self._end_opted_out(connection, row)) for row in rows]

    def _proven(self, connection: sa.Connection, row: Any, before_round: int) -> Optional[Mapping[str, Any]]:
        """What the diagnosis kept that asked for a quarantine which stands; None where there is none, or only a fence that none confirmed."""
        earlier = (STAGES.c.incident_id == row.id, STAGES.c.name == "diagnose", STAGES.c.round < before_round)
        kept_data = connection.execute(sa.select(STAGES.c.data).where(*earlier).order_by(STAGES.c.round.desc())).scalars()
        proven = next((data for data in kept_data if asks_for_quarantine(data.get("verdict"))), None)
        return proven if proven and self._standing(connection, row.id) else None

    def _end_group(self, connection: sa.Connection, row: Any) -> Any:
        told = outcome.group_end(*group_of(row.asked_key), row.nodes)
        return self._end(connection, row, told.state, told.reason)

    def _end_opted_out(self, connection: sa.Connection, row: Any) -> Any:
        state = "held_for_human" if self._standing(connection, row.id) else "no_action"
        return self._end(connection, row, state, "the node is opted out")

    def _opened(self, connection: sa.Connection, want: Want, limits: Limits, max_running: int) -> Opening:
        waits = not want.group_kind and not self._has_room(connection, want.place.node, max_running)
        row = self._insert(connection, want, limits, state="fenced_waiting" if waits else "running")
        self._detected(connection, row, want.words, want.received_at)
        if not want.place.managed:
            row = self._end(connection, row, "no_action", "the node is opted out")
        elif waits:
            self._tell_of_waiting(connection)
        record = self._record(connection, row, found=False)
        return Opening("opened", predicted(record) if self.check_mode else record)

    def _detected(self, connection: sa.Connection, row: Any, words: str, since: datetime) -> None:
        """The first stage is over with the opening; a group has none."""
        if row.kind == "fault":
            connection.execute(sa.insert(STAGES).values(**self._detect(row.id, row.round, words, since)))

    def _detect(self, incident_id: str, in_round: int, words: str, since: datetime) -> Record:
        """The stage's row; what is weighed for a fence comes later, if anything is."""
        return {
            "incident_id": incident_id,
            "round": in_round,
            "name": "detect",
            "state": "finished",
            "attempts": 1,
            "outcome": "ok",
            "reason": words,
            "data": {},
            "started_at": since,
            "finished_at": self.now(),
        }

    # Waiting

    def begin(
        self, incident_ids: Sequence[str], limits: Optional[Limits] = None, *, max_running: int = 0, asks_again: bool = False
    ) -> tuple[bool, list[Record]]:
        """Whether a node's incidents may go on, as one of so many nodes at most, and those of them that waited for it and run from now on.

        Who asks again soon keeps the node's place in line; who gives up leaves it to those behind.
        """
        limits = limits or Limits()
        if asks_again:
            with self.read() as connection:  # many ask each second, and only one at a time writes
                waiting = self._waiting(connection, incident_ids)
                if all(self._asked_lately(row) for row in waiting) and not self._may_begin(connection, waiting, max_running):
                    return False, []
        with self.write() as connection:
            waiting = self._waiting(connection, incident_ids)
            if not self._may_begin(connection, waiting, max_running):
                for row in waiting:
                    self._update(connection, row.id, asked_at=self.now() if asks_again else None)
                return False, []
            return True, [self._record(connection, self._begin(connection, row, limits)) for row in waiting]

    def _waiting(self, connection: sa.Connection, incident_ids: Sequence[str]) -> list[Any]:
        rows = [self._incident(connection, incident_id) for incident_id in incident_ids]
        return [row for row in rows if row.state == "fenced_waiting"]

    def _may_begin(self, connection: sa.Connection, waiting: Sequence[Any], max_running: int) -> bool:
        """Not while another run has the node's lock, which whoever asks has not taken yet: the time that begins would be spent on waiting."""
        nodes = {row.node for row in waiting}
        return not nodes & self._locked(connection) and all(self._has_room(connection, node, max_running) for node in nodes)

    def _begin(self, connection: sa.Connection, row: Any, limits: Limits) -> Any:
        now = self.now()
        row = self._update(connection, row.id, state="running", clock_at=as_written(now), deadline_at=after_waiting(now, limits))
        self._tell_of_waiting(connection)
        return row

    def _insert(
        self, connection: sa.Connection, want: Want, limits: Limits, *, state: str = "running", incident_id: Optional[str] = None
    ) -> Any:
        values = self._new(want, limits, self._mode(connection), state, incident_id)
        connection.execute(sa.insert(INCIDENTS).values(**values))
        return self._incident(connection, values["id"])

    def _new(self, want: Want, limits: Limits, mode: str, state: str, incident_id: Optional[str] = None) -> Record:
        """A new incident's row."""
        due = deadline(want.received_at, want.starts_at, limits)
        return {
            "id": incident_id or "%s-%s" % (self.now().strftime("%Y%m%d-%H%M%S"), secrets.token_hex(4)),
            "kind": "group" if want.group_kind else "fault",
            "state": state,
            "open_key": want.key,
            "asked_key": want.key,
            "round": 1,
            "node": want.place.node,
            "node_uid": want.place.uid,
            "host": want.place.host,
            "nodes": list(want.nodes) or [want.place.node],
            "groups": dict(want.place.groups),
            "gpu": want.gpu,
            "pci_bus_id": want.pci_bus_id,
            "domain": want.domain,
            "scope": "job" if want.group_kind else None,
            "mode": mode,
            "opened_at": self.now(),
            **self._episode(want),
            "clock_at": as_written(due.clock_at),
            "asked_at": self.now(),
            "deadline_at": due.at,
            "detected_late_seconds": due.detected_late_seconds,
        }

    @staticmethod
    def _episode(want: Want) -> Record:
        return {"alert": want.alert.record() if want.alert else None, "received_at": want.received_at, "starts_at": want.starts_at}

    def _open_one(self, connection: sa.Connection, want: Want) -> Any:
        """The open incident that stands for the wanted fault.

        A repeat of an alert belongs to the incident that it opened, whatever that has become since. Another alert of the same GPU
        joins it only until it is diagnosed: a second fault must not be swallowed by the first. An operator means the GPU, so any does.
        Who names no GPU for certain means whatever is sick there now, so no incident of one GPU answers that once it has ended.
        """
        open_ones = (
            sa.select(INCIDENTS).where(INCIDENTS.c.open_key.is_not(None)).order_by(INCIDENTS.c.opened_at.desc(), INCIDENTS.c.id.desc())
        )
        row = connection.execute(open_ones.where(INCIDENTS.c.open_key == want.key)).first()
        if row is not None:
            return row
        if want.alert:
            episode = (ALERTS.c.fingerprint == want.alert.fingerprint, ALERTS.c.starts_at == want.alert.starts_at)
            of_group = (INCIDENTS.c.kind == "group", INCIDENTS.c.id.in_(sa.select(ALERTS.c.incident_id).where(*episode)))
            row = connection.execute(open_ones.where(*of_group)).first()
            if row is not None:
                return row
            same: Any = INCIDENTS.c.id.in_(sa.select(ALERTS.c.incident_id).where(ALERTS.c.fingerprint == want.alert.fingerprint))
        else:
            same = sa.or_(INCIDENTS.c.asked_key == want.key, sa.and_(INCIDENTS.c.gpu == want.gpu, INCIDENTS.c.kind == "fault"))
        rows = connection.execute(open_ones.where(INCIDENTS.c.node_uid == want.place.uid, same)).all()
        return next((row for row in rows if not want.vague or self._answers(connection, row, want)), None)

    def _answers(self, connection: sa.Connection, row: Any, want: Want) -> bool:
        if row.state in LIVE_STATES:
            return True
        if row.state == "held_for_human" and self._is_repeat(connection, row, want):
            return True
        return bool(row.gpu == want.gpu) and self._again(connection, row, want)

    def _is_recreated(self, place: Place) -> bool:
        """Whether incidents are open of another node under this one's name."""
        with self.read() as connection:
            return bool(connection.execute(self._of_another(place)).first())

    @staticmethod
    def _of_another(place: Place) -> Any:
        return sa.select(INCIDENTS).where(
            INCIDENTS.c.open_key.is_not(None),
            INCIDENTS.c.kind == "fault",
            INCIDENTS.c.node == place.node,
            INCIDENTS.c.node_uid != place.uid,
            INCIDENTS.c.node_uid != INCIDENTS.c.node,
        )

    def _end_recreated(self, connection: sa.Connection, want: Want) -> None:
        """A node recreated under its name is another node (S6). Without a UID from Kubernetes there is nothing to compare."""
        if want.group_kind or want.place.uid == want.place.node:
            return
        for row in connection.execute(self._of_another(want.place)).all():
            self._end(connection, row, "cancelled_by_human", "the node was recreated under its name (UID %s)" % want.place.uid)

    # Alerts

    def _deliver(self, connection: sa.Connection, alert: Alert, received_at: datetime) -> None:
        """Store one delivery; repeats only count. It could be judged, so what was held of this alert has nothing more to say."""
        connection.execute(sa.delete(ALERTS).where(ALERTS.c.fingerprint == alert.fingerprint, ALERTS.c.status == "held"))
        same = (ALERTS.c.fingerprint == alert.fingerprint, ALERTS.c.starts_at == alert.starts_at, ALERTS.c.status == alert.status)
        again = {"deliveries": ALERTS.c.deliveries + 1, "reason": None, **({} if alert.hint else {"facts": alert.record()})}
        if not connection.execute(sa.update(ALERTS).where(*same).values(**again)).rowcount:
            values = {"fingerprint": alert.fingerprint, "starts_at": alert.starts_at, "status": alert.status}
            connection.execute(sa.insert(ALERTS).values(**values, received_at=received_at, deliveries=1, facts=alert.record()))

    def _attach(self, connection: sa.Connection, alert: Alert, incident_id: str) -> None:
        same = (ALERTS.c.fingerprint == alert.fingerprint, ALERTS.c.starts_at == alert.starts_at)
        connection.execute(sa.update(ALERTS).where(*same).values(incident_id=incident_id))

    def _hand_over(self, connection: sa.Connection, ended: str, incident_id: str) -> None:
        """The alerts of an incident that ends for another's sake belong to the other, so that their repeats find it."""
        connection.execute(sa.update(ALERTS).where(ALERTS.c.incident_id == ended).values(incident_id=incident_id))

    def _why_ignored(self, connection: sa.Connection, want: Want, alert: Alert) -> Optional[str]:
        if alert.status == "resolved":
            return "resolved: it opens nothing and releases nothing"
        newer = sa.select(ALERTS.c.id).where(ALERTS.c.fingerprint == alert.fingerprint, ALERTS.c.starts_at > alert.starts_at)
        if connection.execute(newer.where(ALERTS.c.starts_at <= want.received_at)).first():  # one of the future would silence all others
            return "older than the newest delivery of this alert"
        episode = (ALERTS.c.fingerprint == alert.fingerprint, ALERTS.c.starts_at == alert.starts_at)
        rows = sa.select(INCIDENTS).join(ALERTS, ALERTS.c.incident_id == INCIDENTS.c.id).where(*episode, INCIDENTS.c.open_key.is_(None))
        closed = connection.execute(rows).first()
        if closed and not self._due_again(connection, closed) and not _is_more(alert, closed):
            return "incident %s of the same evidence has ended in %s" % (closed.id, closed.state)
        released = self._settled_at(connection, want)
        if released and alert.starts_at <= released:
            return "older than the last word on the GPU, at %s" % iso(released)
        return None

    def _settled_at(self, connection: sa.Connection, want: Want) -> Optional[datetime]:
        """When the GPU was released last, or a human decided about it: what is older is no evidence (S3, S6)."""
        same_gpu = sa.or_(INCIDENTS.c.gpu.in_([want.gpu, "-"]), INCIDENTS.c.asked_key == want.key)
        if want.pci_bus_id:
            same_gpu = sa.or_(same_gpu, INCIDENTS.c.pci_bus_id == want.pci_bus_id)
        settled = (INCIDENTS.c.state.in_(SETTLED_STATES), INCIDENTS.c.node_uid == want.place.uid, same_gpu)
        time: Optional[datetime] = connection.execute(sa.select(sa.func.max(INCIDENTS.c.closed_at)).where(*settled)).scalar()
        return time

    def hold_alert(self, fingerprint: str, reason: str, position: int, inbox_id: Optional[int] = None) -> None:
        """Keep an alert without a usable key, and tell people once (S2). The row that brought it last is the one that may bring it again."""
        last = {"inbox_id": inbox_id, "reason": reason, "facts": {"position": position}}
        with self.write() as connection:
            same = (ALERTS.c.fingerprint == fingerprint, ALERTS.c.status == "held")
            if not connection.execute(sa.update(ALERTS).where(*same).values(**last, deliveries=ALERTS.c.deliveries + 1)).rowcount:
                values = {"fingerprint": fingerprint, "status": "held", **last}
                connection.execute(sa.insert(ALERTS).values(**values, received_at=self.now(), deliveries=1))
            self._notify(
                connection, "held:%s" % fingerprint, "alert_held", {"fingerprint": fingerprint, "reason": reason, "inbox_id": inbox_id}
            )

    # Reading

    def incident(self, incident_id: str) -> Record:
        with self.write() if incident_id == PREDICTED else self.read() as connection:
            return self._record(connection, self._incident(connection, incident_id))

    def _incident(self, connection: sa.Connection, incident_id: str) -> Any:
        row = connection.execute(sa.select(INCIDENTS).where(INCIDENTS.c.id == incident_id)).first()
        if row is None:
            raise UnknownIncident("there is no incident %s" % incident_id)
        return row

    def _record(self, connection: sa.Connection, row: Any, *, found: bool = True) -> Record:
        return self._record_of(row, self._stages(connection, row), found=found)

    def _record_of(self, row: Any, stages: Sequence[Any], *, found: bool = True) -> Record:
        return incident_record(row, stages, self.now(), found=found)

    def _stages(self, connection: sa.Connection, row: Any) -> Sequence[Any]:
        of_row = sa.select(STAGES).where(STAGES.c.incident_id == row.id, STAGES.c.round == row.round)
        return connection.execute(of_row.order_by(STAGES.c.started_at)).all()

    # Acting

    def authorize(self, incident_id: str, write: str) -> None:
        """Raises unless the mode and the incident's state let this be written now (S4, S6)."""
        with self.write() as connection:
            row, mode = self._incident(connection, incident_id), self._mode(connection)
        forgets = write == FORGET and row.state == "cancelled_by_human"
        if write == FORGET and row.state in OPEN_STATES:
            raise ChangesLeft("incident %s is open, so its node goes on naming it" % incident_id)
        if row.state == "cancelled_by_human" and not forgets:
            raise IncidentCancelled("incident %s was cancelled by a human: %s" % (incident_id, row.reason))
        if not forgets and (row.state not in OPEN_STATES or (row.state in ENDED_OPEN_STATES and write != RELEASE)):
            raise IncidentEnded("incident %s has ended in %s; only its release still changes anything" % (incident_id, row.state))
        if not allows(mode, write):
            raise ModeForbids("mode %s does not allow this; it needs mode %s" % (mode, needed_mode(write)), mode=mode)

    def _due_again(self, connection: sa.Connection, row: Any) -> bool:
        """Left for a silence, held by the breaker, which is reset now, or by a mode which has changed: worth another round."""
        if row.state not in ("held_for_human", "no_action"):
            return False
        if _silence_in(row.reason):
            return True
        stages = self._stages(connection, row)
        if any(stage.error_kind == BREAKER for stage in stages):
            return row.state == "held_for_human" and self._tripped(connection) is None
        return any(stage.outcome == "due" for stage in stages) and len(permitted(self._mode(connection))) > len(permitted(row.mode))

    # Ending

    def close_incident(
        self, incident_id: str, end_state: Optional[str] = None, reason: Optional[str] = None, *, overdue_because: Optional[str] = None
    ) -> tuple[bool, Record]:
        """End an incident in the state that its stages amount to, or in the one named; told of once (S16).

        overdue_because: only if its time is over, why nobody worked on it.
        """
        with self.write() as connection:
            row = self._incident(connection, incident_id)
            if row.state in CLOSED_STATES or (overdue_because and not self._is_overdue(row)):
                return False, self._record(connection, row)
            stages = self._record(connection, row)["stages"]
            standing = self._standing(connection, row.id)
            computed = outcome.end(
                row.verdict,
                stages,
                changed=bool(standing) or self._touched(connection, row.id),
                standing=bool(standing),
                overdue=self.now() > row.deadline_at,
            )
            if row.kind == "group":
                computed = outcome.group_end(*group_of(row.asked_key), row.nodes)
            elif row.state == "contained":
                computed = outcome.repeated(computed, row.verdict, stages)
            state, why = end_state or computed.state, reason or computed.reason
            if overdue_because:
                why = "its time is over, and nobody could work on it: %s; %s" % (overdue_because, why)
            if standing and row.verdict is None and state != "cancelled_by_human":  # a fence, which silence never lifts (S12)
                why += "; %s stands until a diagnosis confirms or lifts it" % ", ".join(standing)
            if standing and state in ("no_action", "fence_lifted"):
                raise ChangesLeft("incident %s cannot end in %s while changes of it stand" % (incident_id, state))
            if row.state == state and row.reason == why:
                return False, self._record(connection, row)
            return True, self._record(connection, self._end(connection, row, state, why))

    def _is_overdue(self, row: Any) -> bool:
        return bool(row.state == "running" and row.deadline_at <= self.now())

    def release_incident(
        self, incident_id: str, checks: Optional[Mapping[str, Any]] = None, reason: Optional[str] = None
    ) -> tuple[bool, Record]:
        """The last word of release.yml: every change is undone, so the GPU is in service again. `checks` says what was read (S17)."""
        with self.write() as connection:
            row = self._incident(connection, incident_id)
            if row.state in CLOSED_STATES:
                return False, self._record(connection, row)
            if self._standing(connection, row.id) and not self.check_mode:  # there undoing them was only predicted
                raise ChangesLeft("incident %s still has changes that are not undone" % incident_id)
            row = self._end(connection, row, "released", reason or "released", release=dict(checks or {}))
            return True, self._record(connection, row)

    def _end(self, connection: sa.Connection, row: Any, state: str, reason: str, **more: Any) -> Any:
        now, key = self.now(), "incident:%s:%d:%s" % (row.id, row.round, state)
        if state == row.state == "contained" and reason != row.reason:
            key += ":not seen again"
        values = {"state": state, "reason": reason, "ended_at": row.ended_at or now, **more}
        if state in CLOSED_STATES:
            values.update(open_key=None, closed_at=now)
        waited = row.state == "fenced_waiting"
        row = self._update(connection, row.id, **values)
        if waited:
            self._tell_of_waiting(connection)
        if state == "cancelled_by_human":
            self._leave_changes(connection, row.id)
        record = self._record(connection, row)
        payload = {
            name: record[name]
            for name in ["node", "host", "gpu", "serial", "slot", "domain", "scope", "state", "reason", "opened_at", "deadline_at"]
        }
        payload.update(incident_id=row.id, where=place(record), next_command=next_command(record))
        self._notify(connection, key, state, payload, row.id)
        return row

    def _update(self, connection: sa.Connection, incident_id: str, **values: Any) -> Any:
        connection.execute(sa.update(INCIDENTS).where(INCIDENTS.c.id == incident_id).values(**values))
        return self._incident(connection, incident_id)

    def _touched(self, connection: sa.Connection, incident_id: str) -> bool:
        """Anything was changed, even if it was undone since."""
        mine = sa.select(CHANGES.c.id).join(OWNERS, OWNERS.c.change_id == CHANGES.c.id).where(OWNERS.c.incident_id == incident_id)
        return connection.execute(mine.where(CHANGES.c.applied_at.is_not(None))).first() is not None

    def _standing(self, connection: sa.Connection, incident_id: str) -> list[str]:
        """What stands of this incident's changes: it still wants it, or nobody does and it is not undone yet."""
        others = sa.select(OWNERS.c.change_id).where(OWNERS.c.disowned_at.is_(None), OWNERS.c.incident_id != incident_id)
        mine = sa.select(CHANGES.c.target).join(OWNERS, OWNERS.c.change_id == CHANGES.c.id).where(OWNERS.c.incident_id == incident_id)
        wanted = sa.or_(OWNERS.c.disowned_at.is_(None), CHANGES.c.id.not_in(others))
        return list(connection.execute(mine.where(CHANGES.c.open_target.is_not(None), wanted).order_by(CHANGES.c.id)).scalars())

    def _leave_changes(self, connection: sa.Connection, incident_id: str) -> None:
        """What a human took over is no longer ours: it is neither put back nor undone, and new evidence starts afresh."""
        now = self.now()
        mine = (OWNERS.c.incident_id == incident_id, OWNERS.c.disowned_at.is_(None))
        ids = list(connection.execute(sa.select(OWNERS.c.change_id).where(*mine)).scalars())
        connection.execute(sa.update(OWNERS).where(*mine).values(disowned_at=now))
        wanted = sa.select(OWNERS.c.change_id).where(OWNERS.c.disowned_at.is_(None))
        left = (CHANGES.c.id.in_(ids), CHANGES.c.id.not_in(wanted))
        connection.execute(
            sa.update(CHANGES).where(*left).values(status="reverted", open_target=None, reverted_at=now, note="left to a human")
        )


BREAKER = "breaker_tripped"
_SILENCED = "its alert is silenced by "
_ACTING = ("isolate", "taint", "evict", "verify")


def silenced_by(silence: str) -> str:
    """Why nothing is done, as incidents and alerts keep it."""
    return _SILENCED + silence


def _is_more(alert: Optional[Alert], row: Any) -> bool:
    """Whether it fires, where an incident had only the hint of one to go by."""
    return alert is not None and not alert.hint and bool((row.alert or {}).get("hint"))


def _silence_in(reason: Optional[str]) -> Optional[str]:
    return reason[len(_SILENCED) :] if reason and reason.startswith(_SILENCED) else None
