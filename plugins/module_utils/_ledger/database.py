# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""The database under the ledger: one writer at a time, on SQLite and on PostgreSQL alike.

Because writers queue (BEGIN IMMEDIATE here, an advisory lock there), no rule above needs to think about isolation levels.
Check mode runs the same code and rolls every transaction back.
"""

from __future__ import annotations

import contextlib
import os
import platform
import select
import socket
import threading
import traceback
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Callable, Optional, TypeVar

from ansible_collections.gpuops.remediation.plugins.module_utils._incident.errors import AnothersLedger, LedgerUnavailable
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.times import utc_now
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger import migrate

try:
    import sqlalchemy as sa
    from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.tables import SETTINGS
    from sqlalchemy import event, exc
    from sqlalchemy.engine import make_url
    from sqlalchemy.pool import NullPool, QueuePool, StaticPool

    LIBRARY_ERROR: Optional[str] = None
except ImportError:
    LIBRARY_ERROR = traceback.format_exc()

BUSY_SECONDS = 30
ANSWER_SECONDS = BUSY_SECONDS + 30  # for one transaction on a server that may have stopped answering
_WRITER = 0x6770756F  # the advisory lock's number, "gpuo"

Self = TypeVar("Self", bound="Database")


class Database:
    """Transactions, and the table of settings that everything else needs."""

    def __init__(self, url: sa.URL, where: str, check_mode: bool, clock: Callable[[], datetime]) -> None:
        self.where, self.check_mode, self.now = where, check_mode, clock
        self._server = _Server(url.get_backend_name() == "postgresql")
        self._engine = _engine(url, check_mode, self._server)
        self._one = threading.RLock()
        self._shared: Optional[sa.Connection] = None
        weakref.finalize(self, self._engine.dispose)

    @classmethod
    def open(cls: type[Self], url: str, *, check_mode: bool = False, clock: Callable[[], datetime] = utc_now, adopt: str = "") -> Self:
        """The ledger at a URL, brought to this version; in check mode one that does not exist yet reads as new and stays away.

        adopt: why this controller takes the place of the one that an SQLite ledger belongs to.
        """
        try:
            target = make_url(url)
        except exc.ArgumentError:
            raise LedgerUnavailable("the ledger's URL is not one that SQLAlchemy reads") from None
        if target.get_backend_name() not in ("sqlite", "postgresql"):
            raise LedgerUnavailable("the ledger is kept in SQLite or PostgreSQL, not in %s" % target.get_backend_name())
        if target.get_backend_name() == "postgresql":
            target = target.set(drivername="postgresql+psycopg")
        where = target.database or "memory"
        if target.host:
            where = "%s on %s" % (where, target.host)
        if check_mode and _is_file(target) and not os.path.exists(str(target.database)):
            target = make_url("sqlite://")
        try:
            ledger = cls(target, where, check_mode, clock)
        except ImportError as error:
            raise LedgerUnavailable(
                "the ledger (%s) cannot be used: the Python library %s is not installed" % (where, error.name)
            ) from error
        if ledger._migrated(target, adopt):
            return ledger
        return cls.open("sqlite://", check_mode=True, clock=clock)

    def close(self) -> None:
        self._engine.dispose()

    def read(self) -> AbstractContextManager[sa.Connection]:
        return self._transaction(False)

    def write(self) -> AbstractContextManager[sa.Connection]:
        """The only writer until it ends; in check mode nothing of it stays."""
        return self._transaction(True)

    @contextmanager
    def together(self) -> Iterator[None]:
        """What this thread reads and writes inside is one transaction; one part that raises takes only itself back."""
        with self.write() as connection:
            outer, self._shared = self._shared, connection
            try:
                yield
            finally:
                self._shared = outer

    def _before_write(self, connection: sa.Connection) -> None:
        """For what a subclass adds to each write."""

    @contextmanager
    def _transaction(self, writes: bool) -> Iterator[sa.Connection]:
        try:
            with self._one:
                if self._shared is not None:  # other threads wait for the lock, so it is this one's
                    with self._shared.begin_nested():
                        yield self._shared
                    return
                with self._server.watched(), self._engine.connect() as connection:
                    connection = connection.execution_options(writes=writes)
                    with connection.begin() as transaction:
                        if writes and connection.dialect.name == "postgresql":
                            connection.execute(sa.select(sa.func.set_config("lock_timeout", "%ds" % BUSY_SECONDS, True)))
                            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_WRITER)))
                        if writes:
                            self._before_write(connection)
                        yield connection
                        if self.check_mode:
                            transaction.rollback()
        except exc.IntegrityError:
            raise
        except exc.DBAPIError as error:
            why = self._server.silent or _words(error)
            raise LedgerUnavailable("the ledger (%s) cannot be used, so nothing is changed: %s" % (self.where, why)) from error

    def _migrated(self, target: sa.URL, adopt: str) -> bool:
        """Bring the database to this version; False where check mode would have to write for that."""
        with self.read() as connection:
            version = _version(connection)
        if version == migrate.HEAD:
            return self._is_ours(target, adopt)
        known = [module.revision for module in migrate.VERSIONS]
        if version is not None and version not in known:
            raise LedgerUnavailable("the ledger (%s) was written by a newer version of this collection" % self.where)
        if self.check_mode and target.database:
            if version is None:
                return False
            raise LedgerUnavailable(
                "the ledger (%s) is of an older version; the next run outside check mode brings it up to date" % self.where
            )
        self.check_mode, check_mode = False, self.check_mode
        with self.write() as connection:
            migrate.upgrade(connection)
        self.check_mode = check_mode
        return self._is_ours(target, adopt)

    def _is_ours(self, target: sa.URL, adopt: str) -> bool:
        """SQLite knows no other host's locks, so its file serves the controller that made it (S5)."""
        if not _is_file(target):
            return True
        with self.read() as connection:
            owner = self._setting(connection, "controller")
        if owner is not None and owner["value"] == controller():
            return True
        if owner is not None and not adopt:
            raise AnothersLedger(
                "the ledger (%s) belongs to controller %s; an SQLite ledger serves one controller: give both the same PostgreSQL ledger_url, "
                "or, where this one takes the other's place, run operating_mode with adopt_ledger" % (self.where, owner["set_by"])
            )
        with self.write() as connection:
            self._set(connection, "controller", controller(), platform.node(), adopt or "the first to open the ledger")
        return True

    def _setting(self, connection: sa.Connection, name: str) -> Optional[dict[str, Any]]:
        row = connection.execute(sa.select(SETTINGS).where(SETTINGS.c.name == name).order_by(SETTINGS.c.id.desc()).limit(1)).first()
        return dict(row._mapping) if row else None

    def _set(self, connection: sa.Connection, name: str, value: Any, who: str, why: str) -> None:
        connection.execute(sa.insert(SETTINGS).values(name=name, value=value, set_at=self.now(), set_by=who, why=why))


class _Server:
    """The connections to a PostgreSQL server, cut when it does not answer in time: libpq waits for ever for one that has stopped."""

    def __init__(self, is_one: bool) -> None:
        self.silent = ""
        self._is_one = is_one
        self._connections: weakref.WeakSet[Any] = weakref.WeakSet()

    def connect(self, dialect: Any, record: Any, arguments: Any, options: Any) -> Any:
        """SQLAlchemy's event `do_connect`."""
        connection = dialect.connect(*arguments, **options)
        self._connections.add(connection)
        return connection

    @contextmanager
    def watched(self) -> Iterator[None]:
        if not self._is_one:
            yield
            return
        self.silent = ""
        timer = threading.Timer(ANSWER_SECONDS, self._cut)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()

    def _cut(self) -> None:
        self.silent = "no answer within %d s" % ANSWER_SECONDS
        for connection in list(self._connections):
            with contextlib.suppress(Exception), socket.socket(fileno=os.dup(connection.fileno())) as same:
                same.shutdown(socket.SHUT_RDWR)


def _still_open(connection: Any, record: Any, proxy: Any) -> None:
    """SQLAlchemy's event `checkout`: a server that was stopped has closed it, and the pool makes another one. A ping would wait for one that hangs."""
    waiting = select.poll()
    waiting.register(connection.fileno(), select.POLLIN)
    if waiting.poll(0):
        raise exc.DisconnectionError


def controller() -> str:
    """What tells this controller from others, across reboots and new names."""
    try:
        return Path("/etc/machine-id").read_text(encoding="ascii").strip() or platform.node()
    except OSError:
        return platform.node()


def _engine(url: sa.URL, check_mode: bool, server: _Server) -> sa.Engine:
    if url.get_backend_name() == "postgresql":
        engine = sa.create_engine(url, connect_args={"connect_timeout": 10})
        event.listen(engine, "do_connect", server.connect)
        event.listen(engine, "checkout", _still_open)
        return engine
    if not _is_file(url):
        engine = sa.create_engine(url, poolclass=StaticPool, connect_args={"check_same_thread": False})
    else:
        if not check_mode:
            _make_private(Path(str(url.database)))
        # The last to close the file tidies up its log: at once in check mode, which leaves no trace, and else with the ledger's end.
        engine = sa.create_engine(url, poolclass=NullPool if check_mode else QueuePool, connect_args={"timeout": BUSY_SECONDS})

    @event.listens_for(engine, "connect")
    def connected(connection: Any, record: Any) -> None:
        connection.isolation_level = None  # the driver would begin transactions of its own
        cursor = connection.cursor()
        if not check_mode:
            cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute("PRAGMA synchronous=FULL")  # a change written ahead outlives a power cut
        cursor.execute("PRAGMA foreign_keys=ON")
        cursor.close()

    @event.listens_for(engine, "begin")
    def begun(connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE" if connection.get_execution_options().get("writes") else "BEGIN")

    return engine


def _make_private(path: Path) -> None:
    """The file holds process names and kernel logs of tenants."""
    try:
        path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    except OSError as error:
        raise LedgerUnavailable("the ledger (%s) cannot be written, so nothing is changed: %s" % (path, error.strerror)) from error


def _is_file(url: sa.URL) -> bool:
    return url.get_backend_name() == "sqlite" and bool(url.database) and url.database != ":memory:"


def _version(connection: sa.Connection) -> Optional[str]:
    """Alembic's own mark, read without importing Alembic (half a second a task)."""
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar()


def _words(error: exc.DBAPIError) -> str:
    return str(error.orig).strip().splitlines()[0] if str(error.orig).strip() else type(error.orig).__name__
