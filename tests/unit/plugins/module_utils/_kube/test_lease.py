# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import threading

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.errors import LockHeld, LockLost
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.errors import ApiUnavailable
from ansible_collections.gpuops.remediation.plugins.module_utils._kube.lease import NodeLease
from kube_fakes import Clock, FakeApi


class World:
    def __init__(self):
        self.clock = Clock()
        self.api = FakeApi(self.clock)

    def lease(self):
        return NodeLease(self.api, "gpuops-system", "gpu-1", self.clock.deadline(60))


def test_one_holder():
    """S5."""
    world = World()
    lock = world.lease().take("me")
    with pytest.raises(LockHeld, match="locked by me") as raised:
        world.lease().take("other")
    assert raised.value.failure()["holder"] == "me"
    assert world.lease().renew("me", lock.token).token == lock.token
    assert world.lease().release("me", lock.token)
    assert not world.lease().release("me", lock.token)
    assert world.lease().take("other").token == lock.token + 1


def test_waiting_for_a_holder_that_is_gone():
    world = World()
    world.lease().take("me")
    lock = world.lease().take("other", wait_seconds=60)
    assert lock.holder == "other"
    assert 31 <= world.clock.time < 33


def test_lapsed_but_not_taken_is_renewed_with_the_same_token():
    """S5."""
    world = World()
    lock = world.lease().take("me")
    world.clock.time += 600
    renewed = world.lease().renew("me", lock.token)
    assert renewed.token == lock.token
    assert renewed.expires == world.api.now() + 30


@pytest.mark.parametrize("taker", ["me", "other"])
def test_taken_over(taker):
    """S5: whoever resumes gets a higher token, and the older one is lost, whoever holds it."""
    world = World()
    lock = world.lease().take("me")
    world.clock.time += 600
    assert world.lease().take(taker).token == lock.token + 1
    with pytest.raises(LockLost, match=f"{taker} has it") as raised:
        world.lease().renew("me", lock.token)
    assert raised.value.failure()["error_kind"] == "lock_lost"


def test_a_deleted_lease_is_lost():
    world = World()
    lock = world.lease().take("me")
    world.api.objects.clear()
    with pytest.raises(LockLost, match="it is gone"):
        world.lease().renew("me", lock.token)


def test_of_many_takers_one_gets_it():
    """S5."""
    world = World()
    got = []

    def take(name):
        try:
            got.append(world.lease().take(name))
        except Exception as error:
            got.append(error)

    threads = [threading.Thread(target=take, args=(f"run-{number}",)) for number in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(not isinstance(each, Exception) for each in got) == 1


def test_the_api_being_away_is_waited_out():
    world = World()
    lock = world.lease().take("me")

    def before(method, path, body):
        if world.clock.time < 20:
            raise ApiUnavailable("no answer")

    world.api.before = before
    assert world.lease().renew("me", lock.token).token == lock.token
    assert 20 <= world.clock.time < 24
