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


@contextlib.contextmanager
def running_postgresql() -> Iterator[str]:
    """The URL of its database. The server refuses to run as root, so root lends it Debian's user."""
    programs = max(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
    user = {"user": "postgres", "group": "postgres", "extra_groups": []} if os.geteuid() == 0 else {}
    folder = Path(tempfile.mkdtemp(prefix="gpuops-postgresql-", dir="/tmp"))
    if user:
        shutil.chown(folder, "postgres", "postgres")
    port = free_port()
    initdb = [
        programs / "initdb",
        "--pgdata",
        folder / "data",
        "--auth",
        "trust",
        "--username",
        "gpuops",
        "--no-sync",
        "--encoding",
        "UTF8",
    ]
    server = [
        programs / "postgres",
        "-D",
        folder / "data",
        "-k",
        folder,
        "-h",
        "127.0.0.1",
        "-p",
        str(port),
        "-c",
        "fsync=off",
        "-c",
        "synchronous_commit=off",
    ]
    try:
        subprocess.run(initdb, cwd=folder, stdout=subprocess.DEVNULL, check=True, **user)
        with (folder / "log").open("w") as log, subprocess.Popen(server, cwd=folder, stdout=log, stderr=log, **user) as process:
            try:
                _wait(programs, port, process)
                yield f"postgresql://gpuops@127.0.0.1:{port}/postgres"
            finally:
                process.send_signal(signal.SIGQUIT)  # at once: nothing of it is kept
    finally:
        shutil.rmtree(folder)


def _wait(programs: Path, port: int, process: subprocess.Popen[bytes]) -> None:
    for _attempt in range(300):
        ready = [programs / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(port)]
        if subprocess.run(ready, check=False).returncode == 0:
            return
        if process.poll() is not None:
            break
        time.sleep(0.2)
    raise RuntimeError("PostgreSQL does not answer")
