# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The programs of a test cluster end when they must, and nobody else does."""

from __future__ import annotations

import sys
import time

import pytest
from cluster.errors import ClusterError
from cluster.processes import Component, start_ticks

DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); open('deaf', 'w'); time.sleep(60)"


def wait_for(check) -> None:
    deadline = time.monotonic() + 10
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def sleeper(tmp_path):
    (tmp_path / "tmp").mkdir()
    component = Component("sleeper", tmp_path, ["sleep", "60"])
    component.start()
    yield component
    component.end()


def test_another_process_ends_it_by_its_directory(sleeper, tmp_path):
    pid = sleeper.pid
    Component("sleeper", tmp_path).end()
    assert start_ticks(pid) is None
    assert not sleeper.running


def test_only_one_runs_in_a_directory(sleeper, tmp_path):
    with pytest.raises(ClusterError, match="runs already"):
        Component("sleeper", tmp_path, ["sleep", "60"]).start()


def test_a_pid_that_is_used_again_is_not_signalled(sleeper, tmp_path):
    (tmp_path / "old.pid").write_text(f"{sleeper.pid} 1\n")
    old = Component("old", tmp_path)
    old.end()
    assert sleeper.running and not old.running
    with pytest.raises(ClusterError, match="does not run"):
        old.pause()


def test_a_paused_one_ends_too(sleeper):
    sleeper.pause()
    begun = time.monotonic()
    sleeper.end()
    assert time.monotonic() - begun < 5


def test_one_that_does_not_heed_is_killed(tmp_path):
    (tmp_path / "tmp").mkdir()
    deaf = Component("deaf", tmp_path, [sys.executable, "-c", DEAF])
    deaf.start()
    wait_for((tmp_path / "deaf").exists)
    deaf.end(patience_seconds=0.2)
    assert not deaf.running
