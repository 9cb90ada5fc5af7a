# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The modules of MPS against the simulated control daemon, which they drive by its own program."""

from __future__ import annotations

import contextlib
import json
import time

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._node.procfs import ProcFs
from cluster.objects import wait_until
from mps import mps_daemon

GIB = 1 << 30


def alive(pid):
    found = ProcFs("/proc").process(pid)
    return found is not None and found.state != "Z"


def named(pid):
    return {"pid": pid, "start_ticks": ProcFs("/proc").process(pid).start_ticks}


class Mps:
    """One daemon on the node's first GPU, started by somebody else, and our modules with its folder."""

    def __init__(self, node, daemon):
        self.node, self.daemon = node, daemon
        self.folder = str(daemon.folder)

    def set(self, **params):
        given = {"device": self.node.uuids[0], "managed_by": "other", "pipe_directory": self.folder}
        return self.node.run("mps_daemon", **{**given, **params})

    def client(self, state, **params):
        return self.node.run("mps_client", **{"pipe_directory": self.folder, "state": state, "control_timeout_seconds": 2, **params})

    def info(self):
        [found] = self.node.run("mps_info", pipe_directories=[self.folder], control_timeout_seconds=2)["daemons"]
        return found


@pytest.fixture
def mps(node, tmp_path):
    with mps_daemon(node.sim, tmp_path / "mps", node.uuids[0]) as daemon:
        yield Mps(node, daemon)


def test_limits_are_set_for_the_next_server_and_read_back(mps):
    want = {"memory_limit": "4G", "active_thread_percentage": 50, "client_priority": "below_normal"}
    predicted = mps.set(check_mode=True, **want)
    assert predicted["changed"] and mps.info()["defaults"]["memory_limit_bytes"] is None
    done = mps.set(**want)
    assert done["after"] == predicted["after"] and done["actions"] == predicted["actions"]
    assert mps.info()["defaults"] == {"memory_limit_bytes": 4 * GIB, "active_thread_percentage": 50, "client_priority": "below_normal"}
    assert [one["takes_effect"] for one in done["seen_by"]] == ["next_server"]
    assert not mps.set(**want)["changed"]
    assert mps.set(memory_limit="none")["after"]["defaults"]["memory_limit_bytes"] is None


def test_a_server_that_runs_gets_them_for_its_new_clients(mps):
    mps.set(memory_limit="4G")
    first = mps.daemon.connect()
    changed = mps.set(memory_limit="8G")
    assert [(one["takes_effect"], one.get("clients_as_before")) for one in changed["seen_by"]] == [
        ("next_server", None),
        ("new_clients", [first]),
    ]
    assert mps.daemon.play("connect", name="big", memory_bytes=6 * GIB, cgroup=None, ends="normal")["limit_mib"] == 8192
    assert not mps.set(memory_limit="8G")["changed"]


def test_what_somebody_set_by_the_other_name_of_the_device_is_found(mps):
    mps.set(memory_limit="4G")
    mps.daemon.ask(f"set_default_device_pinned_mem_limit {mps.node.uuids[0]} 90G")
    assert mps.set(memory_limit="4G")["changed"]
    assert mps.daemon.ask(f"get_default_device_pinned_mem_limit {mps.node.uuids[0]}") == "4G\n"


@pytest.mark.parametrize(
    "value",
    [
        *({"memory_limit": text} for text in ("banana", "1.5G", "1T", "-1G", "0G", "4096", "999G", "4G; quit", "4G\nquit")),
        *({"active_thread_percentage": number} for number in (250, 0, -5, 33.33)),
        {"tenant": {"memory_budget": "4G", "clients": 0}},
        {"device": "GPU-0/../../etc", "memory_limit": "4G"},
    ],
)
def test_what_the_daemon_would_misunderstand_is_never_sent(mps, value):
    before = mps.info()["defaults"]
    refused = mps.set(**value)
    assert refused["failed"] and refused["error_kind"] == "bad_value"
    assert mps.info()["defaults"] == before


def test_a_budget_becomes_a_limit_of_each_process_and_is_told_when_there_are_too_many(mps):
    within = mps.set(tenant={"memory_budget": "10G", "clients": 2})
    assert within["tenant"]["each_client_bytes"] == 5 * GIB and within["tenant"]["within_budget"]
    for name in ("one", "two", "three"):
        mps.daemon.connect(name, 5 * 1024)
    over = mps.set(tenant={"memory_budget": "10G", "clients": 2})
    assert not over["changed"] and over["tenant"]["together_now_bytes"] == 15 * GIB and not over["tenant"]["within_budget"]
    assert "3 clients share a budget" in str(over["warnings"])


def test_the_compute_mode_is_set_and_refused_where_others_are(mps):
    assert mps.set(compute_mode="exclusive_process")["after"]["compute_mode"] == "exclusive_process"
    assert not mps.set(compute_mode="exclusive_process")["changed"]
    mps.set(compute_mode="default")
    mps.daemon.connect()
    assert mps.set(compute_mode="exclusive_process", check_mode=True)["changed"], "clients of MPS and its server are no others"
    mps.node.sim.start([0], "notebook", GIB)
    refused = mps.set(compute_mode="exclusive_process")
    assert (refused["error_kind"], mps.set(compute_mode="default")["changed"]) == ("compute_mode", False)
    assert "notebook" in refused["msg"]


def test_a_mig_device_has_its_own_daemon_and_no_exclusive_mode(node, tmp_path):
    from gpusim import instances

    instances.set_mode(node.sim, 0, True)
    instances.create(node.sim, 0, "3g.71gb", None, None)
    [instance] = node.sim.state()["gpus"][0]["mig"]["instances"]
    device = instance["compute"][0]["uuid"]
    with mps_daemon(node.sim, tmp_path / "mps", device) as daemon:
        mps = Mps(node, daemon)
        assert mps.set(device=device, memory_limit="72000M")["failed"], "more than the instance has"
        assert mps.set(device=device, memory_limit="10G")["changed"]
        pid = daemon.connect()
        assert [one["pid"] for one in mps.info()["servers"][0]["clients"]] == [pid]
        assert mps.set(device=device, compute_mode="exclusive_process")["error_kind"] == "compute_mode"
        assert "MIG mode" in mps.set(memory_limit="1G")["msg"], "the GPU itself"


def test_clients_are_told_with_who_they_are(mps):
    pod = "kubepods.slice/kubepods-pod12345678_9abc_def0_1234_56789abcdef0.slice/cri-containerd-" + "4f" * 32 + ".scope"
    pid = mps.daemon.connect("infer", cgroup=pod)
    [server] = mps.info()["servers"]
    [client] = server["clients"]
    assert (server["status"], client["pid"], client["container"]["id"]) == ("ACTIVE", pid, "4f" * 32)
    [listed] = mps.client("listed")["after"]["clients"]
    assert {**listed, "start_time": client["start_time"]} == client  # counted back from now each time


def test_no_daemon_and_one_that_hangs_are_told_apart(mps, tmp_path):
    assert mps.node.run("mps_info", pipe_directories=[str(tmp_path)])["daemons"][0]["error"]["error_kind"] == "no_daemon"
    mps.daemon.connect()
    with hanging(mps.daemon, "quit"):
        assert mps.info()["error"]["error_kind"] == "control_hangs"
        assert mps.client("listed")["error_kind"] == "control_hangs"
        assert mps.set(memory_limit="4G", control_timeout_seconds=1)["error_kind"] == "control_hangs"


@contextlib.contextmanager
def hanging(daemon, command):
    """The daemon has begun with something that waits."""
    from threading import Thread

    def ask():
        with contextlib.suppress(Exception):
            daemon.ask(command)

    thread = Thread(target=ask)
    thread.start()
    time.sleep(0.3)
    yield
    daemon.process.kill()
    thread.join()


def test_a_client_is_terminated_its_neighbour_goes_on_and_the_second_run_tells_the_daemon_nothing(mps):
    noisy, neighbour = mps.daemon.connect("noisy"), mps.daemon.connect("neighbour")
    mps.daemon.play("work", pid=noisy)
    want = {"pids": [named(noisy)]}
    predicted = mps.client("terminated", check_mode=True, **want)
    assert [one["action"] for one in predicted["actions"]] == ["terminate_client"]
    done = mps.client("terminated", why="too much", **want)
    assert done["actions"] == predicted["actions"] and alive(noisy), "its process lives"
    again = mps.client("terminated", **want)
    assert not again["changed"] and again["after"]["servers"][0]["status"] == "ACTIVE"
    ended = mps.client("terminated", end_process=True, **want)
    assert [one["action"] for one in ended["actions"]] == ["end"] and not alive(noisy) and alive(neighbour)
    assert [one["pid"] for one in mps.client("listed")["after"]["clients"]] == [neighbour]
    assert mps.info()["servers"][0]["status"] == "ACTIVE", "its work had ended first"
    assert not mps.client("terminated", end_process=True, **want)["changed"]
    lines = [json.loads(line) for line in (mps.node.state_dir / "journal.jsonl").read_text().splitlines()]
    assert [(one["action"], one["status"]) for one in lines] == [
        (action, status) for action in ("terminate_client", "end") for status in ("intended", "applied")
    ]


def test_the_record_is_written_before_the_order(mps, monkeypatch):
    """A run that is killed in between leaves a client that is never told again."""
    from ansible_collections.gpuops.remediation.plugins.module_utils._mps.control import Control

    pid = mps.daemon.connect()
    seen = []
    told = Control.terminate_client
    monkeypatch.setattr(
        Control, "terminate_client", lambda *args: (seen.append(mps.info()["servers"][0]["clients"][0]["terminated"]), told(*args))
    )
    mps.client("terminated", pids=[named(pid)])
    assert seen == [True]


def test_who_is_no_client_is_not_touched_nor_anybody_with_him(mps):
    client, other = mps.daemon.connect(), mps.node.sim.start([1], "other", GIB)
    refused = mps.client("terminated", pids=[named(client), named(other)], end_process=True)
    assert refused["error_kind"] == "not_proven" and [one["pid"] for one in refused["suspects"]] == [other]
    assert alive(client) and not mps.info()["servers"][0]["clients"][0]["terminated"]
    old = {"pid": client, "start_ticks": named(client)["start_ticks"] - 1}
    assert not mps.client("terminated", pids=[old])["changed"], "that process has gone, and the pid is another's"


def test_a_frozen_client_is_not_terminated(mps):
    """The real server waits for it, and its neighbours' kernels wait too."""
    pid = mps.daemon.connect("held")
    freezer = mps.node.sim.cgroups / "system.slice/held.service/cgroup.freeze"
    freezer.write_text("1")
    wait_until(lambda: "frozen 1" in (freezer.parent / "cgroup.events").read_text(), "the freezer", 20)
    for check_mode in (True, False):
        assert mps.client("terminated", pids=[named(pid)], check_mode=check_mode)["error_kind"] == "client_stopped"
    assert not mps.info()["servers"][0]["clients"][0]["terminated"]
    freezer.write_text("0")
    assert mps.client("terminated", pids=[named(pid)])["changed"]


def test_a_process_in_nobodys_cgroup_is_not_ended(mps):
    pid = mps.daemon.connect(cgroup="somewhere")
    refused = mps.client("terminated", pids=[named(pid)], end_process=True)
    assert refused["error_kind"] == "not_proven" and alive(pid)
    assert not mps.info()["servers"][0]["clients"][0]["terminated"], "all or nothing"


def test_a_server_in_fault_is_brought_back_by_ending_its_clients(mps):
    culprit, victim = mps.daemon.connect("culprit"), mps.daemon.connect("victim", ends="late:2")
    mps.daemon.play("crash", pid=culprit)
    assert mps.info()["servers"][0]["status"] == "FAULT"
    assert mps.daemon.play("connect", name="new", memory_bytes=0, cgroup=None, ends="normal") == {"error": "MPS_SERVER_NOT_READY"}
    refused = mps.client("terminated", pids=[named(culprit)])
    assert refused["error_kind"] == "server_fault", "never through the server then"
    assert mps.set(memory_limit="4G")["error_kind"] == "server_fault"
    predicted = mps.client("recovered", check_mode=True)
    assert alive(culprit) and alive(victim)
    done = mps.client("recovered")
    assert done["actions"] == predicted["actions"] and done["after"] == predicted["after"]
    assert done["after"] == {"servers": [{"pid": mps.daemon.server, "status": "ACTIVE"}], "clients": []}
    assert not alive(culprit) and not alive(victim)
    assert not mps.client("recovered")["changed"]
    mps.daemon.connect("next")


def test_a_client_that_does_not_end_is_named(mps):
    pid = mps.daemon.connect(ends="never")
    mps.daemon.play("crash", pid=pid)
    left = mps.client("recovered", grace_seconds=0.2, timeout_seconds=3)
    assert left["error_kind"] == "still_held" and left["left"] == [pid]


def test_what_terminating_in_fault_leaves_behind_is_said(mps):
    culprit, victim = mps.daemon.connect("culprit"), mps.daemon.connect("victim")
    mps.daemon.play("crash", pid=culprit)
    from threading import Thread

    thread = Thread(target=lambda: mps.daemon.ask(f"terminate_client {server} {victim}"))
    server = mps.daemon.server
    thread.start()
    time.sleep(0.3)
    assert mps.info()["error"]["error_kind"] == "control_hangs"
    for pid in (victim, culprit):
        mps.node.sim.exit(pid)
    thread.join()
    wait_until(lambda: mps.info()["error"] is None, "an answer", 20)
    refused = mps.client("recovered")
    assert refused["error_kind"] == "server_fault" and refused["clients"] == [victim]
    assert mps.info()["servers"][0]["clients"][0]["lingers"]


def test_only_our_own_daemon_is_started_or_ended(mps):
    assert mps.set(state="absent")["error_kind"] == "bad_value"
    mps.daemon.ask("quit")
    assert mps.set(memory_limit="4G")["error_kind"] == "no_daemon"
