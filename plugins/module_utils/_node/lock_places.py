# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""The three places where a node's lock can live, behind one face: a file on the node, a Lease on Kubernetes, the ledger."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Callable, Protocol

from ansible_collections.gpuops.remediation.plugins.module_utils._incident.errors import LockHeld, LockLost
from ansible_collections.gpuops.remediation.plugins.module_utils._node.lock import FileLock
from ansible_collections.gpuops.remediation.plugins.module_utils._node.procfs import ProcFs
from ansible_collections.gpuops.remediation.plugins.module_utils._node.statedir import StateDir

_RETRY_SECONDS = 1.0


@dataclass(frozen=True)
class Held:
    """Who has the lock now; nobody when `holder` is None."""

    holder: str | None
    token: int
    seconds_left: float

    def show(self) -> dict[str, Any]:
        return {"holder": self.holder, "token": self.token, "live": self.seconds_left > 0}


class Place(Protocol):
    """`token`, when taking, is one that another place gave out, and that this place follows."""

    def read(self) -> Held: ...

    def take(self, holder: str, token: int | None) -> None: ...

    def renew(self, holder: str, token: int) -> None: ...

    def release(self, holder: str, token: int) -> None: ...


class FilePlace:
    def __init__(self, state: StateDir, boot_id: str, lease_seconds: float) -> None:
        self._lock = FileLock(state, boot_id, lease_seconds)

    def read(self) -> Held:
        lease = self._lock.read()
        return Held(lease.holder, lease.token, self._lock.seconds_left(lease))

    def take(self, holder: str, token: int | None) -> None:
        self._lock.take(holder, token)

    def renew(self, holder: str, token: int) -> None:
        self._lock.check_and_renew(token, holder)

    def release(self, holder: str, token: int) -> None:
        self._lock.release(token, holder)


class LeasePlace:
    def __init__(self, lease: Any, now: Callable[[], float], lease_seconds: int) -> None:
        self._lease = lease
        self._now = now
        self._seconds = lease_seconds

    def read(self) -> Held:
        lock = self._lease.read()
        return (
            Held(lock.holder or None, lock.token, max(0.0, lock.expires - self._now()) if lock.holder else 0.0)
            if lock
            else Held(None, 0, 0.0)
        )

    def take(self, holder: str, token: int | None) -> None:
        """Where a Lease is, it gives the tokens out and follows nobody."""
        if token is not None:
            return self.renew(holder, token)
        self._lease.take(holder, self._seconds)

    def renew(self, holder: str, token: int) -> None:
        self._lease.renew(holder, token)

    def release(self, holder: str, token: int) -> None:
        self._lease.release(holder, token)


class LedgerPlace:
    def __init__(self, ledger: Any, node: str, lease_seconds: int, incident_ids: Sequence[str] = ()) -> None:
        self._ledger = ledger
        self._node = node
        self._seconds = lease_seconds
        self._incident_ids = incident_ids

    def read(self) -> Held:
        for lock in self._ledger.locks():
            if lock["node"] == self._node:
                left = datetime.fromisoformat(lock["expires_at"].replace("Z", "+00:00")) - self._ledger.now()
                return Held(lock["holder"], lock["token"], max(0.0, left.total_seconds()))
        return Held(None, 0, 0.0)

    def take(self, holder: str, token: int | None) -> None:
        if token is None:
            self._ledger.take_lock(self._node, holder, self._seconds, incident_ids=self._incident_ids)
            return
        expires = self._ledger.now() + timedelta(seconds=self._seconds)
        self._ledger.record_lock(self._node, holder, token, expires, incident_ids=self._incident_ids)
        self._check(holder, token)

    def renew(self, holder: str, token: int) -> None:
        self._check(holder, token)
        self._ledger.renew_lock(self._node, token, self._seconds)

    def release(self, holder: str, token: int) -> None:
        self._ledger.release_lock(self._node, token, holder)

    def _check(self, holder: str, token: int) -> None:
        have = self.read()
        if (have.holder, have.token) != (holder, token):
            raise LockLost(f"{have.holder or 'nobody'} has the lock of {self._node} with token {have.token}, not {holder} with {token}")


def place_of(params: Mapping[str, Any], *, check_mode: bool) -> Place:
    """Imported where needed: the node has neither the Kubernetes client nor SQLAlchemy."""
    seconds = params["lease_seconds"]
    if params["backend"] == "lease":
        from ansible_collections.gpuops.remediation.plugins.module_utils._kube.access import api_of
        from ansible_collections.gpuops.remediation.plugins.module_utils._kube.deadline import Deadline
        from ansible_collections.gpuops.remediation.plugins.module_utils._kube.lease import NodeLease

        api = api_of(params)
        deadline = Deadline(params["api_timeout_seconds"] + params["wait_seconds"])
        return LeasePlace(NodeLease(api, params["lock_namespace"], params["node"], deadline), api.now, seconds)
    if params["backend"] == "ledger":
        from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.argspec import open_ledger

        return LedgerPlace(open_ledger(params["ledger_url"], check_mode), params["node"], seconds, params["incident_ids"])
    return FilePlace(StateDir(params["state_dir"]), ProcFs(params["proc_root"]).boot_id(), seconds)


def change(place: Place, params: Mapping[str, Any], *, check_mode: bool) -> tuple[Held, Held]:
    """The lock before and after."""
    holder, token, seconds = params["lock_holder"], params["lock_token"], params["lease_seconds"]
    before = place.read()
    if check_mode:
        return before, _predicted(before, params["state"], holder, token, seconds)
    if params["state"] == "taken":
        _take(place, holder, token, time.monotonic() + params["wait_seconds"])
    elif params["state"] == "renewed":
        place.renew(holder, token)
    else:
        place.release(holder, token)
    after = place.read()
    if params["state"] != "released" and after.holder != holder:
        raise LockLost(f"{after.holder or 'nobody'} has the lock with token {after.token} already", holder=after.holder, token=after.token)
    return before, after


def _take(place: Place, holder: str, token: int | None, until: float) -> None:
    while True:
        try:
            return place.take(holder, token)
        except LockHeld:
            if time.monotonic() + _RETRY_SECONDS > until:
                raise
        time.sleep(_RETRY_SECONDS)


def _predicted(have: Held, state: str, holder: str, token: int | None, seconds: float) -> Held:
    """A run that goes on after this one in check mode needs a token, though it is not looked at there."""
    mine = (have.holder, have.token) == (holder, token)
    if state == "released":
        return Held(None, have.token, 0.0) if mine else have
    if state == "taken" and token is None and have.seconds_left and have.holder != holder:
        raise LockHeld(f"{have.holder} holds the lock for another {have.seconds_left:.0f} s", holder=have.holder, token=have.token)
    return Held(holder, have.token + 1 if token is None else token, seconds)
