# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The simulated MPS control daemon against what the real one answered on an H200, question by question, silences included."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from gpusim.node import Node
from mps import MpsDaemon

RECORD = json.loads((Path(__file__).parents[1] / "fixtures/mps/h200-580.json").read_text(encoding="utf-8"))
SILENCE_SECONDS = 0.7


@pytest.fixture
def node(tmp_path):
    made = Node(tmp_path / "nodes", "gpu-1")
    made.create(gpus=1)
    yield made
    made.destroy()


class Replay:
    def __init__(self, node, folder):
        self.node, self.folder = node, folder
        self.uuid = node.state()["gpus"][0]["uuid"]
        self.daemon, self.pids, self.folders = None, {}, 0

    def close(self):
        if self.daemon and self.daemon.process.poll() is None:
            self.daemon.process.kill()
            self.daemon.process.wait()

    def real(self, text):
        """A recorded text with this node's numbers."""
        for name, pid in self.pids.items():
            text = text.replace(f"<{name}>", str(pid))
        return text.replace("<uuid>", self.uuid)

    def plain(self, text):
        """An answer as it is recorded."""
        text = text.replace(self.uuid, "<uuid>").replace(self.uuid[:22], "<uuid>")
        for name, pid in self.pids.items():
            text = re.sub(rf"\b{pid}\b", f"<{name}>", text)
        text = re.sub(r"/\S*/bin/\S+", "<command>", text)
        return re.sub(r" +", " ", re.sub(r"\b40265\d{5}\b", "<namespace>", text))

    def step(self, step):
        if "ask" in step:
            self.ask(step)
        elif "daemon" in step:
            self.close()
            self.folders += 1
            self.daemon, self.pids = MpsDaemon(self.node, self.folder / str(self.folders), self.uuid, **step["daemon"]), {}
        elif "daemon_ends" in step:
            self.daemon_ends(step)
        elif "second_daemon" in step:
            command = [self.daemon.program, "-f"]
            done = subprocess.run(command, env=self.daemon.environment, capture_output=True, text=True, timeout=30, check=False)
            assert (done.returncode, done.stdout) == (step["second_daemon"], step["says"])
        elif "connects" in step:
            self.connect(step)
        elif "ends" in step and step["client"] in self.pids:
            self.node.exit(self.pids[step["client"]])
        elif step.get("order", "").split()[:1] in (["spin"], ["crash"]):
            self.daemon.play("work" if "spin" in step["order"] else "crash", pid=self.pids[step["client"]])

    def connect(self, step):
        answer = self.daemon.play("connect", name="client", memory_bytes=0, cgroup=None, ends="normal")
        if isinstance(step["connects"], str):
            assert f"CUDA_ERROR_{answer['error']}" == step["connects"]
            return
        self.pids[step["client"]] = answer["pid"]
        if not step["environment"]:  # it may have less
            share = step["connects"]["multiprocessors"] / 132
            assert abs(answer["threads"] / 100 - share) < 0.02, step
            free = step["connects"]["free_mib"]
            assert answer["limit_mib"] is None if free > 100000 else free < answer["limit_mib"] < free + 300, step

    def daemon_ends(self, step):
        process = self.daemon.process
        if step["after"].startswith("SIG") and process.poll() is None:
            process.send_signal(-step["daemon_ends"])
        if step["daemon_ends"] is None:
            assert process.poll() is None, step
        else:
            # a shell is between a signal's status and ours where the program is one
            assert process.wait(20) in (step["daemon_ends"], 128 - step["daemon_ends"]), step

    def ask(self, step):
        command = self.real(step["ask"])
        run = {"input": f"{command}\n", "env": self.daemon.environment, "capture_output": True, "text": True}
        if step["answer"] is None:
            with pytest.raises(subprocess.TimeoutExpired):
                subprocess.run([self.daemon.program], timeout=SILENCE_SECONDS, check=False, **run)
            return
        done = subprocess.run([self.daemon.program], timeout=20, check=False, **run)
        if step["ask"] == "get_server_list" and done.stdout.strip() and "server" not in self.pids:
            self.pids["server"] = int(done.stdout)
        assert (self.plain(done.stdout), done.returncode, done.stderr) == (step["answer"], step["exit"], step.get("error", "")), step


@pytest.mark.parametrize("section", RECORD["sections"])
def test_the_simulated_daemon_answers_as_the_real_one_did(node, tmp_path, section):
    replay = Replay(node, tmp_path / "mps")
    try:
        for step in RECORD["sections"][section]:
            replay.step(step)
    finally:
        replay.close()


def test_the_record_has_what_the_modules_must_not_trust():
    """The daemon's bad manners are in the record, so that the comparison above compares them."""
    asked = {step["ask"]: step["answer"] for steps in RECORD["sections"].values() for step in steps if "ask" in step}
    assert asked["set_default_device_pinned_mem_limit 0 banana"] == "" and asked["set_default_active_thread_percentage 250"] == "50.0\n"
    assert any(answer is None for ask, answer in asked.items() if ask.startswith("terminate_client"))
