# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.errors import LockHeld, LockLost
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.store import Ledger
from ansible_collections.gpuops.remediation.plugins.module_utils._node import lock_places
from ansible_collections.gpuops.remediation.plugins.module_utils._node.lock_places import FilePlace, Held, LeasePlace, LedgerPlace, change
from ansible_collections.gpuops.remediation.plugins.module_utils._node.statedir import StateDir


class Lock:
    """What NodeLease returns."""

    def __init__(self, holder, token, expires):
        self.holder, self.token, self.expires = holder, token, expires


class FakeLease:
    """NodeLease without an API server; the real one is tested with a real one."""

    def __init__(self):
        self.lock = None

    def read(self):
        return self.lock

    def take(self, holder, seconds):
        if self.lock and self.lock.holder not in ("", holder):
            raise LockHeld("held")
        self.lock = Lock(holder, (self.lock.token if self.lock else 0) + 1, 100.0 + seconds)

    def renew(self, holder, token):
        if (self.lock.holder, self.lock.token) != (holder, token):
            raise LockLost("lost")

    def release(self, holder, token):
        if (self.lock.holder, self.lock.token) == (holder, token):
            self.lock = Lock("", token, 0.0)


@pytest.fixture(params=["file", "lease", "ledger"])
def place(request, tmp_path):
    if request.param == "file":
        return FilePlace(StateDir(str(tmp_path)), "boot-1", 30)
    if request.param == "lease":
        return LeasePlace(FakeLease(), lambda: 100.0, 30)
    ledger = Ledger.open(f"sqlite:///{tmp_path}/ledger.db")
    request.addfinalizer(ledger.close)
    return LedgerPlace(ledger, "gpu-1", 30)


def run(place, state, holder, token=None, check_mode=False, wait=0.0):
    params = {"state": state, "lock_holder": holder, "lock_token": token, "lease_seconds": 30, "wait_seconds": wait}
    return change(place, params, check_mode=check_mode)


def test_s5_all_places_keep_the_same_rules(place):
    before, mine = run(place, "taken", "a")
    assert (before.holder, mine.holder) == (None, "a")
    assert 25 < mine.seconds_left <= 30
    with pytest.raises(LockHeld):
        run(place, "taken", "b")
    run(place, "renewed", "a", mine.token)
    with pytest.raises(LockLost):
        run(place, "renewed", "a", mine.token + 1)
    _before, free = run(place, "released", "a", mine.token)
    assert (free.holder, free.seconds_left) == (None, 0.0)
    _before, other = run(place, "taken", "b")
    assert other.token > mine.token
    _before, same = run(place, "released", "a", mine.token)
    assert same.holder == "b"


def test_s5_check_mode_writes_nothing_and_forbids_the_same(place):
    _before, predicted = run(place, "taken", "a", check_mode=True)
    assert predicted.holder == "a" and predicted.token > 0
    assert place.read().holder is None
    _before, mine = run(place, "taken", "a")
    with pytest.raises(LockHeld):
        run(place, "taken", "b", check_mode=True)
    assert run(place, "renewed", "a", mine.token, check_mode=True)[1].token == mine.token
    assert run(place, "released", "a", mine.token, check_mode=True)[1].holder is None
    assert run(place, "released", "b", 1, check_mode=True)[1].holder == "a"
    assert place.read().holder == "a"


def test_the_ledger_mirrors_a_lock_that_lives_elsewhere(tmp_path):
    ledger = Ledger.open(f"sqlite:///{tmp_path}/ledger.db")
    place = LedgerPlace(ledger, "gpu-1", 30)
    assert run(place, "taken", "a", 500)[1].token == 500
    assert run(place, "taken", "b", 501)[1].holder == "b"
    with pytest.raises(LockLost, match="b has the lock of gpu-1 with token 501"):
        run(place, "taken", "a", 500)
    ledger.close()


def test_a_lease_gives_tokens_and_takes_none():
    lease = LeasePlace(FakeLease(), lambda: 100.0, 30)
    token = run(lease, "taken", "a")[1].token
    assert run(lease, "taken", "a", token)[1].token == token
    with pytest.raises(LockLost):
        run(lease, "taken", "a", token + 7)


def test_waiting_for_another_holder(monkeypatch, tmp_path):
    monkeypatch.setattr(lock_places, "_RETRY_SECONDS", 0.05)
    place = FilePlace(StateDir(str(tmp_path)), "boot-1", 0.2)
    run(place, "taken", "a")
    with pytest.raises(LockHeld):
        run(place, "taken", "b")
    assert run(place, "taken", "b", wait=2.0)[1].holder == "b"


def test_taken_by_another_before_it_could_be_read_back():
    class Raced:
        def read(self):
            return Held("other", 9, 30.0)

        def take(self, holder, token):
            pass

    with pytest.raises(LockLost, match="other has the lock with token 9 already"):
        run(Raced(), "taken", "a")


def test_the_ledgers_lock_of_another_stays_though_its_token_is_the_same(tmp_path):
    """S5: the file on a node and the ledger's own lock count on from the same mirror."""
    ledger = Ledger.open(f"sqlite:///{tmp_path}/ledger.db")
    place = LedgerPlace(ledger, "gpu-1", 30)
    token = run(place, "taken", "of the silent node")[1].token
    run(place, "released", "of the node that answers again", token)
    assert (place.read().holder, place.read().token) == ("of the silent node", token)
    run(place, "released", "of the silent node", token)
    assert place.read().holder is None
    ledger.close()


def test_a_lapsed_mirror_is_not_live(tmp_path):
    ledger = Ledger.open(f"sqlite:///{tmp_path}/ledger.db")
    ledger.record_lock("gpu-1", "a", 5, datetime.now(timezone.utc) - timedelta(seconds=5))
    assert LedgerPlace(ledger, "gpu-1", 30).read() == Held("a", 5, 0.0)
    assert LedgerPlace(ledger, "gpu-2", 30).read() == Held(None, 0, 0.0)
    ledger.close()
