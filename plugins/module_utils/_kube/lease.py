# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""A node's lock on Kubernetes: takes, renews and releases its Lease."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from ansible_collections.gpuops.remediation.plugins.module_utils._incident.errors import LockHeld, LockLost
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.client import KubeApi
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.deadline import Deadline
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.errors import ApiUnavailable, Conflict, NotFound
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.leases import Lock, parse_lease, released, renewed, taken

LEASE_SECONDS = 30


@dataclass(frozen=True)
class NodeLease:
    """The Lease `gpuops-<node>`. Every write names the version that was read, so that of two takers one gets it."""

    api: KubeApi
    namespace: str
    node: str
    deadline: Deadline

    @property
    def _collection(self) -> str:
        return f"/apis/coordination.k8s.io/v1/namespaces/{quote(self.namespace, safe='')}/leases"

    @property
    def _name(self) -> str:
        return f"gpuops-{self.node}"

    @property
    def _path(self) -> str:
        return f"{self._collection}/{quote(self._name, safe='')}"

    def take(self, holder: str, lease_seconds: int = LEASE_SECONDS, wait_seconds: float = 0) -> Lock:
        """The lock, with a higher token than any before; `LockHeld` when another holder still has it after `wait_seconds`."""

        def once() -> Lock:
            return self.deadline.attempt(lambda: self._take(holder, lease_seconds), Conflict)

        return self.deadline.within(wait_seconds).attempt(once, LockHeld, most_seconds=1.0)

    def _take(self, holder: str, lease_seconds: int) -> Lock:
        raw = self._read()
        now = self.api.now()
        lock = parse_lease(raw) if raw else None
        if lock and lock.held_by_other(holder, now):
            left = max(0.0, lock.expires - now)
            raise LockHeld(f"node {self.node} is locked by {lock.holder} for another {left:.0f} s", holder=lock.holder, token=lock.token)
        body = taken(raw, self._name, holder, now, lease_seconds)
        return self._write("PUT", self._path, body) if raw else self._write("POST", self._collection, body)

    def renew(self, holder: str, token: int) -> Lock:
        """The lock for another while; `LockLost` when it is somebody else's or a later taker's."""

        def once() -> Lock:
            raw = self._read()
            lock = parse_lease(raw) if raw else None
            if raw and lock and lock.is_mine(holder, token):
                return self._write("PUT", self._path, renewed(raw, self.api.now()))
            found = f"{lock.holder or 'nobody'} has it with token {lock.token}" if lock else "it is gone"
            raise LockLost(f"{holder} lost the lock on node {self.node} (token {token}): {found}", holder=lock.holder if lock else "")

        return self.deadline.attempt(once, Conflict)

    def release(self, holder: str, token: int) -> bool:
        """Free the lock; False if it was no longer ours."""

        def once() -> bool:
            raw = self._read()
            if not raw or not parse_lease(raw).is_mine(holder, token):
                return False
            self._write("PUT", self._path, released(raw))
            return True

        return self.deadline.attempt(once, Conflict)

    def read(self) -> Lock | None:
        raw = self._read()
        return parse_lease(raw) if raw else None

    def _read(self) -> dict[str, Any] | None:
        try:
            return self.api.get(self._path, self.deadline)
        except NotFound:
            return None

    def _write(self, method: str, path: str, body: dict[str, Any]) -> Lock:
        return parse_lease(self.deadline.attempt(lambda: self.api.request(method, path, self.deadline, body), ApiUnavailable))
