# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Whatever the unit tests say of the ledger on SQLite holds on PostgreSQL."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.errors import LedgerUnavailable
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger import database
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.store import Ledger
from ledgers import fresh_schema, opened
from postgresql import postgresql_server

ROOT = Path(__file__).resolve().parents[3]


def test_the_unit_tests(server):
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests/unit/plugins/module_utils/_ledger"]
    environment = {**os.environ, "GPUOPS_TEST_LEDGER_URL": server, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout
    assert " passed" in ran.stdout


def test_a_check_on_an_empty_database_leaves_it_empty(server):
    url = fresh_schema(server)
    assert Ledger.open(url, check_mode=True).mode() == "observe"
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = current_schema()").fetchone() == (0,)


def test_a_database_that_is_read_only(server):
    """S19: nothing is changed, and the run says so."""
    url = fresh_schema(server)
    ledger = Ledger.open(url)
    incident_id = opened(ledger)
    read_only = Ledger.open(url + "%20-cdefault_transaction_read_only%3Don")
    for write in (lambda: read_only.set_mode("act", "jane", "why"), lambda: read_only.intend(incident_id, "t", None, 1)):
        with pytest.raises(LedgerUnavailable, match="nothing is changed: cannot execute INSERT in a read-only transaction"):
            write()


def test_a_server_that_was_started_again():
    """The event source keeps its connections: the first message after the server is back is taken like any other."""
    with postgresql_server() as server:
        ledger = Ledger.open(server.url)
        assert ledger.mode() == "observe"
        server.stop()
        server.start()
        ledger.set_mode("act", "jane", "why")
        assert ledger.mode() == "act"


@contextmanager
def frozen(pid):
    """A process of the server that does nothing meanwhile, while its machine goes on answering for it."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_server_that_hangs_after_it_has_connected(server, monkeypatch):
    """S19: it is not waited for without an end, neither by who reads nor by who writes; later the ledger is there again."""
    monkeypatch.setattr(database, "ANSWER_SECONDS", 2)
    url = fresh_schema(server)
    ledger = Ledger.open(url)
    for work in (ledger.mode, lambda: ledger.set_mode("act", "jane", "why")):
        with ledger.read() as connection:
            pid = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar()
        began = time.monotonic()
        with frozen(pid), pytest.raises(LedgerUnavailable, match="nothing is changed: no answer within 2 s"):
            work()
        assert time.monotonic() - began < 10
    assert ledger.set_mode("act", "jane", "why")
    time.sleep(3)
    assert ledger.mode() == "act", "who answers is left alone"


def test_a_server_that_hangs_before_it_has_connected(server):
    with psycopg.connect(server) as connection:
        folder = connection.execute("SHOW data_directory").fetchone()[0]
    postmaster = int((Path(folder) / "postmaster.pid").read_text().split()[0])
    url = fresh_schema(server)
    with frozen(postmaster), pytest.raises(LedgerUnavailable, match="nothing is changed"):
        Ledger.open(url)
    assert Ledger.open(url).mode() == "observe"
