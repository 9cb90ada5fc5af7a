# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
from dataclasses import asdict

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.errors import LockHeld, LockLost
from ansible_collections.gpuops.remediation.plugins.module_utils._node.lock import FileLock, guard
from ansible_collections.gpuops.remediation.plugins.module_utils._node.node import Node
from ansible_collections.gpuops.remediation.plugins.module_utils._node.statedir import StateDir


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def lock(tmp_path, clock):
    return FileLock(StateDir(str(tmp_path)), "boot-1", clock=clock)


def other_boot(tmp_path, clock):
    return FileLock(StateDir(str(tmp_path)), "boot-2", clock=clock)


def test_s5_one_holder_until_the_lease_lapses(lock, clock):
    first = lock.take("a")
    clock.now += 29
    with pytest.raises(LockHeld, match="a holds the node's lock for another 1 s"):
        lock.take("b")
    clock.now += 2
    assert asdict(lock.take("b")) == {"token": first.token + 1, "holder": "b", "boot_id": "boot-1", "until": 1061.0}


def test_s5_renewing_keeps_it(lock, clock):
    token = lock.take("a").token
    for _attempt in range(3):
        clock.now += 20
        lock.check_and_renew(token, "a")
    with pytest.raises(LockHeld):
        lock.take("b")


def test_s5_renewing_does_not_shorten_what_was_taken_for_longer(tmp_path, lock, clock):
    token = FileLock(StateDir(str(tmp_path)), "boot-1", 300, clock).take("a").token
    lock.check_and_renew(token, "a")
    clock.now += 299
    with pytest.raises(LockHeld):
        lock.take("b")


def test_s5_a_lapsed_lease_that_nobody_took_goes_on_with_its_token(lock, clock):
    token = lock.take("a").token
    clock.now += 3600
    assert lock.check_and_renew(token, "a").token == token


def test_s5_who_lost_it_stops(lock, clock):
    token = lock.take("a").token
    clock.now += 31
    lock.take("b")
    with pytest.raises(LockLost, match="a lost the node's lock"):
        lock.check_and_renew(token, "a")
    with pytest.raises(LockLost):
        lock.check_and_renew(token + 1, "a")


def test_s5_who_resumes_shuts_out_what_is_left_of_its_old_run(lock):
    old = lock.take("run-1").token
    new = lock.take("run-1").token
    assert new > old
    with pytest.raises(LockLost):
        lock.check_and_renew(old, "run-1")
    lock.check_and_renew(new, "run-1")


def test_no_lock_was_ever_taken(lock):
    with pytest.raises(LockLost, match="nobody has it"):
        lock.check_and_renew(1, "a")


def test_released_and_taken_again_with_a_higher_token(lock):
    token = lock.take("a").token
    assert lock.release(token, "a").holder is None
    assert lock.release(token, "a").holder is None
    assert lock.take("b").token == token + 1
    assert lock.release(token, "a").holder == "b", "another's is left alone"


def test_a_lease_of_an_earlier_boot_has_lapsed_and_is_still_its_holders(lock, tmp_path, clock):
    token = lock.take("a").token
    after = other_boot(tmp_path, clock)
    assert after.seconds_left(after.read()) == 0
    assert after.check_and_renew(token, "a").boot_id == "boot-2"
    lock.check_and_renew(token, "a")
    assert other_boot(tmp_path, clock).take("b").token == token + 1


@pytest.mark.parametrize(
    ("holder", "offset", "error"),
    [
        pytest.param("a", 0, None, id="the same again"),
        pytest.param("b", 1, None, id="a newer one, though the old lease lives: it was proved elsewhere"),
        pytest.param("b", 0, LockLost, id="another holder with the same"),
        pytest.param("a", -1, LockLost, id="an older one"),
    ],
)
def test_s5_a_token_from_elsewhere_is_followed(lock, holder, offset, error):
    token = lock.take("a", 500).token
    assert token == 500
    if error:
        with pytest.raises(error):
            lock.take(holder, token + offset)
    else:
        assert lock.take(holder, token + offset).token == token + offset
        lock.check_and_renew(token + offset, holder)


def test_a_wiped_folder_does_not_bring_old_tokens_back(lock, tmp_path):
    token = lock.take("a").token
    (tmp_path / "lock.json").unlink()
    assert lock.take("b").token >= token > 1_000_000_000


def node(tmp_path):
    (tmp_path / "proc/sys/kernel/random").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/random/boot_id").write_text("boot-1\n")
    params = {"proc_root": f"{tmp_path}/proc", "state_dir": str(tmp_path)}
    return Node.from_params({**dict.fromkeys(("dev_root", "kmsg_path", "cgroup_root", "nvml_library"), ""), **params})


def test_s5_the_guard_of_a_module(tmp_path):
    own = node(tmp_path)
    token = FileLock(own.state, "boot-1").take("a").token
    keep = guard(own, {"lock_token": token, "lock_holder": "a"}, check_mode=False)
    before = json.loads((tmp_path / "lock.json").read_text())["until"]
    keep()
    assert json.loads((tmp_path / "lock.json").read_text())["until"] > before
    FileLock(own.state, "boot-1").take("b", token + 1)
    with pytest.raises(LockLost):
        keep()


@pytest.mark.parametrize(("token", "check_mode"), [(None, False), (12345, True)])
def test_no_lock_to_keep(tmp_path, token, check_mode):
    guard(node(tmp_path), {"lock_token": token, "lock_holder": "a"}, check_mode=check_mode)()
    assert not (tmp_path / "lock.json").exists()
