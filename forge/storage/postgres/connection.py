"""Connections to PostgreSQL: the pool, one round trip for many statements, and what to do when one is lost.

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
from uuid import UUID

import psycopg
from psycopg import RawCursor, errors
from psycopg.adapt import AdaptersMap, Buffer, Dumper, Transformer
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import ExecStatus, Format, TransactionStatus
from psycopg.pq.abc import PGresult
from psycopg.rows import tuple_row
from psycopg.types.string import ByteaBinaryLoader
from psycopg_pool import ConnectionPool, PoolTimeout

from forge.config import well_formed
from forge.errors import ConfigError, DatabaseError, ForgeError, SchemaError
from forge.storage.contract import RETRY_DELAYS, Step
from forge.storage.statements import Query

__all__ = [
    "Connection",
    "Database",
    "Float8Array",
    "Int8Array",
    "Rows",
    "TextArray",
    "Timestamp",
    "UuidArray",
    "bare",
    "hot",
    "pipeline",
    "rows_of",
]

T = TypeVar("T")
Connection = psycopg.Connection[Any]
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


class UuidArray(bytes):
    """A uuid[] in the wire's own format: 3x faster for the server to read than text."""


class Int8Array(bytes):
    """A bigint[] likewise."""


class Float8Array(bytes):
    """A float8[] likewise."""


class TextArray(bytes):
    """A text[] likewise."""


class Timestamp(bytes):
    """A timestamptz likewise."""


class _Packed(Dumper):
    format = Format.BINARY

    def dump(self, obj: Any) -> Buffer | None:
        return bytes(obj)


class _UuidArrayDumper(_Packed):
    oid = 2951


class _Int8ArrayDumper(_Packed):
    oid = 1016


class _Float8ArrayDumper(_Packed):
    oid = 1022


class _TextArrayDumper(_Packed):
    oid = 1009


class _TimestampDumper(_Packed):
    oid = 1184


def _adapters() -> AdaptersMap:
    """JSON stays text: payloads pass through undecoded."""
    found = AdaptersMap(psycopg.adapters)
    found.register_loader("json", ByteaBinaryLoader)
    found.register_dumper(UuidArray, _UuidArrayDumper)
    found.register_dumper(Int8Array, _Int8ArrayDumper)
    found.register_dumper(Float8Array, _Float8ArrayDumper)
    found.register_dumper(TextArray, _TextArrayDumper)
    found.register_dumper(Timestamp, _TimestampDumper)
    return found


class _Context:
    """What psycopg asks of `context=`."""

    connection = None
    adapters = _adapters()


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


class Database:
    """A pool on one DSN, opened at first use and again after a fork (the parent's sockets are never touched)."""

    def __init__(
        self, url: str, schema: str, pool_size: int, settle: Step | None = None, *, timeout: float | None = None
    ) -> None:
        """`settle` is run on each new connection, unless a pooler stands in between. `timeout` is the most seconds that
        a statement may take, and that a transaction may wait for its client."""
        try:
            if not well_formed(url):  # libpq might take a part of the password for a host, and name that in its errors
                raise psycopg.ProgrammingError
            given = {key: str(value) for key, value in conninfo_to_dict(url).items() if value is not None}
            self.conninfo = make_conninfo(**{**_DEFAULTS, **given})
        except psycopg.ProgrammingError:  # its text quotes the URL
            raise ConfigError(_UNREADABLE) from None
        self.schema = schema
        self.pool_size = pool_size
        self._settle = settle
        self._timeout = timeout
        self._pool: ConnectionPool[Connection] | None = None
        self._pid = 0
        self._opening = threading.Lock()
        self._kept: Connection | None = None  # of the pool's, between two uses
        self._waiting = 0  # for one of the pool's
        self._keeping = threading.Lock()

    def connect(self, **options: Any) -> Connection:
        """A connection outside the pool."""
        try:
            return psycopg.connect(self.conninfo, autocommit=True, context=_Context(), **options)
        except psycopg.OperationalError as e:
            raise self.unreachable(e) from None

    def pool(self) -> ConnectionPool[Connection]:
        """The pool of this process."""
        if self._pool is None or self._pid != os.getpid():
            with self._opening:
                if self._pool is None or self._pid != os.getpid():
                    self._open()
        assert self._pool is not None
        return self._pool

    def _take(self) -> Connection:
        """A connection of the pool's. One is kept here from one verb to the next: the pool's own ways are 0.1 ms of a
        lone verb, and 30 µs of one among many."""
        pool = self.pool()
        with self._keeping:
            if self._kept is not None:
                conn, self._kept = self._kept, None
                return conn
            self._waiting += 1
        try:
            return pool.getconn()
        finally:
            with self._keeping:
                self._waiting -= 1

    def _give_back(self, conn: Connection, *, fine: bool) -> None:
        """To the pool, if somebody waits there, or it has to see to it: and then with the other, which may have died
        with it."""
        with self._keeping:
            if fine and not self._waiting and self._kept is None:
                self._kept = conn
                return
            back = [conn]
            if not fine and self._kept is not None:
                back.append(self._kept)
                self._kept = None
        for each in back:
            self.pool().putconn(each)

    def _open(self) -> None:
        self._kept = None  # of the parent's
        self.connect().close()  # the pool connects in the background and would only say that it timed out
        # The pool reports every failed attempt on its own logger; ours says it once, where it matters.
        logging.getLogger("psycopg.pool").setLevel(logging.ERROR)
        pool = ConnectionPool[Connection](
            self.conninfo,
            min_size=1,
            max_size=self.pool_size,
            timeout=10.0,
            # Its pauses between tries double: given up before that timeout and begun anew by the next verb, the longest
            # is 4 s. Else a heart stood still for a minute after an outage of two, and its pod was taken for dead.
            reconnect_timeout=9.0,
            num_workers=1,
            open=True,
            configure=self._configure,
            kwargs={"autocommit": True, "context": _Context()},
            name="forge",
        )
        try:
            pool.wait(10.0)  # whoever asked while the first is being made would have a second one made
        except PoolTimeout:
            pool.close()
            raise
        self._pool, self._pid = pool, os.getpid()

    def _configure(self, conn: Connection) -> None:
        # A pooler answers the start-up with a backend number of its own. Behind one, a prepared statement may be on
        # another server connection than its execution, and what is set on a session is set for somebody else.
        row = conn.execute("select pg_backend_pid()", prepare=False).fetchone()
        behind_pooler = row is None or row[0] != conn.info.backend_pid
        conn.prepare_threshold = None if behind_pooler else 0
        if self._settle is not None and not behind_pooler:
            _execute(conn, self._settle)
        if self._timeout is not None and not behind_pooler:
            _limit(conn, self._timeout, local=False)

    def _once(self, work: Callable[[Connection], T]) -> T:
        conn, fine = self._take(), False
        try:
            answer = self._within(conn, work)
            fine = conn.pgconn.transaction_status == TransactionStatus.IDLE
            return answer
        finally:
            self._give_back(conn, fine=fine)

    def _within(self, conn: Connection, work: Callable[[Connection], T]) -> T:
        """`work`, with the timeout in force: what cannot be set on a session is set for its transaction."""
        if self._timeout is None or conn.prepare_threshold is not None:
            return work(conn)
        with conn.transaction():
            _limit(conn, self._timeout, local=True)
            return work(conn)

    def close(self) -> None:
        """Close what this process opened."""
        if self._pool is not None and self._pid == os.getpid():
            with self._keeping:
                kept, self._kept = self._kept, None
            if kept is not None:
                self._pool.putconn(kept)
            self._pool.close()
        self._pool = None

    @property
    def size(self) -> int:
        """Connections that the pool has open."""
        pool = self._pool
        return pool.get_stats().get("pool_size", 0) if pool is not None and self._pid == os.getpid() else 0

    def attempt(self, work: Callable[[Connection], T], retries: Sequence[float] = RETRY_DELAYS) -> T:
        """Run `work` on a pooled connection, again after a passing failure. `work` must be safe to repeat."""
        for pause in (*retries, None):
            try:
                return self._once(work)
            except psycopg.Error as e:
                if pause is None or not self._passing(e):
                    raise self.explain(e) from e
                time.sleep(pause * random.uniform(0.5, 1.5))
                if self._pool is not None and e.sqlstate in (None, *_GONE):
                    self._pool.check()  # others of the pool died with it: one try each would use up all tries
            except DatabaseError:  # not even a first connection
                if pause is None or self._pool is None:
                    raise
                time.sleep(pause)
        raise AssertionError("unreachable")

    def run(self, *steps: Step) -> list[Rows]:
        """Statements in one round trip and one transaction; each one's cursor, its rows still to fetch."""
        return self.attempt(lambda conn: pipeline(conn, steps))

    @staticmethod
    def _passing(e: psycopg.Error) -> bool:
        if isinstance(e, PoolTimeout):
            return False  # it has waited long enough already
        return isinstance(e, _TRANSIENT) or (isinstance(e, psycopg.OperationalError) and e.sqlstate is None)

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
        if isinstance(e, errors.QueryCanceled) and self._timeout is not None:
            return DatabaseError(f"PostgreSQL took more than {self._timeout:g} s over a statement and was told to stop")
        if isinstance(e, psycopg.OperationalError):
            return self.unreachable(e)
        return DatabaseError(f"PostgreSQL refused: {str(e).strip().splitlines()[0]}")


def _limit(conn: Connection, seconds: float, *, local: bool) -> None:
    """The second one frees what a client holds that was stopped, or cut off, in the middle of a transaction."""
    for name in ("statement_timeout", "idle_in_transaction_session_timeout"):
        value = str(max(1, round(seconds * 1000)))
        conn.execute("select set_config(%s, %s, %s)", (name, value, local), prepare=False)


def pipeline(conn: Connection, steps: Sequence[Step]) -> list[Rows]:
    """Send all, then wait once. Without BEGIN: what stands before one Sync is one transaction of the server's."""
    if len(steps) == 1:  # pipeline mode would only add its own bookkeeping, 0.1 ms
        return [_execute(conn, steps[0])]
    with conn.pipeline():
        return [_execute(conn, step) for step in steps]


def hot(conn: Connection, steps: Sequence[Step]) -> list[PGresult]:
    """The same for claims and endings: their parameters are in the wire's formats or nearly, and what they answer is
    read by whoever asked. A single one, which is the rule, goes through libpq alone."""
    if len(steps) == 1:
        query, params = steps[0]
        values = [_wire(params[name]) for name in query.names]
        return [bare(conn, query, [data for data, _ in values], [format for _, format in values])]
    found = []
    for cursor in pipeline(conn, steps):
        assert cursor.pgresult is not None
        found.append(cursor.pgresult)
    return found


def rows_of(result: PGresult) -> list[tuple[Any, ...]]:
    """What a statement answered."""
    loading = Transformer(_Context())
    loading.set_pgresult(result)
    return loading.load_rows(0, result.ntuples, tuple)


def _wire(value: Any) -> tuple[bytes | None, int]:
    """A parameter as the server reads it, and whether that is binary."""
    kind = type(value)
    if kind is int:
        return b"%d" % value, 0
    if kind is str:
        return value.encode(), 0
    if kind is bool:
        return b"t" if value else b"f", 0
    if kind is UUID:
        return value.hex.encode(), 0
    if kind is float:
        return b"%r" % value, 0
    if value is None:
        return None, 0
    assert isinstance(value, bytes), value
    return bytes(value), 1


def bare(
    conn: Connection, query: Query, values: Sequence[bytes | None], formats: Sequence[int] | None = None
) -> PGresult:
    """One statement through libpq alone: 0.13 ms less than through a cursor, where a commit takes 0.4. It cannot be
    interrupted, so it is for statements that wait for nothing but rows that are locked for a moment and the commit."""
    link = conn.pgconn
    binary = Format.BINARY
    if conn.prepare_threshold is None:
        result = link.exec_params(query.text("dollar").encode(), values, None, formats, binary)
    else:
        # The server's own list would cost a round trip; the connection remembers what was prepared on it.
        prepared: dict[str, bytes] = conn.__dict__.setdefault("forge_prepared", {})
        name = prepared.get(query.name)
        if name is None:
            name = query.name.encode()
            _check(conn, link.prepare(name, query.text("dollar").encode()))
            prepared[query.name] = name
        result = link.exec_prepared(name, values, formats, binary)  # type: ignore[arg-type]  # None is NULL there too
    try:
        _check(conn, result)
    except errors.InvalidSqlStatementName:
        # psycopg's rollback deallocates all, ours too; so does a DISCARD ALL.
        conn.__dict__.pop("forge_prepared", None)
        raise
    return result


def _check(conn: Connection, result: PGresult) -> None:
    if (status := result.status) == ExecStatus.TUPLES_OK or status == ExecStatus.COMMAND_OK:
        return
    if conn.broken or conn.closed:
        raise psycopg.OperationalError(conn.pgconn.get_error_message())
    raise errors.error_from_result(result)


def _execute(conn: Connection, step: Step) -> Rows:
    cursor: Rows = RawCursor(conn, row_factory=tuple_row)
    return cursor.execute(step.query.text("dollar"), step.query.args("dollar", step.params), binary=True)
