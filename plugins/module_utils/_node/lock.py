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

from ansible_collections.gpuops.remediation.plugins.module_utils._incident.errors import LockHeld, LockLost
from ansible_collections.gpuops.remediation.plugins.module_utils._node.node import Node
from ansible_collections.gpuops.remediation.plugins.module_utils._node.statedir import StateDir

LEASE_SECONDS = 30
_FILE = "lock.json"


@dataclass(frozen=True)
class Lease:
    """`holder` is None once released; the token stays, so that it only grows."""

    token: int = 0
    holder: str | None = None
    boot_id: str | None = None
    until: float = 0.0

    def is_of(self, token: int | None, holder: str) -> bool:
        return (self.token, self.holder) == (token, holder)


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
        return max(0.0, lease.until - self._clock()) if lease.holder is not None and lease.boot_id == self._boot_id else 0.0

    def _write(self, token: int, holder: str | None, at_least: float = 0.0) -> Lease:
        lease = Lease(token, holder, self._boot_id, self._clock() + max(self._lease_seconds, at_least) if holder else 0.0)
        self._state.write(_FILE, asdict(lease))
        return lease

    def token_for(self, have: Lease, holder: str, token: int | None) -> int:
        """The token with which `holder` may take the lock that reads `have`.

        Without `token` this file is where the lock lives: who resumes under its own name does not wait for its own lease to lapse, but gets
        a new token. With one the lock lives elsewhere and this file follows it: a newer token has proved there that the lock is its holder's.
        The first token is the time, so that a folder that was wiped cannot bring old ones back.
        """
        if token is None:
            left = self.seconds_left(have)
            if left and have.holder != holder:
                raise LockHeld(f"{have.holder} holds the node's lock for another {left:.0f} s", holder=have.holder, token=have.token)
            return have.token + 1 if have.token else int(time.time())
        if token < have.token or (token == have.token and have.holder != holder):
            raise LockLost(f"the node has seen token {have.token}: {token} of {holder} is not newer", holder=have.holder, token=have.token)
        return token

    def take(self, holder: str, token: int | None = None) -> Lease:
        with self._state.locked():
            return self._write(self.token_for(self.read(), holder, token), holder)

    def check_and_renew(self, token: int, holder: str) -> Lease:
        """A lease that lapsed and that nobody took goes on with its token. One that was taken for longer is not made shorter."""
        with self._state.locked():
            have = self.read()
            if not have.is_of(token, holder):
                found = f"{have.holder or 'nobody'} has it with token {have.token}"
                raise LockLost(f"{holder} lost the node's lock (token {token}): {found}", holder=have.holder, token=have.token)
            return self._write(token, holder, self.seconds_left(have))

    def release(self, token: int, holder: str) -> Lease:
        """Gives up what is ours; what is another's by now is left alone, and that is no error."""
        with self._state.locked():
            have = self.read()
            return self._write(token, None) if have.is_of(token, holder) else have


def guard(node: Node, params: Mapping[str, Any], *, check_mode: bool) -> Callable[[], None]:
    """What a module calls before it reads and before each write. Without a token there is no lock to keep; in check mode none was taken."""
    token, holder = params["lock_token"], params["lock_holder"]
    if token is None or check_mode:
        return lambda: None
    lock = FileLock(node.state, node.proc.boot_id())

    def keep() -> None:
        lock.check_and_renew(token, holder)

    return keep
