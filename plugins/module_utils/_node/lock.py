# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""The node's lock file: a lease with a growing token, which whatever acts on the node checks before it does.

Time is CLOCK_BOOTTIME, which no clock step moves; after a reboot it begins anew, and a lease of an earlier boot has lapsed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Callable

from ansible_collections.gpuops.remediation.plugins.module_utils._errors import RemediationError
from ansible_collections.gpuops.remediation.plugins.module_utils._node.node import Node
from ansible_collections.gpuops.remediation.plugins.module_utils._node.statedir import StateDir

LEASE_SECONDS = 30.0
_FILE = "lock.json"
_RETRY_SECONDS = 1.0


class LockLost(RemediationError):
    """Somebody else has taken the lock, or nobody of ours ever had it: stop."""

    kind = "lock_lost"


class LockHeld(RemediationError):
    """Somebody else has the lock and is alive."""

    kind = "lock_held"


@dataclass(frozen=True)
class Lease:
    """`holder` is None once released; the token stays, so that it only grows."""

    token: int = 0
    holder: str | None = None
    boot_id: str | None = None
    until: float = 0.0

    def is_of(self, token: int, holder: str) -> bool:
        return (self.token, self.holder) == (token, holder)

    def seconds_left(self, boot_id: str, now: float) -> float:
        return max(0.0, self.until - now) if self.holder is not None and self.boot_id == boot_id else 0.0


def _boot_clock() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class FileLock:
    def __init__(
        self, state: StateDir, boot_id: str, lease_seconds: float = LEASE_SECONDS, clock: Callable[[], float] = _boot_clock
    ) -> None:
        self._state = state
        self._boot_id = boot_id
        self._lease_seconds = lease_seconds
        self._clock = clock

    def read(self) -> Lease:
        return Lease(**self._state.read(_FILE, {}))

    def seconds_left(self, lease: Lease) -> float:
        return lease.seconds_left(self._boot_id, self._clock())

    def _write(self, token: int, holder: str | None) -> Lease:
        lease = Lease(token, holder, self._boot_id, self._clock() + self._lease_seconds if holder else 0.0)
        self._state.write(_FILE, asdict(lease))
        return lease

    def plan_take(self, have: Lease, holder: str, token: int | None) -> int:
        """The token with which `holder` may take the lock that reads `have`; the same token means that it is held already.

        `token` is one that another place gave out (a Kubernetes Lease, the ledger), which this file follows.
        """
        if token is not None and have.is_of(token, holder):
            return token
        if token is not None and token <= have.token:
            raise LockLost(f"token {token} of {holder} is not newer than {have.token}, which the node has seen", lock=asdict(have))
        left = self.seconds_left(have)
        if token is None and left and have.holder != holder:  # who comes with a newer token has proved that the lease is theirs
            raise LockHeld(f"{have.holder} holds the node's lock for {left:.0f} s more", lock=asdict(have))
        return have.token + 1 if token is None else token

    def take(self, holder: str, token: int | None = None, wait_seconds: float = 0.0) -> Lease:
        """Who resumes after a restart under its own name does not wait for its own lease to lapse, but gets a new token."""
        deadline = time.monotonic() + wait_seconds
        while True:
            try:
                with self._state.locked():
                    return self._write(self.plan_take(self.read(), holder, token), holder)
            except LockHeld:
                if time.monotonic() + _RETRY_SECONDS > deadline:
                    raise
            time.sleep(_RETRY_SECONDS)

    def check(self, token: int, holder: str) -> Lease:
        have = self.read()
        if not have.is_of(token, holder):
            raise LockLost(
                f"the node's lock is no longer {holder}'s with token {token}: {have.holder} has token {have.token}", lock=asdict(have)
            )
        return have

    def check_and_renew(self, token: int, holder: str) -> Lease:
        """A lease that lapsed and that nobody took goes on with its token."""
        with self._state.locked():
            self.check(token, holder)
            return self._write(token, holder)

    def release(self, token: int, holder: str) -> Lease:
        """Gives up what is ours; what is another's by now is left alone, and that is no error."""
        with self._state.locked():
            have = self.read()
            return self._write(token, None) if have.is_of(token, holder) else have


def guard(node: Node, params: Mapping[str, Any], *, check_mode: bool) -> Callable[[], None]:
    """What a module calls before it reads and before each write. Without a token there is no lock to keep."""
    token, holder = params["lock_token"], params["lock_holder"]
    if token is None:
        return lambda: None
    lock = FileLock(node.state, node.proc.boot_id())
    act = lock.check if check_mode else lock.check_and_renew

    def keep() -> None:
        act(token, holder)

    return keep
