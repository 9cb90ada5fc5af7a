# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Start, wait for and stop one cluster; any number of them run side by side, each in a directory and on a port of its own."""

from __future__ import annotations

import base64
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml
from ports import free_port

from cluster import api, audit, certificate
from cluster.api import Api, ApiError
from cluster.errors import ClusterError
from cluster.objects import DEAD_LABEL, Objects
from cluster.processes import Component
from cluster.programs import programs

HERE = Path(__file__).resolve().parent
RBAC = HERE.parents[2] / "roles" / "incident" / "files" / "kubernetes_rbac.yml"
# In the order in which they are started. They are ended in reverse: an API server whose etcd went first holds its port for a minute.
COMPONENTS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok")
CLIENTS = ("admin", *COMPONENTS[2:])  # users with all rights, apart by name in the audit log
NAMESPACE = "gpuops-system"
ACCOUNT = f"system:serviceaccount:{NAMESPACE}:gpuops-controller"  # the user that the collection is to the API server


class Cluster:
    """A cluster in `directory`, or in a temporary one that goes when the cluster stops.

    `flags` adds command line flags by component: `{"kube-apiserver": ["--max-requests-inflight=5"]}`. A `detached` cluster lives on when
    this process ends, until any process says `Cluster(directory).stop()`; any other one is ended by a guard when this process is gone,
    however it went. (The kernel's way, PDEATHSIG, would be the end of a program with the thread that started it.)
    """

    def __init__(
        self, directory: Path | str | None = None, *, flags: Mapping[str, Sequence[str]] | None = None, detached: bool = False
    ) -> None:
        self._temporary = directory is None
        self.directory = Path(tempfile.mkdtemp(prefix="gpuops-cluster-") if directory is None else directory).resolve()
        self.kubeconfig = self.directory / "kubeconfig"  # the collection's own account: what the code under test gets
        self.admin_kubeconfig = self.directory / "admin.kubeconfig"
        self.audit_log = self.directory / "audit.log"
        self.key = self.directory / "key.pem"
        self.certificate = self.directory / "certificate.pem"
        self.components = {name: Component(name, self.directory) for name in COMPONENTS}
        self._flags = flags or {}
        self._detached = detached
        self._guard: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Cluster:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def __getitem__(self, name: str) -> Component:
        return self.components[name]

    @property
    def environment(self) -> dict[str, str]:
        """For commands that talk to this cluster. kubernetes.core caches what it discovers under TMPDIR, by URL: never share that."""
        return {**os.environ, "KUBECONFIG": str(self.kubeconfig), "TMPDIR": str(self.directory / "tmp")}

    @cached_property
    def admin(self) -> Api:
        """The API with all rights."""
        return Api(self.admin_kubeconfig)

    @property
    def server(self) -> str:
        return self.admin.server

    @cached_property
    def objects(self) -> Objects:
        """Nodes and workloads, made as a user makes them."""
        return Objects(self.admin)

    def start(self, timeout_seconds: float = 90) -> None:
        """Returns when the API server is ready and the collection's account can use it. Always begins with an empty cluster."""
        if any(component.running for component in self.components.values()):
            raise ClusterError(f"a cluster runs already in {self.directory}")
        found = programs()
        self._clear()
        if not self._detached:
            arguments = [sys.executable, "-m", "cluster", "guard", str(self.directory), *(["--remove"] if self._temporary else [])]
            environment = {**os.environ, "PYTHONPATH": str(HERE.parent)}
            self._guard = subprocess.Popen(arguments, stdin=subprocess.PIPE, start_new_session=True, env=environment)
        try:
            self._configure(found, free_port())
            self["etcd"].start()
            self["kube-apiserver"].start()
            self.wait_until_ready(timeout_seconds)
            for name in COMPONENTS[2:]:
                self[name].start()
            self._make_account()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        for name in reversed(COMPONENTS):
            self[name].end()
        if self._guard:
            self._guard.communicate()
            self._guard = None
        if self._temporary:
            shutil.rmtree(self.directory, ignore_errors=True)

    @contextmanager
    def outage(self, name: str = "kube-apiserver") -> Iterator[None]:
        """The API server or etcd is gone meanwhile."""
        self[name].kill()
        try:
            yield
        finally:
            self.mend()

    def mend(self) -> None:
        """Whatever was paused or killed runs again."""
        dead = [component for component in self.components.values() if not component.running]
        for component in self.components.values():
            if component not in dead:
                component.resume()
            elif component.name not in CLIENTS:
                component.start()
        self.wait_until_ready()
        if not dead:
            return
        clients = [self[name] for name in COMPONENTS if name in CLIENTS]
        for component in reversed(clients):  # after a long outage they would sleep on for up to a minute
            component.end()
        self.admin.delete("Lease", "", "kube-node-lease")  # a new kwok would wait until those of the old one lapse
        for component in clients:
            component.start()

    def wait_until_ready(self, timeout_seconds: float = 90) -> None:
        """Until the API server answers that it is ready; fails at once when it or etcd has died."""
        deadline = time.monotonic() + timeout_seconds
        while not self.ready():
            for name in COMPONENTS[:2]:
                if not self[name].running:
                    raise ClusterError(f"{name} ended:\n{self[name].last_words()}")
            if time.monotonic() > deadline:
                raise ClusterError(f"the API server is not ready after {timeout_seconds} s:\n{self['kube-apiserver'].last_words()}")
            time.sleep(0.1)

    def ready(self) -> bool:
        try:
            return bool(self.admin.request("GET", "/readyz", timeout_seconds=5) == "ok")
        except (ApiError, OSError):
            return False

    def audit(self, **matching: Any) -> list[audit.Entry]:
        """What was asked of this API server; see `audit.read`."""
        return audit.read(self.audit_log, **matching)

    def _clear(self) -> None:
        for name in ("admin", "objects"):  # of an earlier start
            self.__dict__.pop(name, None)
        for name in ("etcd", "tmp"):
            shutil.rmtree(self.directory / name, ignore_errors=True)
            (self.directory / name).mkdir(parents=True, mode=0o700)
        for file in (*self.directory.glob("*.log"), *self.directory.glob("*.kubeconfig"), self.kubeconfig):
            file.unlink(missing_ok=True)

    def _configure(self, found: Mapping[str, Path], port: int) -> None:
        certificate.write(self.key, self.certificate)
        tokens = {name: secrets.token_hex(16) for name in CLIENTS}
        rows = self.directory / "tokens.csv"
        rows.touch(mode=0o600)
        rows.write_text("".join(f"{token},{name},{name},system:masters\n" for name, token in tokens.items()))
        for name, token in tokens.items():
            self._write_kubeconfig(self.directory / f"{name}.kubeconfig", f"https://127.0.0.1:{port}", token)
        for name, flags in self._commands(port).items():
            command = [str(found[name]), *flags, *self._flags.get(name, ())]
            self.components[name] = Component(name, self.directory, command)

    def _write_kubeconfig(self, file: Path, server: str, token: str) -> None:
        authority = base64.b64encode(self.certificate.read_bytes()).decode()
        file.touch(mode=0o600)
        file.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [{"name": "test", "cluster": {"server": server, "certificate-authority-data": authority}}],
                    "users": [{"name": "test", "user": {"token": token}}],
                    "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
                    "current-context": "test",
                }
            )
        )

    def _commands(self, port: int) -> dict[str, list[str]]:
        """Paths are relative to the cluster's directory: the name of a Unix socket has no room for deep ones."""
        etcd, peer, gates = "unix://etcd.sock:0", "unix://peer.sock:0", "--feature-gates=DRADeviceTaintRules=true"
        commands = {
            "etcd": [
                "--data-dir=etcd",
                "--unsafe-no-fsync",  # nothing here is worth a sync
                f"--listen-client-urls={etcd}",
                f"--advertise-client-urls={etcd}",
                f"--listen-peer-urls={peer}",
                f"--initial-advertise-peer-urls={peer}",
                f"--initial-cluster=default={peer}",
            ],
            "kube-apiserver": [
                f"--etcd-servers={etcd}",
                f"--secure-port={port}",
                "--bind-address=127.0.0.1",
                "--advertise-address=192.0.2.1",  # a machine without a network has no default
                "--endpoint-reconciler-type=none",
                "--tls-cert-file=certificate.pem",
                "--tls-private-key-file=key.pem",
                "--token-auth-file=tokens.csv",
                "--service-account-key-file=key.pem",
                "--service-account-signing-key-file=key.pem",
                "--service-account-issuer=https://kubernetes.default.svc",
                "--authorization-mode=RBAC",
                "--service-cluster-ip-range=10.96.0.0/24",
                "--disable-admission-plugins=ServiceAccount",  # pods need no account of their own here
                "--runtime-config=resource.k8s.io/v1beta2=true",
                f"--audit-policy-file={HERE / 'audit_policy.yml'}",
                f"--audit-log-path={self.audit_log.name}",
                gates,
            ],
            "kube-controller-manager": ["--leader-elect=false", "--secure-port=0", gates],
            "kube-scheduler": ["--leader-elect=false", "--secure-port=0", gates],
            "kwok": [
                *(f"--config={stage}" for stage in sorted((HERE / "kwok").glob("*.yml"))),  # what it does; without them it does nothing
                f"--manage-nodes-with-label-selector=!{DEAD_LABEL}",
                "--node-lease-duration-seconds=40",
            ],
        }
        for name in COMPONENTS[2:]:
            commands[name].append(f"--kubeconfig={name}.kubeconfig")
        return commands

    def _make_account(self) -> None:
        """The collection's service account with the rights it is shipped with, and a token for it by the API."""
        self.admin.apply_file(RBAC)
        where = api.path("ServiceAccount", ACCOUNT.rpartition(":")[2], NAMESPACE) + "/token"
        answer = self.admin.request("POST", where, {"spec": {"expirationSeconds": 30 * 24 * 3600}})
        self._write_kubeconfig(self.kubeconfig, self.server, answer["status"]["token"])
