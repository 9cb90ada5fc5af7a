# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""S5: the lock on a real control plane."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.errors import LockHeld, LockLost


def test_of_many_takers_one_gets_it(responder):
    def take(number):
        try:
            return responder.lease().take(f"run-{number}")
        except LockHeld as error:
            return error

    with ThreadPoolExecutor(10) as pool:
        got = list(pool.map(take, range(10)))
    (lock,) = [each for each in got if not isinstance(each, LockHeld)]
    assert {each.details["holder"] for each in got if isinstance(each, LockHeld)} <= {lock.holder}


def test_takeover_renewal_and_release(responder):
    first = responder.lease().take("run-1", lease_seconds=1)
    second = responder.lease().take("run-2", wait_seconds=10)
    assert second.token > first.token
    with pytest.raises(LockLost, match="run-2 has it"):
        responder.lease().renew("run-1", first.token)
    assert responder.lease().renew("run-2", second.token).expires > second.expires - 1
    assert not responder.lease().release("run-1", first.token)
    assert responder.lease().release("run-2", second.token)
    assert responder.lease().take("run-3").token == second.token + 1


def test_a_lapsed_lock_that_nobody_took(responder):
    lock = responder.lease().take("run-1", lease_seconds=1)
    time.sleep(2.5)
    assert responder.lease().renew("run-1", lock.token).token == lock.token


def test_the_token_outgrows_a_deleted_lease(cluster, responder):
    first = responder.lease().take("run-1")
    cluster.admin.delete("Lease", "gpuops-gpu-1", "gpuops-system")
    with pytest.raises(LockLost, match="it is gone"):
        responder.lease().renew("run-1", first.token)
    assert responder.lease().take("run-2").token >= first.token
