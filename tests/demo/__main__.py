# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The demo: two sick GPUs from the alert to the proof, and one of them back into service.

The GPUs are simulated. The processes, cgroups, playbooks and the Kubernetes control plane are real.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

SUPPORT = Path(__file__).resolve().parents[1] / "support"
REPOSITORY = SUPPORT.parents[1]
GPUSIM = REPOSITORY / "roles" / "simulated_gpu_node" / "files"
sys.path[:0] = [str(SUPPORT), str(GPUSIM), str(REPOSITORY / ".ansible" / "collections")]

from cluster.control_plane import Cluster  # noqa: E402
from cluster.objects import wait_until  # noqa: E402
from loop import Controller  # noqa: E402

GIB = 1 << 30
OUTPUT = REPOSITORY / "tests" / "output" / "demo"


def say(text: str) -> None:
    print(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n{text}", flush=True)


def told(controller: Controller) -> None:
    """Where people would be told: here a file, in earnest a pager."""
    controller.variables["gpuops_notify_command"] = ["tee", "-a", str(OUTPUT / "notifications.jsonl")]


def play(controller: Controller, playbook: str, **variables: object) -> None:
    """Runs a playbook as one would type it, its output on this terminal."""
    options = " ".join(f"-e gpuops_{name}='{value}'" for name, value in variables.items())
    print(f"\n$ ansible-playbook gpuops.remediation.{playbook} {options}\n", flush=True)
    environment = {**controller.environment, "ANSIBLE_STDOUT_CALLBACK": "gpuops.remediation.runbook"}
    environment.pop("ANSIBLE_NOCOLOR")
    command = controller.command(playbook, **variables)
    if subprocess.run(command, env=environment, cwd=controller.directory, check=False).returncode:
        sys.exit(f"demo: {playbook} failed")


@contextlib.contextmanager
def background(log: Path, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """A program beside the demo; it ends with it."""
    paths = os.pathsep.join([str(SUPPORT), str(GPUSIM)])
    with log.open("wb") as output:
        process = subprocess.Popen([sys.executable, "-m", *command], env={**os.environ, "PYTHONPATH": paths}, stdout=output, stderr=output)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def follow(process: subprocess.Popen[bytes], log: Path) -> None:
    """Shows a program's log until it ends, so that a long build is seen to move."""
    with log.open() as lines:
        while True:
            ended = process.poll() is not None
            for line in lines:
                print(f"  {line.rstrip()}", flush=True)
            if ended:
                break
            time.sleep(0.5)
    if process.returncode:
        sys.exit("demo: the Kubernetes control plane did not start")


def bare_host(directory: Path) -> None:
    say("Act 1: a bare host. GPU 3 of 8 has a memory row that cannot be replaced; a training process runs on it.")
    with Controller(directory, orchestrator="none") as controller:
        told(controller)
        node = controller.node("bare-1")
        pid = node.start([3], "train", 40 * GIB)
        play(controller, "mode", mode="act", who="the demo", why="to show all of it")
        node.xid(3, 48, pid=pid, name="train")
        node.row_remap(3, failure=True)
        play(controller, "remediate", alert_file=str(controller.alert("bare-1", 3, 48)))
        play(controller, "status", incident_id=controller.incidents()[0]["id"])
        say(
            f"The process {pid} is {'still there' if Path(f'/proc/{pid}').exists() else 'gone'}; what was done to the node stands in its own journal:"
        )
        for entry in controller.journal("bare-1"):
            print(f"  {entry['time']}  {entry['status']:<8}  {entry['action']}  {entry['target']}")


def kubernetes(directory: Path, cluster: Cluster) -> None:
    say("Act 2: Kubernetes. Two nodes, an inference service of four pods that may lose one at a time; a GPU of gpu-1 falls off the bus.")
    with Controller(directory, orchestrator="kubernetes", kubeconfig=cluster.kubeconfig) as controller:
        told(controller)
        nodes = [controller.node(name) for name in ("gpu-1", "gpu-2")]
        kubelet = ("gpusim", "--root", str(directory / "nodes"), "kubelet", "--kubeconfig", str(cluster.admin_kubeconfig))
        with background(directory / "kubelet.log", *kubelet):
            objects = cluster.objects
            objects.make_nodes("gpu-1", "gpu-2")
            objects.deployment("inference", replicas=4, gpus=2)
            objects.pdb("inference", max_unavailable=1)
            wait_until(lambda: len(nodes[0].state()["processes"]) + len(nodes[1].state()["processes"]) == 4, "the pods' processes", 60)
            show_pods(cluster)
            play(controller, "mode", mode="act", who="the demo", why="to show all of it")
            nodes[0].xid(0, 79)
            nodes[0].lost(0)
            play(controller, "remediate", alert_file=str(controller.alert("gpu-1", 0, 79)))
            incident = controller.incidents()[0]
            play(controller, "status", incident_id=incident["id"], page=str(OUTPUT / "incident.html"))
            show_pods(cluster)
            print(f"  taints of gpu-1: {', '.join(objects.taints('gpu-1')) or 'none'}")
            print(f"  the page: {OUTPUT / 'incident.html'}")

            say("The board is reseated, and the node rebooted. May it go back into service?")
            nodes[0].clear()
            nodes[0].reboot()
            play(controller, "release", incident_id=incident["id"])
            for check in controller.incidents()[0]["release"]["checks"]:
                print(f"  {({True: 'passed', False: 'failed', None: 'not asked'})[check['ok']]:<10} {check['name']:<16} {check['why']}")
            print(f"  taints of gpu-1: {', '.join(objects.taints('gpu-1')) or 'none'}")


def show_pods(cluster: Cluster) -> None:
    print()
    for pod in sorted(cluster.objects.pods("inference"), key=lambda pod: str(pod["metadata"]["name"])):
        print(f"  {pod['metadata']['name']:<34} {pod['spec'].get('nodeName', 'pending')}")


def main() -> None:
    began = time.monotonic()
    OUTPUT.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="gpuops-demo-"))
    cluster = Cluster(directory / "cluster", detached=True)
    log = directory / "cluster.log"
    try:
        with background(log, "cluster", "up", str(directory / "cluster")) as starting:
            bare_host(directory / "bare")
            say("Kubernetes: a real control plane on loopback (its programs are built once, then kept)")
            follow(starting, log)
            kubernetes(directory / "kubernetes", cluster)
    finally:
        cluster.stop()
        shutil.rmtree(directory, ignore_errors=True)
    say(f"The whole demo took {time.monotonic() - began:.0f} s.")


if __name__ == "__main__":
    main()
