"""Storing jobs on a connection of the caller's, in the caller's transaction.

`Storage.enqueue_plan` says what to run; an adapter here knows one library's way to run it. Libraries are told by the
names of their classes, so that none is imported that the program did not import itself. On a connection that commits
each statement by itself (autocommit, no transaction begun) the plan gets a transaction of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from typing import Any, NamedTuple

from forge.app.lazy_storage import LazyStorage
from forge.errors import SchemaError, UsageError
from forge.job import NewJob, Receipt
from forge.storage.contract import Plan, Step
from forge.storage.contract.statements import Style
from forge.storage.shared.plans import run_plan
from forge.storage.shared.statements import load_queries

__all__ = ["Guest"]

Rows = Sequence[Sequence[Any]]
BEGIN = "begin immediate"  # SQLite: a deferred transaction that reads first can be refused the lock when it writes


class Errand(NamedTuple):
    """What an adapter runs: `check`, told of the driver's own connection, which outlives the caller's objects around
    it, and only then, within a transaction, `plan`."""

    check: Callable[[Any], Plan]
    plan: Plan


class Adapter(NamedTuple):
    """How to run a plan on connections of one class."""

    what: str  # for people
    dialect: Callable[[Any], str]
    run: Callable[[Errand, Any], list[Receipt]] | None  # None: only awaited
    arun: Callable[[Errand, Any], Awaitable[list[Receipt]]] | None = None
    sqlite_driver: str = "sqlite3"


class Guest:
    """A connection of the caller's to an app's database, and how to use it. Making one asks nothing of the database."""

    def __init__(self, conn: Any, storage: LazyStorage) -> None:
        self._conn = conn
        self._storage = storage
        self._adapter = _adapter(conn)
        self._dialect = self._adapter.dialect(conn)
        if self._dialect != storage.dialect:
            raise UsageError(
                f"conn is a {self._adapter.what} to {_NAMES.get(self._dialect, self._dialect)}, but this app's jobs "
                f"are in {_NAMES[storage.dialect]} ({storage.shown}); pass a connection to that database"
            )

    def enqueue(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        """Store jobs in its transaction. Errors of its library pass through unchanged."""
        if self._adapter.run is None:
            raise UsageError(f"conn is a {self._adapter.what}, which must be awaited; use aenqueue")
        return self._adapter.run(Errand(self._check, self._plan(jobs)), self._conn)

    async def aenqueue(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        """The same for async connections too. A sync one blocks the loop, as its other statements do."""
        if self._adapter.arun is None:
            return self.enqueue(jobs)
        if self._dialect == "postgres":
            await asyncio.to_thread(lambda: self._storage.open().where())  # connects the first time: that takes a while
        return await self._adapter.arun(Errand(self._check, self._plan(jobs)), self._conn)

    def _check(self, raw: Any) -> Plan:
        """Refuse a connection to another database. On SQLite nothing has touched the file before: it may be one that
        forge has open with another library."""
        if not self._storage.knows(raw):
            storage = self._storage.made() if self._dialect == "sqlite" else self._storage.open()
            elsewhere = storage.elsewhere((yield storage.where()))
            if elsewhere is not None:
                raise UsageError(
                    f"conn is a {self._adapter.what} to {elsewhere}, but this app's jobs are in "
                    f"{self._storage.shown}; pass a connection to that database"
                )
            self._storage.remember(raw)
        if self._dialect == "sqlite":
            self._storage.adopt(self._adapter.sqlite_driver)
        return []

    def _plan(self, jobs: Sequence[NewJob]) -> Plan:
        # Tables that are missing must not be made now, as SQLite's would be otherwise: forge's own connection would
        # wait for the caller's transaction to end, and the caller for forge.
        if self._dialect == "sqlite" and not self._storage.is_open:
            rows = yield Step(load_queries("sqlite").schema_exists, {})
            if not rows[0][0]:
                raise SchemaError(f"{self._storage.shown} has no forge tables yet; run: forge db migrate")
        return (yield from self._storage.open().enqueue_plan(jobs))


_NAMES = {"postgres": "PostgreSQL", "sqlite": "SQLite"}


def _adapter(conn: Any) -> Adapter:
    for cls in type(conn).__mro__:
        adapter = ADAPTERS.get((cls.__module__.partition(".")[0], cls.__name__))
        if adapter is not None:
            return adapter
    known = ", ".join(sorted({adapter.what for adapter in ADAPTERS.values()}))
    kind = f"{type(conn).__module__}.{type(conn).__qualname__}"
    raise UsageError(f"conn is a {kind}, which forge cannot use; pass one of: {known}")


async def _arun_plan(plan: Plan, execute: Callable[[Step], Awaitable[Rows]]) -> list[Receipt]:
    """`run_plan` where a step is awaited."""
    try:
        step = next(plan)
        while True:
            step = plan.send(await execute(step))
    except StopIteration as end:
        receipts: list[Receipt] = end.value
        return receipts


def _psycopg(errand: Errand, conn: Any) -> list[Receipt]:
    from psycopg import RawCursor
    from psycopg.rows import tuple_row

    conn = getattr(conn, "connection", conn)  # of a cursor
    own: AbstractContextManager[Any] = conn.transaction() if _psycopg_idle(conn) else nullcontext()
    with RawCursor(conn, row_factory=tuple_row) as cursor:

        def execute(step: Step) -> Rows:
            cursor.execute(step.query.text("dollar"), step.query.args("dollar", step.params))
            return cursor.fetchall() if cursor.description else []

        run_plan(errand.check(conn), execute)
        with own:
            return run_plan(errand.plan, execute)


async def _psycopg_async(errand: Errand, conn: Any) -> list[Receipt]:
    from psycopg import AsyncRawCursor
    from psycopg.rows import tuple_row

    conn = getattr(conn, "connection", conn)
    own: AbstractAsyncContextManager[Any] = conn.transaction() if _psycopg_idle(conn) else nullcontext()
    async with AsyncRawCursor(conn, row_factory=tuple_row) as cursor:

        async def execute(step: Step) -> Rows:
            await cursor.execute(step.query.text("dollar"), step.query.args("dollar", step.params))
            return await cursor.fetchall() if cursor.description else []

        await _arun_plan(errand.check(conn), execute)
        async with own:
            return await _arun_plan(errand.plan, execute)


def _psycopg_idle(conn: Any) -> bool:
    return bool(conn.autocommit) and conn.info.transaction_status.name == "IDLE"


async def _asyncpg(errand: Errand, conn: Any) -> list[Receipt]:
    async def execute(step: Step) -> Rows:
        rows: Rows = await conn.fetch(step.query.text("dollar"), *step.query.args("dollar", step.params))
        return rows

    await _arun_plan(errand.check(getattr(conn, "_con", conn)), execute)  # of a pool's proxy
    async with nullcontext() if conn.is_in_transaction() else conn.transaction():
        return await _arun_plan(errand.plan, execute)


def _sqlalchemy(errand: Errand, conn: Any) -> list[Receipt]:
    """A Connection or Session. The statements go through it and not to the driver's connection below, because
    SQLAlchemy begins its transaction with the first statement it sees."""
    connection = _sqlalchemy_connection(conn)
    style: Style = _PARAMSTYLES[connection.dialect.paramstyle]

    def execute(step: Step) -> Rows:
        result = connection.exec_driver_sql(step.query.text(style), step.query.args(style, step.params))
        return [tuple(row) for row in result] if result.returns_rows else []

    run_plan(errand.check(connection.connection.driver_connection), execute)
    if connection.dialect.name == "sqlite":
        # The standard library's driver begins a transaction only at the first INSERT or the like; SQLAlchemy's own
        # begin comes with the first statement, and may have been taught to begin the driver's.
        connection.exec_driver_sql("select 1")
        driver = connection.connection.driver_connection
        if not driver.in_transaction and getattr(driver, "autocommit", None) is not True:
            connection.exec_driver_sql(BEGIN)
    return run_plan(errand.plan, execute)


def _sqlalchemy_connection(conn: Any) -> Any:
    """The Connection of a Session (or scoped_session) in its current transaction; a Connection is itself."""
    return conn if hasattr(conn, "exec_driver_sql") else conn.connection()


async def _sqlalchemy_async(errand: Errand, conn: Any) -> list[Receipt]:
    """SQLAlchemy's own bridge: the sync Connection or Session behind the async one, run so that it awaits."""
    receipts: list[Receipt] = await conn.run_sync(lambda sync_conn: _sqlalchemy(errand, sync_conn))
    return receipts


_PARAMSTYLES: dict[str, Style] = {
    "format": "format",
    "pyformat": "format",
    "numeric_dollar": "dollar",
    "qmark": "qmark",
}


def _sqlalchemy_dialect(conn: Any) -> str:
    bound = conn if hasattr(conn, "dialect") else conn.get_bind()
    return _dialect_name(bound.dialect.name)


def _dialect_name(name: str) -> str:
    return "postgres" if name == "postgresql" else name


def _django(errand: Errand, conn: Any) -> list[Receipt]:
    from django.db import transaction

    own = transaction.atomic(using=conn.alias) if conn.get_autocommit() else nullcontext()
    with conn.cursor() as cursor:

        def execute(step: Step) -> Rows:
            cursor.execute(step.query.text("format"), step.query.args("format", step.params))
            return cursor.fetchall() if cursor.description else []

        run_plan(errand.check(conn.connection), execute)
        with own:
            return run_plan(errand.plan, execute)


def _sqlite3(errand: Errand, conn: Any) -> list[Receipt]:
    cursor = conn.cursor()
    cursor.row_factory = None  # whatever rows the caller likes, the plan reads tuples

    def execute(step: Step) -> Rows:
        rows: Rows = cursor.execute(step.query.text("qmark"), step.query.args("qmark", step.params)).fetchall()
        return rows

    run_plan(errand.check(conn), execute)
    # Python 3.12 added `autocommit`; before it, and by default, isolation_level None is what commits by itself.
    control = getattr(conn, "autocommit", -1)
    alone = control is True or (control == -1 and conn.isolation_level is None)
    return _in_sqlite(conn, alone, cursor.execute, lambda: run_plan(errand.plan, execute))


def _apsw(errand: Errand, conn: Any) -> list[Receipt]:
    cursor = conn.cursor()
    cursor.row_trace = lambda cursor, row: row

    def execute(step: Step) -> Rows:
        rows: Rows = cursor.execute(step.query.text("qmark"), step.query.args("qmark", step.params)).fetchall()
        return rows

    run_plan(errand.check(conn), execute)
    return _in_sqlite(conn, True, cursor.execute, lambda: run_plan(errand.plan, execute))


def _in_sqlite(conn: Any, alone: bool, sql: Callable[[str], Any], work: Callable[[], list[Receipt]]) -> list[Receipt]:
    """Begin the caller's transaction if that is still to come; one of our own where the connection has none."""
    if conn.in_transaction:
        return work()
    sql(BEGIN)
    try:
        receipts = work()
    except BaseException:
        if conn.in_transaction:
            sql("rollback")  # there is nothing of the caller's in it yet
        raise
    if alone:
        sql("commit")
    return receipts


_PSYCOPG = Adapter("psycopg connection", lambda _: "postgres", _psycopg)
_PSYCOPG_ASYNC = Adapter("psycopg async connection", lambda _: "postgres", None, _psycopg_async)
_ASYNCPG = Adapter("asyncpg connection", lambda _: "postgres", None, _asyncpg)
_SQLALCHEMY = Adapter("SQLAlchemy connection or session", _sqlalchemy_dialect, _sqlalchemy)
_SQLALCHEMY_ASYNC = Adapter("SQLAlchemy async connection or session", _sqlalchemy_dialect, None, _sqlalchemy_async)
_DJANGO = Adapter("Django connection", lambda conn: _dialect_name(conn.vendor), _django)

# By (package, class name), looked up along the class's bases.
ADAPTERS: dict[tuple[str, str], Adapter] = {
    ("psycopg", "Connection"): _PSYCOPG,
    ("psycopg", "Cursor"): _PSYCOPG,
    ("psycopg", "AsyncConnection"): _PSYCOPG_ASYNC,
    ("psycopg", "AsyncCursor"): _PSYCOPG_ASYNC,
    ("asyncpg", "Connection"): _ASYNCPG,
    ("asyncpg", "PoolConnectionProxy"): _ASYNCPG,
    ("sqlalchemy", "Connection"): _SQLALCHEMY,
    ("sqlalchemy", "Session"): _SQLALCHEMY,
    ("sqlalchemy", "scoped_session"): _SQLALCHEMY,
    ("sqlalchemy", "AsyncConnection"): _SQLALCHEMY_ASYNC,
    ("sqlalchemy", "AsyncSession"): _SQLALCHEMY_ASYNC,
    ("sqlalchemy", "async_scoped_session"): _SQLALCHEMY_ASYNC,
    ("django", "BaseDatabaseWrapper"): _DJANGO,
    ("django", "ConnectionProxy"): _DJANGO,
    ("sqlite3", "Connection"): Adapter("sqlite3 connection", lambda _: "sqlite", _sqlite3),
    ("apsw", "Connection"): Adapter("apsw connection", lambda _: "sqlite", _apsw, sqlite_driver="apsw"),
}
