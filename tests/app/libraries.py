"""How the users of each library work: begin, do something, commit or roll back. The only code that knows the libraries.

Beside what the test does, each writes a row of its own, which must share the job's fate.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

import apsw
import asyncpg
import django
import django.conf
import psycopg
import psycopg.rows
import psycopg_pool
import pytest
import sqlalchemy
import sqlalchemy.ext.asyncio
import sqlalchemy.orm
from django.db import connections, transaction

from forge import Forge, JobHandle

Work = Callable[[Any], JobHandle[Any]]
AsyncWork = Callable[[Any], Awaitable[JobHandle[Any]]]

NOTE = "insert into note values (1)"


class Undo(Exception):
    """Raised in a transaction to roll it back."""


def path_of(url: str) -> str:
    return url.removeprefix("sqlite:///")


def sqlalchemy_url(url: str, driver: str) -> str:
    if url.startswith("sqlite"):
        return url.replace("sqlite", f"sqlite+{driver}", 1)
    parts = urlsplit(url)
    return f"postgresql+{driver}://postgres@{parts.path}?host={parse_qs(parts.query)['host'][0]}"


def note_on(url: str) -> None:
    """A table of the caller's."""
    if url.startswith("sqlite"):
        conn = apsw.Connection(path_of(url))
        conn.execute("create table note (n integer)")
        conn.close()
    else:
        with psycopg.connect(url) as pg:
            pg.execute("create table note (n integer)")


def notes_in(app: Forge, url: str) -> int:
    app.close()  # it may use the other SQLite library
    if url.startswith("sqlite"):
        conn = sqlite3.connect(path_of(url))
        found = conn.execute("select count(*) from note").fetchone()[0]
        conn.close()
        return int(found)
    with psycopg.connect(url) as pg:
        row = pg.execute("select count(*) from note").fetchone()
        assert row is not None
        return int(row[0])


# -- one function per library: begins as its users do, works, and commits or rolls back ------------------------------


def with_psycopg(url: str, work: Work, commit: bool) -> JobHandle[Any]:
    with psycopg.connect(url, row_factory=psycopg.rows.dict_row) as conn:
        conn.execute(NOTE)
        handle = work(conn)
        if not commit:
            conn.rollback()
        return handle


def with_psycopg_cursor(url: str, work: Work, commit: bool) -> JobHandle[Any]:
    with psycopg.connect(url) as conn, conn.cursor() as cursor:
        cursor.execute(NOTE)
        handle = work(cursor)
        if not commit:
            conn.rollback()
        return handle


def with_psycopg_autocommit(url: str, work: Work, commit: bool) -> JobHandle[Any]:
    with psycopg.connect(url, autocommit=True) as conn, conn.transaction(force_rollback=not commit):
        conn.execute(NOTE)
        return work(conn)


def with_psycopg_pool(url: str, work: Work, commit: bool) -> JobHandle[Any]:
    with psycopg_pool.ConnectionPool(url, min_size=1, open=True) as pool, pool.connection() as conn:
        handle = work(conn)
        conn.execute(NOTE)
        if not commit:
            conn.rollback()
        return handle


def with_sqlalchemy_connection(driver: str) -> Callable[[str, Work, bool], JobHandle[Any]]:
    def use(url: str, work: Work, commit: bool) -> JobHandle[Any]:
        engine = sqlalchemy.create_engine(sqlalchemy_url(url, driver))
        with engine.connect() as conn:
            handle = work(conn)
            conn.execute(sqlalchemy.text(NOTE))
            conn.commit() if commit else conn.rollback()
        engine.dispose()
        return handle

    return use


def with_sqlalchemy_session(driver: str) -> Callable[[str, Work, bool], JobHandle[Any]]:
    def use(url: str, work: Work, commit: bool) -> JobHandle[Any]:
        engine = sqlalchemy.create_engine(sqlalchemy_url(url, driver))
        with sqlalchemy.orm.Session(engine) as session:
            session.execute(sqlalchemy.text(NOTE))
            handle = work(session)
            session.commit() if commit else session.rollback()
        engine.dispose()
        return handle

    return use


def with_scoped_session(url: str, work: Work, commit: bool) -> JobHandle[Any]:
    engine = sqlalchemy.create_engine(sqlalchemy_url(url, "psycopg"))
    session = sqlalchemy.orm.scoped_session(sqlalchemy.orm.sessionmaker(engine))
    session.execute(sqlalchemy.text(NOTE))
    handle = work(session)
    session.commit() if commit else session.rollback()
    session.remove()
    engine.dispose()
    return handle


def with_sqlalchemy_that_begins_by_itself(url: str, work: Work, commit: bool) -> JobHandle[Any]:
    """The recipe of SQLAlchemy's documentation for true transactions on SQLite."""
    engine = sqlalchemy.create_engine(sqlalchemy_url(url, "pysqlite"))

    @sqlalchemy.event.listens_for(engine, "connect")
    def leave_transactions_alone(conn: Any, record: object) -> None:
        conn.isolation_level = None

    @sqlalchemy.event.listens_for(engine, "begin")
    def begin(conn: Any) -> None:
        conn.exec_driver_sql("BEGIN")

    with engine.connect() as conn:
        handle = work(conn)
        conn.execute(sqlalchemy.text(NOTE))
        conn.commit() if commit else conn.rollback()
    engine.dispose()
    return handle


def with_django(url: str, work: Work, commit: bool) -> JobHandle[Any]:
    with pytest.MonkeyPatch.context() as patch:
        conn = django_connection(url, patch)
        try:
            with transaction.atomic(using="jobs"):
                conn.cursor().execute(NOTE)
                handle = work(conn)
                if not commit:
                    raise Undo
        except Undo:
            pass
        finally:
            conn.close()
        return handle


def django_connection(url: str, patch: pytest.MonkeyPatch) -> Any:
    """A connection as `django.db.connections` gives it, to a database known as `jobs`."""
    if not django.conf.settings.configured:
        django.conf.settings.configure(DATABASES={}, USE_TZ=True)
        django.setup()
    if url.startswith("sqlite"):
        settings = {"ENGINE": "django.db.backends.sqlite3", "NAME": path_of(url)}
    else:
        parts = urlsplit(url)
        host = parse_qs(parts.query)["host"][0]
        settings = {"ENGINE": "django.db.backends.postgresql", "NAME": parts.path[1:], "USER": "postgres", "HOST": host}
    patch.setitem(
        connections.settings, "jobs", connections.configure_settings({"default": {}, "jobs": settings})["jobs"]
    )
    conn = connections.create_connection("jobs")
    connections["jobs"] = conn
    return conn


def with_sqlite3(url: str, work: Work, commit: bool) -> JobHandle[Any]:
    conn = sqlite3.connect(path_of(url))
    conn.row_factory = sqlite3.Row
    handle = work(conn)
    conn.execute(NOTE)
    conn.commit() if commit else conn.rollback()
    conn.close()
    return handle


def with_sqlite3_begun(url: str, work: Work, commit: bool) -> JobHandle[Any]:
    conn = sqlite3.connect(path_of(url), isolation_level=None)
    conn.execute("begin")
    conn.execute(NOTE)
    handle = work(conn)
    conn.execute("commit" if commit else "rollback")
    conn.close()
    return handle


def with_sqlite3_always_in_a_transaction(url: str, work: Work, commit: bool) -> JobHandle[Any]:
    """`autocommit=False`, which came with Python 3.12; before, the nearest thing."""
    options: Any = {"autocommit": False} if sys.version_info >= (3, 12) else {"isolation_level": "IMMEDIATE"}
    conn = sqlite3.connect(path_of(url), **options)
    conn.execute(NOTE)
    handle = work(conn)
    conn.commit() if commit else conn.rollback()
    conn.close()
    return handle


def with_apsw(url: str, work: Work, commit: bool) -> JobHandle[Any]:
    conn = apsw.Connection(path_of(url))
    conn.row_trace = lambda cursor, row: {"row": row}
    handle = None
    try:
        with conn:
            conn.execute(NOTE)
            handle = work(conn)
            if not commit:
                raise Undo
    except Undo:
        pass
    finally:
        conn.close()
    assert handle is not None
    return handle


async def with_psycopg_async(url: str, work: AsyncWork, commit: bool) -> JobHandle[Any]:
    async with await psycopg.AsyncConnection.connect(url) as conn:
        await conn.execute(NOTE)
        handle = await work(conn)
        if not commit:
            await conn.rollback()
        return handle


async def with_asyncpg(url: str, work: AsyncWork, commit: bool) -> JobHandle[Any]:
    conn = await asyncpg.connect(url)
    try:
        change = conn.transaction()
        await change.start()
        await conn.execute(NOTE)
        handle = await work(conn)
        await (change.commit() if commit else change.rollback())
        return handle
    finally:
        await conn.close()


async def with_asyncpg_pool(url: str, work: AsyncWork, commit: bool) -> JobHandle[Any]:
    async with asyncpg.create_pool(url, min_size=1, max_size=1) as pool, pool.acquire() as conn:
        change = conn.transaction()
        await change.start()
        handle = await work(conn)
        await conn.execute(NOTE)
        await (change.commit() if commit else change.rollback())
        return handle


def with_async_connection(driver: str) -> Callable[[str, AsyncWork, bool], Awaitable[JobHandle[Any]]]:
    async def use(url: str, work: AsyncWork, commit: bool) -> JobHandle[Any]:
        engine = sqlalchemy.ext.asyncio.create_async_engine(sqlalchemy_url(url, driver))
        async with engine.connect() as conn:
            handle = await work(conn)
            await conn.execute(sqlalchemy.text(NOTE))
            await (conn.commit() if commit else conn.rollback())
        await engine.dispose()
        return handle

    return use


def with_async_session(driver: str) -> Callable[[str, AsyncWork, bool], Awaitable[JobHandle[Any]]]:
    async def use(url: str, work: AsyncWork, commit: bool) -> JobHandle[Any]:
        engine = sqlalchemy.ext.asyncio.create_async_engine(sqlalchemy_url(url, driver))
        async with sqlalchemy.ext.asyncio.AsyncSession(engine) as session:
            await session.execute(sqlalchemy.text(NOTE))
            handle = await work(session)
            await (session.commit() if commit else session.rollback())
        await engine.dispose()
        return handle

    return use


SYNC: dict[str, tuple[str, Callable[[str, Work, bool], JobHandle[Any]]]] = {
    "psycopg": ("pg_url", with_psycopg),
    "psycopg cursor": ("pg_url", with_psycopg_cursor),
    "psycopg autocommit": ("pg_url", with_psycopg_autocommit),
    "psycopg pool": ("pg_url", with_psycopg_pool),
    "sqlalchemy connection psycopg": ("pg_url", with_sqlalchemy_connection("psycopg")),
    "sqlalchemy connection psycopg2": ("pg_url", with_sqlalchemy_connection("psycopg2")),
    "sqlalchemy connection pysqlite": ("sqlite_url", with_sqlalchemy_connection("pysqlite")),
    "sqlalchemy connection pysqlite begun": ("sqlite_url", with_sqlalchemy_that_begins_by_itself),
    "sqlalchemy session psycopg": ("pg_url", with_sqlalchemy_session("psycopg")),
    "sqlalchemy session psycopg2": ("pg_url", with_sqlalchemy_session("psycopg2")),
    "sqlalchemy session pysqlite": ("sqlite_url", with_sqlalchemy_session("pysqlite")),
    "sqlalchemy scoped_session": ("pg_url", with_scoped_session),
    "django postgresql": ("pg_url", with_django),
    "django sqlite": ("sqlite_url", with_django),
    "sqlite3": ("sqlite_url", with_sqlite3),
    "sqlite3 begun": ("sqlite_url", with_sqlite3_begun),
    "sqlite3 always in a transaction": ("sqlite_url", with_sqlite3_always_in_a_transaction),
    "apsw": ("sqlite_url", with_apsw),
}
ASYNC: dict[str, tuple[str, Callable[[str, AsyncWork, bool], Awaitable[JobHandle[Any]]]]] = {
    "psycopg": ("pg_url", with_psycopg_async),
    "asyncpg": ("pg_url", with_asyncpg),
    "asyncpg pool": ("pg_url", with_asyncpg_pool),
    "sqlalchemy connection asyncpg": ("pg_url", with_async_connection("asyncpg")),
    "sqlalchemy connection psycopg": ("pg_url", with_async_connection("psycopg")),
    "sqlalchemy connection aiosqlite": ("sqlite_url", with_async_connection("aiosqlite")),
    "sqlalchemy session asyncpg": ("pg_url", with_async_session("asyncpg")),
    "sqlalchemy session psycopg": ("pg_url", with_async_session("psycopg")),
    "sqlalchemy session aiosqlite": ("sqlite_url", with_async_session("aiosqlite")),
}
