# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import sqlite3
import stat
import sys
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.errors import LedgerUnavailable
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger import database, migrate
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.store import Ledger
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.tables import METADATA
from ledgers import POSTGRESQL, by_hand

sqlite_only = pytest.mark.skipif(bool(POSTGRESQL), reason="about SQLite's file")


def path_of(url):
    return Path(url[len("sqlite:///") :])


def test_the_migrations_make_the_tables_that_the_code_uses(ledger):
    with ledger.read() as connection:
        assert compare_metadata(MigrationContext.configure(connection), METADATA) == []


def test_opening_again_changes_nothing(ledger, url):
    ledger.set_mode("act", "jane", "why")
    again = Ledger.open(url)
    assert again.mode() == "act"
    again.close()


def test_a_newer_ledger_is_refused(ledger, url):
    with ledger.write() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(LedgerUnavailable, match="newer version"):
        Ledger.open(url)


def test_an_older_ledger_is_brought_up_to_date(ledger, url, monkeypatch):
    """Alembic runs from imported modules: there is no folder to list inside a module's zip."""
    ran = []

    class Next:
        revision, down_revision, branch_labels, depends_on, __doc__ = "9998", migrate.HEAD, None, None, "next"
        __name__ = "v9998_next"

        @staticmethod
        def upgrade():
            ran.append("9998")

    monkeypatch.setattr(migrate, "VERSIONS", (*migrate.VERSIONS, Next))
    monkeypatch.setattr(migrate, "HEAD", "9998")
    with pytest.raises(LedgerUnavailable, match="older version"):
        Ledger.open(url, check_mode=True)
    Ledger.open(url).close()
    Ledger.open(url).close()
    assert ran == ["9998"]


def test_what_the_first_version_kept_stays(url, monkeypatch):
    with monkeypatch.context() as first:
        first.setattr(migrate, "VERSIONS", migrate.VERSIONS[:1])
        first.setattr(migrate, "HEAD", "0001")
        ledger = Ledger.open(url)
        with ledger.write() as connection:
            connection.exec_driver_sql(
                "INSERT INTO outbox (id, key, topic, payload, created_at, due_at, attempts)"
                " VALUES (1, 'k', 'contained', '{}', '2026-01-01 00:00:00', '2026-01-01 00:00:00', 0)"
            )
        ledger.close()
    ledger = Ledger.open(url)
    assert [one["key"] for one in ledger.claim_notifications(channels=["command"])] == ["k"]
    ledger.close()


def test_one_writer_at_a_time(ledger, url):
    """Two transactions that write never overlap, so rules need not think of isolation."""
    other = Ledger.open(url)
    with ledger.write():
        other._engine.dispose()
        with pytest.raises(LedgerUnavailable):
            _write_without_waiting(other)
    other.set_mode("fence", "jane", "why")
    other.close()
    assert ledger.mode() == "fence"


def _write_without_waiting(ledger):
    with ledger._engine.connect() as connection, ledger._transaction(False):
        if connection.dialect.name == "postgresql":
            connection.exec_driver_sql("SET lock_timeout = '100ms'")
            try:
                connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({database._WRITER})")
            except database.exc.DBAPIError as error:
                raise LedgerUnavailable("busy") from error
        else:
            connection.exec_driver_sql("COMMIT")
            connection.exec_driver_sql("PRAGMA busy_timeout=100")
            try:
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            except database.exc.DBAPIError as error:
                raise LedgerUnavailable("busy") from error


def test_check_mode_leaves_no_trace(ledger, url):
    before = ledger.overview()
    check = Ledger.open(url, check_mode=True)
    assert check.set_mode("act", "jane", "why")
    assert check.open_incident(by_hand()).record["id"] == "predicted"
    check.take_slot("predicted", "gpu-1")
    check.close()
    assert ledger.overview() == before


@sqlite_only
def test_check_mode_creates_no_file(tmp_path):
    url = f"sqlite:///{tmp_path}/absent/ledger.db"
    check = Ledger.open(url, check_mode=True)
    assert check.mode() == "observe"
    assert check.open_incident(by_hand()).how == "opened"
    assert check.overview()["incidents"] == []
    assert list(tmp_path.iterdir()) == []


@sqlite_only
def test_check_mode_does_not_touch_the_file(ledger, url):
    ledger.close()
    before = path_of(url).read_bytes(), os.stat(path_of(url)).st_mtime_ns
    check = Ledger.open(url, check_mode=True)
    check.open_incident(by_hand())
    check.close()
    assert (path_of(url).read_bytes(), os.stat(path_of(url)).st_mtime_ns) == before
    assert [file.name for file in path_of(url).parent.iterdir()] == ["ledger.db"]


@sqlite_only
def test_the_ledgers_end_tidies_up(url):
    """Ansible's workers leave without Python's farewell, so this happens when the last name of the ledger goes."""
    ledger = Ledger.open(url)
    ledger.set_mode("act", "jane", "why")
    assert len(list(path_of(url).parent.iterdir())) == 3
    del ledger
    assert [file.name for file in path_of(url).parent.iterdir()] == ["ledger.db"]


@sqlite_only
def test_an_empty_file_reads_as_new_in_check_mode(tmp_path):
    (tmp_path / "ledger.db").touch()
    assert Ledger.open(f"sqlite:///{tmp_path}/ledger.db", check_mode=True).mode() == "observe"
    assert (tmp_path / "ledger.db").read_bytes() == b""


@sqlite_only
def test_the_file_is_private_and_durable(ledger, url):
    assert stat.S_IMODE(path_of(url).stat().st_mode) == 0o600
    with ledger.read() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2


@sqlite_only
def test_a_second_controller_is_refused(ledger, url, monkeypatch):
    """S5: SQLite serves one controller."""
    monkeypatch.setattr(database, "controller", lambda: "another machine")
    with pytest.raises(LedgerUnavailable, match=r"belongs to controller .* PostgreSQL"):
        Ledger.open(url)
    with pytest.raises(LedgerUnavailable, match="belongs to controller"):
        Ledger.open(url, check_mode=True)
    Ledger.open(url, check_mode=True, adopt="only a try").close()
    Ledger.open(url, adopt="the old one burnt down").close()
    Ledger.open(url).close()
    assert ledger.settings_history()[0]["why"] == "the old one burnt down"


@pytest.mark.skipif(not POSTGRESQL, reason="about PostgreSQL")
def test_postgresql_serves_many_controllers(ledger, url, monkeypatch):
    """S5"""
    monkeypatch.setattr(database, "controller", lambda: "another machine")
    assert Ledger.open(url).mode() == "observe"


def test_what_tells_controllers_apart(monkeypatch):
    assert database.controller()
    monkeypatch.setattr(database, "Path", lambda name: Path("/nonexistent"))
    assert database.controller() == os.uname().nodename


@pytest.mark.parametrize(
    "url, words",
    [
        ("ledger.db", "not one that SQLAlchemy reads"),
        ("mysql://localhost/x", "SQLite or PostgreSQL"),
        ("sqlite:////dev/null/ledger.db", "cannot be written, so nothing is changed"),
        ("postgresql://nobody:secret@127.0.0.1:1/x", "x on 127.0.0.1"),
    ],
)
def test_no_ledger(url, words):
    """S19: it says so, and a password is not told."""
    with pytest.raises(LedgerUnavailable, match=words) as error:
        Ledger.open(url)
    assert error.value.kind == "ledger_unavailable"
    assert "secret" not in str(error.value)


def test_no_driver(monkeypatch):
    """S19"""
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(LedgerUnavailable, match="library psycopg is not installed"):
        Ledger.open("postgresql://127.0.0.1/x")


@sqlite_only
@pytest.mark.parametrize("content", [b"this is no database" * 100, b"SQLite format 3\0" + b"x" * 4096])
def test_not_a_database(tmp_path, content):
    """S19"""
    (tmp_path / "ledger.db").write_bytes(content)
    with pytest.raises(LedgerUnavailable, match="nothing is changed"):
        Ledger.open(f"sqlite:///{tmp_path}/ledger.db")


@sqlite_only
def test_a_ledger_that_breaks_later(ledger, url):
    """S19: every write says so, not only the opening."""
    with sqlite3.connect(path_of(url)) as connection:
        connection.execute("DROP TABLE settings")
    with pytest.raises(LedgerUnavailable, match="no such table"):
        ledger.set_mode("act", "jane", "why")


def test_together_is_one_transaction(ledger, url):
    """Another reader sees all of it or nothing, and a part that raises takes only itself back."""
    other = Ledger.open(url)

    def refused():
        with ledger.write() as connection:
            ledger._set(connection, "part", 1, "jane", "why")
            raise ValueError

    with ledger.together():
        ledger.set_mode("act", "jane", "why")
        with pytest.raises(ValueError):
            refused()
        with ledger.together():
            assert ledger.mode() == "act"
        ledger.notify("key", "topic", {})
        assert other.mode() == "observe"
    assert (other.mode(), [one["name"] for one in other.settings_history() if one["name"] != "controller"]) == ("act", ["mode"])
    assert [one["topic"] for one in other.claim_notifications()] == ["topic"]
    other.close()


def test_together_that_fails_leaves_nothing(ledger):
    with pytest.raises(ValueError), ledger.together():
        ledger.set_mode("act", "jane", "why")
        raise ValueError
    assert ledger.mode() == "observe"
