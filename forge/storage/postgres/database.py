"""Connections to PostgreSQL: what they are set to, one round trip for many statements, and when to try again.

No session state is kept on a pooled connection, so a pooler in transaction mode may stand in between: settings are
local to a transaction, and statements are prepared only where the server itself is at the other end.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import psycopg
from psycopg import RawCursor, errors
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import DiagnosticField, ExecStatus, Format, TransactionStatus
from psycopg.pq.abc import PGresult
from psycopg.rows import tuple_row

from forge.config import well_formed
from forge.errors import ConfigError, DatabaseError, ForgeError, SchemaError
from forge.storage.contract import Step
from forge.storage.contract.statements import Query
from forge.storage.postgres.pool import ConnectionPool, PoolBusyError
from forge.storage.postgres.watch import PostgresConnection, Watched
from forge.storage.postgres.wire import WireFormats, parameter

__all__ = [
    "LONG",
    "RETRY_DELAYS",
    "TIMEOUT",
    "PostgresConnection",
    "PostgresDatabase",
    "Rows",
    "bare",
    "hot",
    "pipeline",
]

T = TypeVar("T")
# Waits before a verb that met a passing conflict or a lost connection is tried again.
RETRY_DELAYS = (0.1, 0.3, 1.0)
Rows = RawCursor[tuple[Any, ...]]

# Set unless the DSN says otherwise. A peer that vanished is noticed within 15 s; a standby is never written to.
_DEFAULTS = {
    "application_name": "forge",
    "connect_timeout": "10",
    "target_session_attrs": "read-write",
    "tcp_user_timeout": "15000",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
}

_UNREADABLE = (
    "the database URL cannot be read; use postgresql://user:password@host:5432/name, and in the password %40 for @, "
    "%2F for /, %3A for :, %25 for % and %20 for a space"
)


# Passing conflicts, and a server that goes away, comes up or is full: worth another try.
_TRANSIENT = (
    errors.DeadlockDetected,
    errors.SerializationFailure,
    errors.LockNotAvailable,
    errors.AdminShutdown,
    errors.CrashShutdown,
    errors.CannotConnectNow,
    errors.TooManyConnections,
    errors.IdleInTransactionSessionTimeout,
    errors.InvalidSqlStatementName,  # what was prepared is gone: `bare` prepares it again
)


_GONE = ("57P01", "57P02", "57P03")  # the sqlstates of a server that ends its sessions

TIMEOUT = 8.0  # seconds that the server has for a statement, unless it is known to take long
# Seconds that its answer has to come after that: then the connection is given up, for nobody is at the other end.
SILENCE = 2.0
# Seconds for what people ask for, which may have to read all there is: `take_your_time` says so to the server. Not for
# what a pod asks: it would wait as long for a server that has fallen silent.
LONG = 15 * 60.0
PATIENCE = sum(RETRY_DELAYS)  # seconds in which a verb that cannot reach the server is tried again
_LATER = 2.0  # seconds between tries when those delays are used up


class PostgresDatabase:
    """Connections to one DSN, made when they are needed, and anew after a fork (the parent's are never touched)."""

    def __init__(
        self,
        url: str,
        schema: str,
        pool_size: int,
        settle: Step | None = None,
        *,
        timeout: float | None = None,
        patience: float | None = None,
        keep: float | None = None,
    ) -> None:
        """`settle` is run on each new connection, unless a pooler stands in between. `timeout` is the most seconds that
        a statement may take, and that a transaction may wait for its client; `patience` those in which a server that
        cannot be reached is tried again. A connection that was not used for `keep` seconds is closed."""
        try:
            if not well_formed(url):  # libpq might take a part of the password for a host, and name that in its errors
                raise psycopg.ProgrammingError
            given = {key: str(value) for key, value in conninfo_to_dict(url).items() if value is not None}
            self.conninfo = make_conninfo(**{**_DEFAULTS, **given})
        except psycopg.ProgrammingError:  # its text quotes the URL
            raise ConfigError(_UNREADABLE) from None
        self.schema = schema
        self.is_settled = settle is not None
        self._pool_size, self._settle, self._keep = pool_size, settle, keep
        self._timeout = TIMEOUT if timeout is None else timeout
        self._must_limit = timeout is not None  # also behind a pooler, where it takes a transaction around each verb
        self._patience = PATIENCE if patience is None else patience
        self._pool: ConnectionPool | None = None
        self._opening: dict[int, threading.Lock] = {}

    # -- connections -------------------------------------------------------------------------------------------

    def connect(self) -> PostgresConnection:
        """A connection outside the pool."""
        try:
            return self._connect()
        except psycopg.OperationalError as e:
            raise self.unreachable(e) from None

    def _connect(self) -> PostgresConnection:
        try:
            return PostgresConnection.connect(self.conninfo, autocommit=True, context=WireFormats())
        except psycopg.OperationalError as e:
            raise _NotThereError(str(e)) from None

    def watched(self, conn: PostgresConnection, limit: float | None = None) -> Watched:
        """While it is used: if it does not answer a statement for that long it is cut, and said to be lost."""
        return Watched(conn, (self._timeout if limit is None else limit) + SILENCE)

    def pool(self) -> ConnectionPool:
        """The pool of this process."""
        pool = self._pool
        if pool is None or pool.pid != os.getpid():
            # One for each process: the parent's may be held by one of its threads.
            with self._opening.setdefault(os.getpid(), threading.Lock()):
                if self._pool is pool:
                    # Who waits for a connection waits for a verb, which may have to find out that nobody answers.
                    wait = self._timeout + SILENCE + 5.0
                    self._pool = ConnectionPool(self._make, self._pool_size, wait, self._keep)
                pool = self._pool
        assert pool is not None
        return pool

    def _make(self) -> PostgresConnection:
        conn = self._connect()
        try:
            with self.watched(conn):
                self._configure(conn)
        except BaseException:
            conn.close()
            raise
        return conn

    def _configure(self, conn: PostgresConnection) -> None:
        # A pooler answers the start-up with a backend number of its own. Behind one, a prepared statement may be on
        # another server connection than its execution, and what is set on a session is set for somebody else.
        row = conn.execute("select pg_backend_pid()", prepare=False).fetchone()
        behind_pooler = row is None or row[0] != conn.info.backend_pid
        conn.prepare_threshold = None if behind_pooler else 0
        if behind_pooler:
            return
        if self._settle is not None:
            _execute(conn, self._settle)
        _limit(conn, self._timeout, local=False)

    def close(self) -> None:
        """Close what this process opened."""
        pool, self._pool = self._pool, None
        if pool is not None and pool.pid == os.getpid():
            pool.close()

    @property
    def size(self) -> int:
        """Connections that the pool has open."""
        pool = self._pool
        return pool.size if pool is not None and pool.pid == os.getpid() else 0

    # -- verbs -------------------------------------------------------------------------------------------------

    def _once(self, work: Callable[[PostgresConnection], T], limit: float | None, snapshot: bool) -> T:
        pool = self.pool()
        conn = pool.take()
        try:
            _quiet.here.on = True
            with self.watched(conn, limit):
                return self._in_snapshot(conn, work) if snapshot else self._within(conn, work)
        finally:
            _quiet.here.on = False
            fine = not conn.was_cut and conn.pgconn.transaction_status == TransactionStatus.IDLE
            pool.give_back(conn, fine=fine)

    def _within(self, conn: PostgresConnection, work: Callable[[PostgresConnection], T]) -> T:
        """`work`, with the timeout in force: what cannot be set on a session is set for its transaction."""
        if conn.prepare_threshold is not None or not self._must_limit:
            return work(conn)
        with conn.transaction():
            _limit(conn, self._timeout, local=True)
            return work(conn)

    def _in_snapshot(self, conn: PostgresConnection, work: Callable[[PostgresConnection], T]) -> T:
        """The same, in one transaction. If it fails the connection is in the middle of it, and is not used again."""
        conn.execute("begin isolation level repeatable read, read only", prepare=False)
        if conn.prepare_threshold is None and self._must_limit:
            _limit(conn, self._timeout, local=True)
        found = work(conn)
        conn.execute("commit", prepare=False)
        return found

    def attempt(
        self,
        work: Callable[[PostgresConnection], T],
        retries: Sequence[float] = RETRY_DELAYS,
        *,
        limit: float | None = None,
        snapshot: bool = False,
    ) -> T:
        """Run `work` on a pooled connection, again after a passing failure. `work` must be safe to repeat. `limit` is
        the most seconds that one of its statements may take, if it is not the usual. With `snapshot` all of them see
        the database as it is at the first one."""
        began, tries = time.monotonic(), 0
        while True:
            try:
                return self._once(work, limit, snapshot)
            except psycopg.Error as e:
                if _is_lost(e):
                    self.pool().drop_idle()  # they may be lost with it: one try each would use up all tries
                pause = self._pause(e, tries, time.monotonic() - began, retries)
                if pause is None:
                    raise self.explain(e) from e
            time.sleep(pause)
            tries += 1

    def run(self, *steps: Step, limit: float | None = None) -> list[Rows]:
        """Statements in one round trip and one transaction; each one's cursor, its rows still to fetch."""
        return self.attempt(lambda conn: pipeline(conn, steps), limit=limit)

    def _pause(self, e: psycopg.Error, tries: int, elapsed: float, retries: Sequence[float]) -> float | None:
        """Seconds before the next try; None: there is none."""
        jitter = random.uniform(0.5, 1.5)
        if not retries or isinstance(e, PoolBusyError):
            return None
        if not _is_lost(e):
            return retries[tries] * jitter if isinstance(e, _TRANSIENT) and tries < len(retries) else None
        left = self._patience - elapsed
        if left > 0:
            return min(left, (retries[tries] if tries < len(retries) else _LATER) * jitter)
        # To find out that nobody answers takes longer than patience has. A new connection may be all it needs.
        return retries[0] * jitter if tries == 0 and not isinstance(e, _NotThereError) else None

    def unreachable(self, e: Exception) -> DatabaseError:
        """One line that names the host and the reason, never the password."""
        where = conninfo_to_dict(self.conninfo)
        reason = str(e).strip().splitlines()[-1].strip() if str(e).strip() else type(e).__name__
        return DatabaseError(
            f"cannot use PostgreSQL at {where.get('host', 'localhost')}, database {where.get('dbname', '?')}: {reason}"
            " (check the URL, and that the server runs)"
        )

    def explain(self, e: psycopg.Error) -> ForgeError:
        """The error for people."""
        if isinstance(
            e, (errors.UndefinedTable, errors.InvalidSchemaName, errors.UndefinedColumn, errors.UndefinedObject)
        ):
            return SchemaError(f"schema {self.schema} is missing or too old for this release; run: forge db migrate")
        if isinstance(e, errors.QueryCanceled):
            return DatabaseError(f"PostgreSQL took more than {self._timeout:g} s over a statement and was told to stop")
        if isinstance(e, psycopg.OperationalError):
            return self.unreachable(e)
        return DatabaseError(f"PostgreSQL refused: {str(e).strip().splitlines()[0]}")


class _NotThereError(psycopg.OperationalError):
    """No connection could be made."""


def _is_lost(e: psycopg.Error) -> bool:
    """The connection is gone, or never was."""
    return isinstance(e, psycopg.OperationalError) and (e.sqlstate is None or e.sqlstate in _GONE)


def _limit(conn: PostgresConnection, seconds: float, *, local: bool) -> None:
    """The second one frees what a client holds that was stopped, or cut off, in the middle of a transaction."""
    value = str(max(1, round(seconds * 1000)))
    names = "statement_timeout", "idle_in_transaction_session_timeout"
    both = "select set_config(%s, %s, %s), set_config(%s, %s, %s)"
    conn.execute(both, (names[0], value, local, names[1], value, local), prepare=False)


class _Quiet(logging.Filter):
    """psycopg warns of what it met while it cleaned up after an error. In a verb of ours the error itself is raised;
    whatever a program does with psycopg besides is warned of as ever."""

    def __init__(self) -> None:
        super().__init__()
        self.here = threading.local()

    def filter(self, record: logging.LogRecord) -> bool:
        return not (getattr(self.here, "on", False) and str(record.msg).startswith("error ignored"))


_quiet = _Quiet()
logging.getLogger("psycopg").addFilter(_quiet)


def pipeline(conn: PostgresConnection, steps: Sequence[Step]) -> list[Rows]:
    """Send all, then wait once. Without BEGIN: what stands before one Sync is one transaction of the server's."""
    conn.ask()
    if len(steps) == 1:  # pipeline mode would only add its own bookkeeping, 0.1 ms
        return [_execute(conn, steps[0])]
    with conn.pipeline():
        return [_execute(conn, step) for step in steps]


def hot(conn: PostgresConnection, steps: Sequence[Step]) -> list[PGresult]:
    """The same for claims and endings: their parameters are in the wire's formats or nearly, and what they answer is
    read by whoever asked. A single one, which is the rule, goes through libpq alone."""
    if len(steps) == 1:
        query, params = steps[0]
        values = [parameter(params[name]) for name in query.names]
        return [bare(conn, query, [data for data, _ in values], [format for _, format in values])]
    found = []
    for cursor in pipeline(conn, steps):
        assert cursor.pgresult is not None
        found.append(cursor.pgresult)
    return found


def bare(
    conn: PostgresConnection, query: Query, values: Sequence[bytes | None], formats: Sequence[int] | None = None
) -> PGresult:
    """One statement through libpq alone: 0.13 ms less than through a cursor, where a commit takes 0.4. It cannot be
    interrupted, so it is for statements that wait for nothing but rows that are locked for a moment and the commit."""
    conn.ask()
    link = conn.pgconn
    binary = Format.BINARY
    if conn.prepare_threshold is None:
        result = link.exec_params(query.text("dollar").encode(), values, None, formats, binary)
    else:
        # The server's own list would cost a round trip; the connection remembers what was prepared on it.
        name = conn.prepared.get(query.name)
        if name is None:
            name = f"{query.name}.{conn.forgotten}".encode()
            _check(conn, link.prepare(name, query.text("dollar").encode()))
            conn.prepared[query.name] = name
        result = link.exec_prepared(name, values, formats, binary)  # type: ignore[arg-type]  # None is NULL there too
    try:
        _check(conn, result)
    except errors.InvalidSqlStatementName:
        # psycopg's rollback deallocates all, ours too; so does a DISCARD ALL. Some may have been prepared since, and
        # be there: from now on all have other names.
        conn.prepared.clear()
        conn.forgotten += 1
        raise
    return result


def _check(conn: PostgresConnection, result: PGresult) -> None:
    if (status := result.status) == ExecStatus.TUPLES_OK or status == ExecStatus.COMMAND_OK:
        return
    # Whatever a server refuses has a code. What has none libpq says itself: nobody is there any more. It may still take
    # the connection for a good one, if it was lost between two statements.
    if conn.closed or result.error_field(DiagnosticField.SQLSTATE) is None:
        message = conn.pgconn.get_error_message()
        conn.close()
        raise psycopg.OperationalError(message)
    raise errors.error_from_result(result)


def _execute(conn: PostgresConnection, step: Step) -> Rows:
    cursor: Rows = RawCursor(conn, row_factory=tuple_row)
    return cursor.execute(step.query.text("dollar"), step.query.args("dollar", step.params), binary=True)
