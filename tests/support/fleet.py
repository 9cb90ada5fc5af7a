# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A controller whose simulated GPU nodes are nodes of a real Kubernetes cluster too."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import gpusim
from cluster import ACCOUNT, Cluster, audit
from gpusim.node import Node
from loop import Controller

Answer = TypeVar("Answer")
TAINT = "gpu.unhealthy=true:NoSchedule"


class Fleet(Controller):
    def __init__(self, directory: Path, cluster: Cluster, *, ledger_url: str = "") -> None:
        super().__init__(directory, orchestrator="kubernetes", kubeconfig=cluster.kubeconfig, ledger_url=ledger_url)
        self.cluster = cluster
        self.objects = cluster.objects
        self.begun = audit.now()

    def gpu_nodes(self, *names: str, gpus: int = 2, by_claim: bool = False, **variables: Any) -> list[Node]:
        """Both the API's objects and the machines behind them; without a device plugin where claims are to hand the GPUs out."""
        self.objects.make_nodes(*names, gpus=0 if by_claim else gpus)
        return [self.node(name, gpus=gpus, **variables) for name in names]

    def know_nodes(self) -> None:
        """The ledger knows them, as after any run that opened an incident."""
        uids = {name: self.objects.node(name)["metadata"]["uid"] for name in self.nodes}
        groups = {"fleet": len(uids)}
        self.ledger(write=True).keep_nodes({name: {"host": name, "uid": uid, "groups": groups} for name, uid in uids.items()})

    @contextlib.contextmanager
    def kubelet(self, *options: str) -> Iterator[None]:
        """Pods have processes on the simulated GPUs meanwhile; with `--dra` the GPUs are handed out by claims."""
        command = [sys.executable, "-m", "gpusim", "--root", str(self.directory / "nodes"), "kubelet"]
        command += ["--kubeconfig", str(self.cluster.admin_kubeconfig), *options]
        with subprocess.Popen(command, cwd=Path(gpusim.__file__).parents[1], stdout=subprocess.PIPE, text=True) as child:
            try:
                assert child.stdout is not None
                while "ready" not in (line := child.stdout.readline()):
                    assert line, "the kubelet ended"
                yield
            finally:
                child.terminate()
                child.communicate(timeout=20)

    def writes(self, *resources: str, since: str = "") -> list[audit.Entry]:
        """What the collection's account wrote: all, or to some resources ("nodes", "pods/eviction", "leases")."""
        found = self.cluster.audit(verb=audit.WRITES, user=ACCOUNT, since=since or self.begun)
        return [entry for entry in found if not resources or entry.resource in resources]

    def incidents_on(self, node: str) -> list[str]:
        annotations = self.objects.node(node)["metadata"].get("annotations", {})
        return list(json.loads(annotations.get("gpuops.remediation/incidents", "[]")))

    def set(self, mode: str | None = None, **breaker: Any) -> None:
        """As mode.yml does, in a moment."""
        self.ledger(write=True).configure(mode, breaker or None, False, "tests", "the test needs it")

    def ended(self) -> dict[tuple[str, str], str]:
        """The end states by node and GPU; the newest incident of each."""
        return {(one["node"], one["gpu"]): one["state"] for one in self.incidents()}


def side_by_side(*calls: Callable[[], Answer]) -> list[Answer]:
    """What they answer; runs of one controller may go side by side too."""
    with ThreadPoolExecutor(max_workers=len(calls)) as pool:
        return [running.result() for running in [pool.submit(call) for call in calls]]
