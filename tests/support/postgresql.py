# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A PostgreSQL server of one's own: Debian's programs, an empty folder, a free port, ended by its pid; and ledgers of both kinds, as fixtures."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ledgers import fresh_schema
from ports import free_port


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    with running_postgresql() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: Any, tmp_path: Path) -> str:
    """An empty ledger's."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/ledger.db"
    return fresh_schema(request.getfixturevalue("server"))


class Server:
    """One server with its folder. It refuses to run as root, so root lends it Debian's user."""

    def __init__(self, folder: Path) -> None:
        self._programs = max(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
        self._user: Any = {"user": "postgres", "group": "postgres", "extra_groups": []} if os.geteuid() == 0 else {}
        self._folder, self._port = folder, free_port()
        self._process: subprocess.Popen[bytes] | None = None
        if self._user:
            shutil.chown(folder, "postgres", "postgres")
        initdb = ["initdb", "--pgdata", folder / "data", "--auth", "trust", "--username", "gpuops", "--no-sync", "--encoding", "UTF8"]
        self._run([self._programs / initdb[0], *initdb[1:]], check=True)

    @property
    def url(self) -> str:
        return f"postgresql://gpuops@127.0.0.1:{self._port}/postgres"

    @property
    def runs(self) -> bool:
        return self._process is not None

    def start(self) -> None:
        options = ["-D", self._folder / "data", "-k", self._folder, "-h", "127.0.0.1", "-p", str(self._port)]
        options += ["-c", "fsync=off"]  # a commit outlives the server, not the machine
        with (self._folder / "log").open("a") as log:
            self._process = subprocess.Popen(
                [self._programs / "postgres", *options], cwd=self._folder, stdout=log, stderr=log, **self._user
            )
        ready = [self._programs / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self._port)]
        for _attempt in range(300):
            if self._run(ready, check=False).returncode == 0:
                return
            if self._process.poll() is not None:
                break
            time.sleep(0.2)
        raise RuntimeError("PostgreSQL does not answer")

    def stop(self) -> None:
        """At once, as if the machine had lost its power, but for what the kernel holds in its cache."""
        if self._process:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait()
            self._process = None

    def _run(self, command: list[Any], check: bool) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(command, cwd=self._folder, stdout=subprocess.DEVNULL, check=check, **self._user)


@contextlib.contextmanager
def postgresql_server() -> Iterator[Server]:
    folder = Path(tempfile.mkdtemp(prefix="gpuops-postgresql-", dir="/tmp"))
    try:
        server = Server(folder)
        try:
            server.start()
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder)


@contextlib.contextmanager
def running_postgresql() -> Iterator[str]:
    """The URL of its database."""
    with postgresql_server() as server:
        yield server.url
