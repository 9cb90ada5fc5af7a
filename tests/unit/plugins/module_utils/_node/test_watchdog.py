# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import os
import signal
import threading
import time

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._errors import RemediationError
from ansible_collections.gpuops.remediation.plugins.module_utils._node import watchdog
from ansible_collections.gpuops.remediation.plugins.module_utils._node.procfs import ProcFs
from ansible_collections.gpuops.remediation.plugins.module_utils._node.statedir import StateDir, StateDirError
from ansible_collections.gpuops.remediation.plugins.module_utils._node.watchdog import Watchdog


def hang(emit):
    emit({"pid": os.getpid()})
    threading.Event().wait()


def collect(tmp_path, timeout=5.0, **sources):
    return Watchdog(StateDir(str(tmp_path)), timeout).collect(sources)


def test_sources_answer_side_by_side(tmp_path):
    def slow(emit):
        time.sleep(0.4)
        emit({"value": "x" * 200_000})

    begin = time.monotonic()
    answers, abandoned = collect(tmp_path, a=slow, b=slow, c=slow)
    assert time.monotonic() - begin < 1.1
    assert [(len(answer.items[0]["value"]), answer.why) for answer in answers.values()] == [(200_000, None)] * 3
    assert abandoned == []


def test_one_that_hangs_has_told_the_first_half_and_is_gone(tmp_path):
    begin = time.monotonic()
    answers, abandoned = collect(tmp_path, 1.0, hung=hang, well=lambda emit: emit({"value": 1}))
    assert time.monotonic() - begin < 1.2
    assert answers["well"].items == [{"value": 1}]
    assert answers["hung"].why == "did not answer within 1 s"
    assert not os.path.exists(f"/proc/{answers['hung'].items[0]['pid']}")
    assert abandoned == []


@pytest.mark.parametrize(
    ("source", "why"),
    [
        pytest.param(lambda emit: 1 / 0, "ZeroDivisionError: division by zero", id="bug"),
        pytest.param(lambda emit: (nothing for nothing in ()).throw(RemediationError("no driver")), "no driver", id="error of ours"),
        pytest.param(lambda emit: os.kill(os.getpid(), signal.SIGSEGV), "ended before it had told all", id="crash"),
    ],
)
def test_one_that_fails_says_why(tmp_path, source, why):
    answers, _abandoned = collect(tmp_path, source=source)
    assert answers["source"].why == why


def test_a_child_has_neither_our_output_nor_our_files(tmp_path):
    """Ansible waits for the output to be closed: a hung child that kept it would hang the task."""

    def files(emit):
        emit(
            {
                "links": {
                    fd: os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")
                }
            }
        )

    with open(tmp_path / "open", "w"):
        answers, _abandoned = collect(tmp_path, source=files)
    links = answers["source"].items[0]["links"]
    assert {links.pop(fd) for fd in "012"} == {"/dev/null"}
    assert [link.split(":")[0] for link in links.values() if not link.startswith("/proc")] == ["pipe"]


def test_a_child_dies_with_its_parent(tmp_path):
    parent = os.fork()
    if parent == 0:
        threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
        collect(tmp_path, 30, hung=hang)
        os._exit(0)
    time.sleep(0.3)
    proc = ProcFs("/proc")
    children = [found.pid for found in map(proc.process, proc.pids()) if found and found.parent == parent]
    os.waitpid(parent, 0)
    assert len(children) == 1
    deadline = time.monotonic() + 2
    while os.path.exists(f"/proc/{children[0]}") and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not os.path.exists(f"/proc/{children[0]}")


def entry(pid, ticks, boot=None):
    return {
        "source": "nvml",
        "pid": pid,
        "start_ticks": ticks,
        "boot_id": boot or ProcFs("/proc").boot_id(),
        "since": "2026-01-01T00:00:00.000Z",
    }


def test_s20_no_second_child_while_an_abandoned_one_lives(tmp_path):
    own = ProcFs("/proc").process(os.getpid())
    (tmp_path / "abandoned.json").write_text(json.dumps([entry(own.pid, own.start_ticks)]))
    started = tmp_path / "started"
    answers, abandoned = collect(tmp_path, nvml=lambda emit: started.touch(), other=lambda emit: emit({}))
    assert not started.exists()
    assert f"pid {own.pid}, hangs since" in answers["nvml"].why
    assert answers["other"].items == [{}]
    assert [one["pid"] for one in abandoned] == [own.pid]


@pytest.mark.parametrize("ticks, boot", [(1, None), (None, "another boot")])
def test_s20_its_pid_alone_is_not_it(tmp_path, ticks, boot):
    own = ProcFs("/proc").process(os.getpid())
    (tmp_path / "abandoned.json").write_text(json.dumps([entry(own.pid, ticks or own.start_ticks, boot)]))
    answers, abandoned = collect(tmp_path, nvml=lambda emit: emit({"value": 1}))
    assert (answers["nvml"].items, abandoned) == ([{"value": 1}], [])


def test_s20_one_that_cannot_be_killed_is_written_down(tmp_path, monkeypatch):
    """Uninterruptible sleep, as far as a test without a freezer can make it: the kill does nothing."""
    kills = []
    with monkeypatch.context() as patch:
        patch.setattr(watchdog.os, "kill", lambda pid, number: kills.append(pid))
        _answers, abandoned = collect(tmp_path, 0.5, nvml=hang)
    [pid] = kills
    try:
        assert [(one["source"], one["pid"]) for one in abandoned] == [("nvml", pid)]
        assert json.loads((tmp_path / "abandoned.json").read_text()) == abandoned
        assert collect(tmp_path, nvml=hang)[0]["nvml"].why.startswith(f"an earlier reader, pid {pid}")
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert collect(tmp_path, nvml=lambda emit: None)[1] == []


def test_an_answer_survives_a_state_folder_that_cannot_be_written(tmp_path, monkeypatch):
    def refused(*_args):
        raise StateDirError("read-only")

    kills = []
    with monkeypatch.context() as patch:
        patch.setattr(watchdog.os, "kill", lambda pid, number: kills.append(pid))
        patch.setattr(StateDir, "write", refused)
        answers, _abandoned = collect(tmp_path, 0.5, nvml=hang, well=lambda emit: emit({"value": 1}))
    for pid in kills:  # `well` had not been reaped either when its kill was asked for
        if os.path.exists(f"/proc/{pid}"):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    assert answers["well"].items == [{"value": 1}]
    assert answers["nvml"].why.endswith("nor written down: read-only")


def test_s20_without_the_record_of_abandoned_children_none_is_started(tmp_path):
    (tmp_path / "abandoned.json").write_text("{")
    with pytest.raises(StateDirError):
        collect(tmp_path, nvml=lambda emit: (tmp_path / "started").touch())
    assert not (tmp_path / "started").exists()
