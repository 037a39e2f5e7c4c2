"""Jobs stored in the caller's own transaction, with every library: commit makes the job visible, rollback makes it
never have been. Beside the job each test writes a row of its own, which must share the job's fate."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import asyncpg
import psycopg
import psycopg.rows
import pytest
import sqlalchemy
import sqlalchemy.ext.asyncio
import sqlalchemy.orm

from forge import Forge, JobHandle, JobNotFound, SchemaError, UsageError
from forge.storage.contract import Plan

from .helpers import run
from .libraries import ASYNC, NOTE, SYNC, AsyncWork, Undo, Work, django_connection, note_on, notes_in, path_of


@pytest.fixture
def app(request: pytest.FixtureRequest) -> Iterator[tuple[Forge, str]]:
    """An app on the database that the library in question is for, with a table `note` in it."""
    url = request.getfixturevalue(request.param)
    note_on(url)
    with Forge(url) as app:
        yield app, url


def check(app: Forge, url: str, handle: JobHandle[Any], commit: bool) -> None:
    """The job and the note are both there, or neither is."""
    if commit:
        job = handle.job()
        assert (job.kind, job.payload, job.dedupe_key, job.tags) == ("mail", {"to": "ann"}, "one", ("red",))
    else:
        with pytest.raises(JobNotFound):
            handle.job()
    again = app.enqueue("mail", {}, dedupe_key="one")
    assert again.deduped is commit
    assert notes_in(app, url) == commit


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "rollback"])
@pytest.mark.parametrize(("app", "use"), SYNC.values(), ids=SYNC, indirect=["app"])
def test_a_job_shares_the_fate_of_the_callers_transaction(
    app: tuple[Forge, str], use: Callable[[str, Work, bool], JobHandle[Any]], commit: bool
) -> None:
    forge, url = app

    def work(conn: Any) -> JobHandle[Any]:
        handle = forge.enqueue("mail", {"to": "ann"}, conn=conn, dedupe_key="one", tags=["red"])
        assert not handle.deduped
        assert forge.enqueue("mail", {}, conn=conn, dedupe_key="one").id == handle.id
        with pytest.raises(JobNotFound):  # nobody else sees it before the commit
            handle.job()
        return handle

    check(forge, url, use(url, work, commit), commit)


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "rollback"])
@pytest.mark.parametrize(("app", "use"), ASYNC.values(), ids=ASYNC, indirect=["app"])
def test_a_job_shares_the_fate_of_the_callers_async_transaction(
    app: tuple[Forge, str], use: Callable[[str, AsyncWork, bool], Awaitable[JobHandle[Any]]], commit: bool
) -> None:
    forge, url = app

    async def work(conn: Any) -> JobHandle[Any]:
        handle = await forge.aenqueue("mail", {"to": "ann"}, conn=conn, dedupe_key="one", tags=["red"])
        assert (await forge.aenqueue("mail", {}, conn=conn, dedupe_key="one")).deduped
        with pytest.raises(JobNotFound):
            await handle.ajob()
        return handle

    async def scenario() -> JobHandle[Any]:
        return await use(url, work, commit)

    check(forge, url, run(scenario()), commit)


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg", "django", "sqlite3", "sqlite3 autocommit", "apsw"])
def test_outside_a_transaction_the_jobs_of_one_call_are_stored_together_and_at_once(
    driver: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = request.getfixturevalue("pg_url" if driver in ("psycopg", "asyncpg", "django") else "sqlite_url")
    with Forge(f"{url}?driver=sqlite3" if "sqlite3" in driver else url) as app:
        whole = app.storage.enqueue_plan

        def breaks_off(jobs: Any) -> Plan:
            """Its first statements, then an error: none of them may stay."""
            plan = whole(jobs)
            step = next(plan)
            try:
                while True:
                    step = plan.send((yield step))
            except StopIteration:
                raise Undo from None

        def store(conn: Any) -> JobHandle[Any]:
            return app.enqueue("mail", {}, conn=conn)

        def attempt(conn: Any) -> None:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(app.storage, "enqueue_plan", breaks_off)
                with pytest.raises(Undo):
                    store(conn)
            assert list(app.jobs()) == []
            assert store(conn).status == "pending"

        async def attempt_async() -> None:
            conn = await asyncpg.connect(url)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(app.storage, "enqueue_plan", breaks_off)
                with pytest.raises(Undo):
                    await app.aenqueue("mail", {}, conn=conn)
            assert list(app.jobs()) == []
            handle = await app.aenqueue("mail", {}, conn=conn)
            assert handle.status == "pending"
            await conn.close()

        if driver == "asyncpg":
            run(attempt_async())
            return
        conn: Any = None
        if driver == "psycopg":
            conn = psycopg.connect(url, autocommit=True)
        elif driver == "django":
            conn = django_connection(url, monkeypatch)
        elif driver == "sqlite3":
            conn = sqlite3.connect(path_of(url), isolation_level=None)
        elif driver == "sqlite3 autocommit":  # its own argument came with Python 3.12
            autocommit: Any = {"autocommit": True} if sys.version_info >= (3, 12) else {"isolation_level": None}
            conn = sqlite3.connect(path_of(url), **autocommit)
        else:
            conn = apsw.Connection(path_of(url))
        attempt(conn)
        conn.close()


def test_many_jobs_and_tasks_take_a_connection_too(pg_url: str) -> None:
    with Forge(pg_url) as app, psycopg.connect(pg_url) as conn:

        @app.task
        def add(a: int, b: int) -> int:
            return a + b

        kept = add.using(conn=conn).enqueue_many([(1, 2), (3, 4)])
        kept += app.enqueue_many([app.job("mail", n) for n in range(50)], conn=conn)
        assert list(app.jobs()) == []
        conn.commit()
        assert {job.id for job in app.jobs()} == {handle.id for handle in kept}
        assert kept[1].job().payload == {"args": [3, 4], "kwargs": {}}


def test_a_conflict_is_handled_in_the_callers_transaction(pg_url: str) -> None:
    with Forge(pg_url) as app, psycopg.connect(pg_url) as conn:
        first = app.enqueue("report", 1, dedupe_key="daily")
        second = app.enqueue("report", 2, dedupe_key="daily", on_conflict="replace", conn=conn)
        assert (second.id, second.deduped, first.job().payload) == (first.id, True, 1)
        conn.commit()
        assert first.job().payload == 2


def test_a_connection_to_the_other_kind_of_database_is_refused_naming_both(sqlite_url: str, pg_url: str) -> None:
    conn = sqlite3.connect(path_of(sqlite_url))
    with Forge(pg_url) as app, pytest.raises(UsageError, match=r"sqlite3 connection to SQLite, but .* PostgreSQL"):
        app.enqueue("mail", {}, conn=conn)
    conn.close()
    with psycopg.connect(pg_url) as pg, Forge(sqlite_url) as app:
        with pytest.raises(UsageError, match=r"psycopg connection to PostgreSQL, but .* SQLite"):
            app.enqueue("mail", {}, conn=pg)
        assert pg.info.transaction_status.name == "IDLE"


def test_an_async_connection_is_refused_by_a_sync_enqueue(pg_url: str) -> None:
    async def scenario() -> None:
        conn = await psycopg.AsyncConnection.connect(pg_url)
        with Forge(pg_url) as app, pytest.raises(UsageError, match="use aenqueue"):
            app.enqueue("mail", {}, conn=conn)
        await conn.close()

    run(scenario())


def test_a_sync_connection_serves_an_async_enqueue(pg_url: str) -> None:
    with Forge(pg_url) as app, psycopg.connect(pg_url) as conn:
        handle = run(app.aenqueue("mail", {}, conn=conn))
        conn.commit()
        assert handle.status == "pending"


@pytest.mark.parametrize("conn", ["postgresql://db", object(), 7], ids=["a URL", "an object", "a number"])
def test_what_is_no_connection_is_refused(conn: object, sqlite_url: str) -> None:
    with Forge(sqlite_url) as app, pytest.raises(UsageError, match=r"conn is a .*; pass one of: .*SQLAlchemy"):
        app.enqueue("mail", {}, conn=conn)


def test_an_error_of_the_library_passes_through_unchanged(pg_url: str) -> None:
    with Forge(pg_url) as app, psycopg.connect(pg_url) as conn:
        with pytest.raises(psycopg.errors.SyntaxError):
            conn.execute("selec 1")
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            app.enqueue("mail", {}, conn=conn)


def test_an_sqlalchemy_session_on_a_database_forge_does_not_know_is_refused(sqlite_url: str) -> None:
    engine = sqlalchemy.create_mock_engine("mysql://", lambda *_: None)
    session = sqlalchemy.orm.Session(engine)  # type: ignore[arg-type]
    with Forge(sqlite_url) as app, pytest.raises(UsageError, match=r"to mysql, but .* SQLite"):
        app.enqueue("mail", {}, conn=session)


def test_two_sqlite_libraries_on_one_file_are_refused_saying_how_to_use_one(sqlite_url: str) -> None:
    conn = sqlite3.connect(path_of(sqlite_url))
    with Forge(sqlite_url) as app:
        app.enqueue("mail", {})
        with pytest.raises(UsageError, match=r"is open with apsw.*driver=sqlite3"):
            app.enqueue("mail", {}, conn=conn)
    with Forge(f"{sqlite_url}?driver=sqlite3") as app:
        app.enqueue("mail", {})
        app.enqueue("mail", {}, conn=conn)
        conn.commit()
        assert len(list(app.jobs())) == 3
    conn.close()


@pytest.mark.parametrize("begun", [True, False])
def test_tables_that_are_missing_are_not_made_under_the_callers_transaction(tmp_path: Path, begun: bool) -> None:
    conn = sqlite3.connect(tmp_path / "shop.db")
    conn.execute("create table note (n integer)")
    conn.commit()
    with Forge(f"sqlite:///{tmp_path}/shop.db?driver=sqlite3") as app:
        if begun:
            conn.execute(NOTE)
        with pytest.raises(
            SchemaError, match=r"shop.db\?driver=sqlite3 has no forge tables yet; run: forge db migrate"
        ):
            app.enqueue("mail", {}, conn=conn)
        conn.rollback()
        app.storage.migrate()
        handle = app.enqueue("mail", {}, conn=conn)
        conn.commit()
        assert handle.status == "pending"
    conn.close()
