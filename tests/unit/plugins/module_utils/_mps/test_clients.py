# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup import around, proof
from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.act import StillHeld
from ansible_collections.gpuops.remediation.plugins.module_utils._converge import converge
from ansible_collections.gpuops.remediation.plugins.module_utils._mps import clients, info
from ansible_collections.gpuops.remediation.plugins.module_utils._mps.errors import ClientStopped, ControlHangs, ServerFault
from ansible_collections.gpuops.remediation.plugins.module_utils._mps.terminated import Terminated
from ansible_collections.gpuops.remediation.plugins.module_utils._node.journal import Journal
from ansible_collections.gpuops.remediation.plugins.module_utils._node.node import Node
from fake_mps import FakeMps

SERVER = 7


@pytest.fixture
def node(tmp_path):
    places = {"proc_root": "/proc", "state_dir": str(tmp_path / "state"), "dev_root": "/dev", "kmsg_path": "", "nvml_library": ""}
    return Node.from_params({**places, "cgroup_root": "/sys/fs/cgroup"})


@pytest.fixture
def start():
    """Real processes; `stubborn` ones do not end on SIGTERM."""
    made = []

    def begin(stubborn=False):
        ignore = "signal.signal(signal.SIGTERM, signal.SIG_IGN);" if stubborn else ""
        code = f"import signal, time; {ignore} print('up', flush=True); time.sleep(60)"
        made.append(subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE))
        made[-1].stdout.readline()
        return made[-1]

    yield begin
    for process in made:
        process.kill()
        process.wait()


@pytest.fixture
def proven(monkeypatch):
    """The cgroups of a test's processes are the test's own; the proof itself is tested where it is."""
    asked = []
    monkeypatch.setattr(proof, "require", lambda *args: asked.append(args))
    return asked


class Listed(FakeMps):
    """A client is listed while its process lives, and the server is in FAULT while one of those is."""

    def _get_client_list(self, pid):
        return "".join(f"{one.pid}\n" for one in self.fake["servers"][int(pid)][1] if one.poll() is None)

    def _get_server_status(self, pid):
        status = self.fake["servers"][int(pid)][0]
        return "FAULT\n" if status == "FAULT" and self._get_client_list(pid) else "ACTIVE\n" if status == "FAULT" else f"{status}\n"

    def _terminate_client(self, _server, _pid):
        return "0\n"


def named(process, node):
    return {"pid": process.pid, "start_ticks": node.proc.process(process.pid).start_ticks}


def run(mps, node, want, check_mode=False, timeout_seconds=20):
    journal = Journal(node.state, "boot", "tests", "because")
    task = clients.ClientTask(node, mps, want, journal, lambda: None, timeout_seconds)
    with task.holding():
        return converge(task.read, task.plan, task.predict, task.apply, check_mode=check_mode)


def test_a_client_is_told_once(node, start):
    one, other = start(), start()
    mps = Listed({SERVER: ("ACTIVE", [one, other])})
    want = clients.Want("terminated", [named(one, node)])
    foretold = run(mps, node, want, check_mode=True)
    assert not [ask for ask in mps.asked if "terminate" in ask]
    done = run(mps, node, want)
    assert list(done.steps) == list(foretold.steps)
    assert [client.terminated for client in done.after.clients] == [True, False]
    assert not run(mps, node, want).steps
    assert [ask for ask in mps.asked if "terminate" in ask] == [f"terminate_client {SERVER} {one.pid}"]
    assert one.poll() is None


def test_it_is_written_down_before_it_is_told(node, start):
    """The daemon's answer is lost: it may have been terminated, and is not told again."""
    one = start()

    class Silent(Listed):
        def _terminate_client(self, *_words):
            raise ControlHangs("no answer")

    mps = Silent({SERVER: ("ACTIVE", [one])})
    want = clients.Want("terminated", [named(one, node)])
    with pytest.raises(ControlHangs):
        run(mps, node, want)
    assert not run(mps, node, want).steps


def test_the_record_is_of_this_process_and_this_boot(node, start, monkeypatch):
    one, gone = start(), start()
    record = Terminated(node.state, node.proc)
    ticks, gone_ticks = (named(process, node)["start_ticks"] for process in (one, gone))
    record.add(gone.pid, gone_ticks)
    gone.kill()
    gone.wait()
    record.add(one.pid, ticks)
    assert record.has(one.pid, ticks) and not record.has(one.pid, ticks + 1) and not record.has(gone.pid, gone_ticks)
    monkeypatch.setattr(type(node.proc), "boot_id", lambda _proc: "another")
    assert not record.has(one.pid, ticks)


def test_the_work_ends_before_the_process(node, start, proven):
    one = start()
    mps = Listed({SERVER: ("ACTIVE", [one])})
    done = run(mps, node, clients.Want("terminated", [named(one, node)], end_process=True))
    assert [step.action for step in done.steps] == ["terminate_client", "end"] and one.wait(5) == -signal.SIGTERM
    assert proven and done.after.clients == []


def test_without_the_proof_of_its_process_its_work_is_left_too(node, start, monkeypatch):
    """Its cgroup is the test's own, where this very task runs."""
    one = start()
    mps = Listed({SERVER: ("ACTIVE", [one])})
    monkeypatch.setattr(around, "members", lambda *_args: [])
    with pytest.raises(proof.NotProven):
        run(mps, node, clients.Want("terminated", [named(one, node)], end_process=True))
    assert not [ask for ask in mps.asked if "terminate" in ask] and one.poll() is None


def test_one_who_is_no_client_stops_all(node, start):
    client, stray = start(), start()
    mps = Listed({SERVER: ("ACTIVE", [client])})
    with pytest.raises(proof.NotProven) as caught:
        run(mps, node, clients.Want("terminated", [named(client, node), named(stray, node)]))
    assert [one["pid"] for one in caught.value.details["suspects"]] == [stray.pid]
    assert not [ask for ask in mps.asked if "terminate" in ask]


def test_another_process_of_that_pid_is_nobody_meant(node, start):
    one = start()
    old = {"pid": one.pid, "start_ticks": named(one, node)["start_ticks"] - 1}
    assert not run(Listed({SERVER: ("ACTIVE", [one])}), node, clients.Want("terminated", [old])).steps


@pytest.mark.parametrize("check_mode", [True, False])
def test_in_fault_nobody_is_terminated_through_the_server(node, start, check_mode):
    one = start()
    mps = Listed({SERVER: ("FAULT", [one])})
    with pytest.raises(ServerFault):
        run(mps, node, clients.Want("terminated", [named(one, node)]), check_mode=check_mode)
    assert not [ask for ask in mps.asked if "terminate" in ask]


def test_a_stopped_client_is_not_terminated(node, start):
    one = start()
    one.send_signal(signal.SIGSTOP)
    os.waitpid(one.pid, os.WUNTRACED)
    mps = Listed({SERVER: ("ACTIVE", [one])})
    with pytest.raises(ClientStopped):
        run(mps, node, clients.Want("terminated", [named(one, node)]))
    one.send_signal(signal.SIGCONT)
    assert not [ask for ask in mps.asked if "terminate" in ask]


def test_a_recovery_ends_the_processes_and_waits_for_the_server(node, start, proven):
    gentle, stubborn = start(), start(stubborn=True)
    mps = Listed({SERVER: ("FAULT", [gentle, stubborn])})
    want = clients.Want("recovered", grace_seconds=0.3)
    foretold = run(mps, node, want, check_mode=True)
    assert gentle.poll() is None and foretold.after.status == {SERVER: "ACTIVE"}
    done = run(mps, node, want)
    assert (gentle.wait(5), stubborn.wait(5)) == (-signal.SIGTERM, -signal.SIGKILL)
    assert done.after == foretold.after and not [ask for ask in mps.asked if "terminate" in ask]
    assert not run(mps, node, want).steps and len(proven) == 2


def test_a_healthy_server_needs_no_recovery(node, start):
    one = start()
    assert not run(Listed({SERVER: ("ACTIVE", [one])}), node, clients.Want("recovered")).steps
    assert not run(Listed({SERVER: ("FAULT", [one])}), node, clients.Want("listed")).steps and one.poll() is None


def test_a_recovery_touches_nobody_without_proof(node, start, monkeypatch):
    one = start()
    monkeypatch.setattr(around, "members", lambda *_args: [])
    with pytest.raises(proof.NotProven):
        run(Listed({SERVER: ("FAULT", [one])}), node, clients.Want("recovered"))
    assert one.poll() is None


def test_who_does_not_end_in_time_is_named(node, start, proven, monkeypatch):
    one = start(stubborn=True)
    monkeypatch.setattr(clients.pidfd, "send", lambda *_args: True)
    with pytest.raises(StillHeld) as caught:
        run(Listed({SERVER: ("FAULT", [one])}), node, clients.Want("recovered", grace_seconds=0.1), timeout_seconds=0.5)
    assert caught.value.details["left"] == [one.pid]


def test_a_server_that_does_not_let_go_is_said(node, start, proven):
    one = start()

    class Deaf(Listed):
        def _get_server_status(self, _pid):
            return "FAULT\n"

    with pytest.raises(ServerFault, match="in time"):
        run(Deaf({SERVER: ("FAULT", [one])}), node, clients.Want("recovered"), timeout_seconds=1)


def test_a_ghost_means_another_daemon(node):
    class Haunted(Listed):
        def _get_server_status(self, _pid):
            return "FAULT\n"

    haunted = Haunted({SERVER: ("FAULT", [])})
    haunted.fake["ghosts"] = [(SERVER, 503)]
    with pytest.raises(ServerFault, match="503") as caught:
        run(haunted, node, clients.Want("recovered"))
    assert caught.value.details["clients"] == [503]


def test_the_machine_knows_the_task_and_its_neighbours(node):
    task = around.this_task()
    assert os.getpid() in task.ancestors and task.cgroup.startswith("/")

    class Cgroups:
        def members(self, path):
            from ansible_collections.gpuops.remediation.plugins.module_utils._cgroup.state import Member

            return [Member(os.getpid(), path), Member(2**22 + 1, path)]

    found = around.members(Cgroups(), "/a")
    assert [(one.pid, bool(one.executable)) for one in found] == [(os.getpid(), True), (2**22 + 1, False)]


def test_info_tells_each_daemon_or_why_not(node, start, monkeypatch, tmp_path):
    one = start()
    made = {"/good": Listed({SERVER: ("ACTIVE", [one])}), "/gone": FakeMps(running=False)}
    for folder, mps in made.items():
        object.__setattr__(mps, "pipe_directory", folder)
    monkeypatch.setattr(info, "Control", lambda _program, folder, _seconds: made[folder])
    monkeypatch.setattr(info, "find_program", lambda name: name)
    params = {
        "mps_control": "c",
        "control_timeout_seconds": 1,
        "proc_root": "/proc",
        "state_dir": str(tmp_path),
        "pipe_directories": list(made),
    }
    good, gone = info.read(params)
    assert good["error"] is None and [(server["status"], [c["pid"] for c in server["clients"]]) for server in good["servers"]] == [
        ("ACTIVE", [one.pid])
    ]
    assert gone["error"]["error_kind"] == "no_daemon" and gone["servers"] == []
    monkeypatch.setattr(info, "RUNTIME", str(tmp_path / "run"))
    monkeypatch.setattr(info, "DEFAULT_PIPES", str(tmp_path / "nvidia"))
    (tmp_path / "run/GPU-1").mkdir(parents=True)
    assert info.known() == [str(tmp_path / "run/GPU-1")]
    (tmp_path / "nvidia").mkdir()
    (tmp_path / "nvidia/control").touch()
    assert info.known()[1] == str(tmp_path / "nvidia")
