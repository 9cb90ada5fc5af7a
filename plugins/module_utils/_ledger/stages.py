# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Stages: started, finished, read back by whoever resumes the incident."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._incident.alerts import NODE_WIDE
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.budget import Limits
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.errors import ModeForbids
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.history import WINDOW_SECONDS, failed_programs
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.keys import (
    ENDED_OPEN_STATES,
    SETTLED_STATES,
    refined,
    slot_of,
    with_identity,
)
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.modes import permitted
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.rounds import asks_for_quarantine, kept
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.stages import start
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.times import from_iso, iso
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.incidents import Incidents, Record

try:
    import sqlalchemy as sa
    from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.tables import FAILURES, INCIDENTS, STAGES
except ImportError:  # said by _ledger.database
    pass

_IDLE = ("none", "observe", "hold")  # verdicts that change nothing


class Stages(Incidents):
    def start_stage(self, incident_id: str, stage: str, limits: Optional[Limits] = None) -> dict[str, Any]:
        """What the stage may do and spend, or that it is to be skipped; started ones start again (everything they do is idempotent)."""
        limits = limits or Limits()
        with self.write() as connection:
            row, now = self._incident(connection, incident_id), self.now()
            if row.state == "fenced_waiting" and stage != "detect":
                row = self._begin(connection, row, limits)
            stored = next((other for other in self._stages(connection, row) if other.name == stage), None)
            answer = start(stage, row._mapping, stored._mapping if stored else None, now, limits)
            if answer["overdue"]:
                self._put_stage(
                    connection, row, stage, stored, state="finished", outcome="timed_out", reason="no time was left", finished_at=now
                )
            elif not answer["skip"]:
                attempts = stored.attempts + 1 if stored else 1
                self._put_stage(connection, row, stage, stored, state="started", attempts=attempts, started_at=now, finished_at=None)
            mode = self._mode(connection)
            return {
                **answer,
                "mode": mode,
                "permitted": permitted(mode),
                "deadline_at": iso(row.deadline_at),
                "outcome": stored.outcome if stored else None,
                "data": stored.data if stored else {},
                "incident": self._record(connection, row),
                **(self._past(connection, row) if stage == "diagnose" else {}),
                **({"releases": self._releases(connection, row)} if stage in ("diagnose", "taint") else {}),
            }

    def finish_stage(
        self,
        incident_id: str,
        stage: str,
        outcome: str,
        data: Optional[Mapping[str, Any]] = None,
        reason: Optional[str] = None,
        error_kind: Optional[str] = None,
    ) -> tuple[bool, Record]:
        """Store a stage's end; a diagnosis with a verdict gives the incident its true identity."""
        data = dict(data or {})
        if error_kind == ModeForbids.kind and outcome == "failed":
            outcome = "due"
        with self.write() as connection:
            row = self._incident(connection, incident_id)
            stored = next((other for other in self._stages(connection, row) if other.name == stage), None)
            verdict = data.get("verdict") if stage == "diagnose" else None
            proven = self._proven(connection, row, row.round) if verdict and not asks_for_quarantine(verdict) else None
            if proven:  # a release compares what it reads with the evidence of then
                data = {**proven, "anew": data}
            data = self._beside_proof(row, stored, outcome, data)
            values = {"outcome": outcome, "reason": reason, "error_kind": error_kind, "data": data}
            if stored and stored.state == "finished" and all(getattr(stored, name) == value for name, value in values.items()):
                return False, self._record(connection, row)
            self._put_stage(connection, row, stage, stored, state="finished", finished_at=self.now(), **values)
            if outcome == "due":  # it is due again when the mode allows more than the one that forbade it
                row = self._update(connection, row.id, mode=self._mode(connection))
            if verdict:
                row = self._refine(connection, row, verdict, data.get("anew", data).get("evidence") or {})
            return True, self._record(connection, row)

    @staticmethod
    def _beside_proof(row: Any, stored: Any, outcome: str, data: dict[str, Any]) -> dict[str, Any]:
        """A repeat that cannot prove an ended incident's containment again leaves the proof in place."""
        if row.state not in ENDED_OPEN_STATES or stored is None or outcome == "ok":
            return data
        proof = {"at": iso(row.ended_at), "data": stored.data} if stored.outcome == "ok" else stored.data.get("proven")
        return {**data, "proven": proof} if proof else data

    def _refine(self, connection: sa.Connection, row: Any, verdict: Mapping[str, Any], evidence: Mapping[str, Any]) -> Any:
        info = evidence.get("info") or None
        self._remember(connection, row, verdict, info)
        known = refined(verdict, row._mapping)
        known["slot"] = slot_of(known["gpu"], info) or row.slot
        key = with_identity(row.asked_key, known["gpu"], known["domain"])
        proven = self._proven(connection, row, row.round)
        other = connection.execute(sa.select(INCIDENTS).where(INCIDENTS.c.open_key == key, INCIDENTS.c.id != row.id)).first()
        if other and other.state == "held_for_human" and verdict.get("action") not in _IDLE and not self._standing(connection, other.id):
            # What was too little to act on must not swallow what is enough.
            self._end(connection, other, "no_action", "incident %s knows more of the same fault" % row.id)
            self._hand_over(connection, other.id, row.id)
            other = None
        if proven and (other or not asks_for_quarantine(verdict)):
            return self._update(connection, row.id, verdict=kept(proven["verdict"], verdict, other.id if other else None))
        if other is None:
            closed = row.open_key is None
            return self._update(connection, row.id, **known, verdict=dict(verdict), open_key=None if closed else key)
        # The other incident acts for both; a fence of this one is left to its own closing, like after any verdict that asks for nothing.
        reason = "the same fault as incident %s" % other.id
        merged = {
            **verdict,
            "action": "none",
            "repair": "none",
            "merged_into": other.id,
            "reasons": [reason, *(verdict.get("reasons") or ())],
        }
        if row.gpu == NODE_WIDE != known["gpu"]:  # who asked for the whole node goes on with the other, and with every further one
            merged["further"] = [known["gpu"], *(verdict.get("further") or ())]
        self._hand_over(connection, row.id, other.id)
        row = self._update(connection, row.id, verdict=merged)
        waits = merged.get("further") or self._standing(connection, row.id)
        return row if waits else self._end(connection, row, "no_action", reason)

    def _put_stage(self, connection: sa.Connection, row: Any, stage: str, stored: Any, **values: Any) -> None:
        if stored:
            same = (STAGES.c.incident_id == row.id, STAGES.c.round == row.round, STAGES.c.name == stage)
            connection.execute(sa.update(STAGES).where(*same).values(**values))
        else:
            new = {"attempts": 1, "started_at": self.now(), "data": {}, **values}
            connection.execute(sa.insert(STAGES).values(incident_id=row.id, round=row.round, name=stage, **new))

    # The past that a verdict weighs

    def _past(self, connection: sa.Connection, row: Any) -> dict[str, Any]:
        """Programs that failed on this node's GPUs within a day (S14)."""
        since = self.now() - timedelta(seconds=WINDOW_SECONDS)
        failures = sa.select(FAILURES).where(FAILURES.c.node == row.node, FAILURES.c.failed_at > since).order_by(FAILURES.c.failed_at)
        history = [
            {"gpu_uuid": one.gpu_uuid, "code": one.code, "executable_or_image": one.program, "time": iso(one.failed_at)}
            for one in connection.execute(failures)
        ]
        return {"history": history}

    @staticmethod
    def _releases(connection: sa.Connection, row: Any) -> dict[str, Any]:
        """When the node's GPUs were released last, or decided about by a human (S3, S6)."""
        settled = sa.select(INCIDENTS).where(INCIDENTS.c.state.in_(SETTLED_STATES), INCIDENTS.c.node_uid == row.node_uid)
        releases: dict[str, Any] = {}
        for one in connection.execute(settled.order_by(INCIDENTS.c.closed_at)):
            # A lost GPU is known by its address only.
            releases.update(dict.fromkeys([one.gpu, *(["pci:" + one.pci_bus_id] if one.pci_bus_id else [])], iso(one.closed_at)))
        return releases

    def _remember(self, connection: sa.Connection, row: Any, verdict: Mapping[str, Any], info: Optional[Mapping[str, Any]]) -> None:
        for failure in failed_programs(verdict, info):
            values = {name: failure[name] for name in ("gpu_uuid", "code", "program")}
            values["failed_at"] = from_iso(failure["time"]) or self.now()
            same = [FAILURES.c[name] == value for name, value in values.items()]
            if not connection.execute(sa.select(FAILURES.c.id).where(*same)).first():
                connection.execute(sa.insert(FAILURES).values(**values, node=row.node, incident_id=row.id))
