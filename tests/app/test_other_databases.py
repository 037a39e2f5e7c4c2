"""`conn=` of another database than the app's is refused: a job stored there would run elsewhere, or never."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest
import sqlalchemy
import sqlalchemy.orm

from forge import Forge, JobHandle, UsageError
from forge.app.lazy_storage import lend
from forge.storage import open_storage
from forge.testing.database import open_for_test, url_in
from tests.conftest import new_database
from tests.storage.helpers import sql

from .helpers import run
from .libraries import ASYNC, SYNC, AsyncWork, Work, note_on, path_of, sqlalchemy_url

pytestmark = pytest.mark.impl_free


@pytest.fixture(scope="module")
def pg_urls(pg_server: str, pg_template: str) -> Iterator[tuple[str, str]]:
    """Two databases of one server, for tests that store nothing in the second, and in the first nothing that lasts."""
    for mine in new_database(pg_server, pg_template):
        for other in new_database(pg_server, pg_template):
            note_on(other)
            yield mine, other


@pytest.fixture
def sqlite_urls(sqlite_url: str, tmp_path: Path) -> tuple[str, str]:
    """Two files."""
    other = f"sqlite:///{tmp_path}/other.db"
    with open_storage(other) as storage:
        storage.migrate()
    note_on(other)
    return sqlite_url, other


@pytest.fixture
def pair(request: pytest.FixtureRequest) -> tuple[str, str]:
    """The app's database, and another of the same kind with the same tables in it."""
    found: tuple[str, str] = request.getfixturevalue(f"{request.param}s")
    return found


def check_refused(app: Forge, url: str, other: str, error: UsageError) -> None:
    """It says in one line which database the connection is on and which the app's is, and has stored nothing."""
    message = str(error)
    there = path_of(other) if other.startswith("sqlite") else other.partition("?")[0].rpartition("/")[2]
    assert there in message
    assert "but this app's jobs are in" in message
    assert "\n" not in message
    app.close()
    for each in (other, url):
        assert sql(each, "select count(*) from {job}") == [(0,)]


@pytest.mark.parametrize(("pair", "use"), SYNC.values(), ids=SYNC, indirect=["pair"])
def test_a_connection_to_another_database_is_refused(
    pair: tuple[str, str], use: Callable[[str, Work, bool], JobHandle[Any]]
) -> None:
    url, other = pair
    with Forge(url) as app:
        refusals: list[UsageError] = []

        def work(conn: Any) -> Any:
            for _ in range(2):
                with pytest.raises(UsageError) as caught:
                    app.enqueue("mail", {"to": "ann"}, conn=conn)
                refusals.append(caught.value)
            return "of no matter"

        use(other, work, True)
        assert len(refusals) == 2
        check_refused(app, url, other, refusals[1])


@pytest.mark.parametrize(("pair", "use"), ASYNC.values(), ids=ASYNC, indirect=["pair"])
def test_an_async_connection_to_another_database_is_refused(
    pair: tuple[str, str], use: Callable[[str, AsyncWork, bool], Awaitable[JobHandle[Any]]]
) -> None:
    url, other = pair
    with Forge(url) as app:
        refusals: list[UsageError] = []

        async def work(conn: Any) -> Any:
            with pytest.raises(UsageError) as caught:
                await app.aenqueue("mail", {"to": "ann"}, conn=conn)
            refusals.append(caught.value)

        async def go() -> None:
            await use(other, work, True)

        run(go())
        check_refused(app, url, other, refusals[0])


def test_a_password_is_not_told(pg_urls: tuple[str, str]) -> None:
    pg_url, other_pg_url = pg_urls
    app, conn = Forge(pg_url.replace("postgres:", "postgres:hidden")), psycopg.connect(other_pg_url)
    with app, conn, pytest.raises(UsageError) as caught:
        app.enqueue("mail", {}, conn=conn)
    assert "hidden" not in str(caught.value)


def counted(app: Forge, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each time that a connection is asked where it is."""
    storage, asked = app.storage, list[int]()
    real = storage.elsewhere

    def counting(answer: Any) -> str | None:
        asked.append(1)
        return real(answer)

    monkeypatch.setattr(storage, "elsewhere", counting)
    return asked


def test_a_connection_is_asked_once(pg_urls: tuple[str, str], sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    connects: dict[str, Callable[[str], Any]] = {
        pg_urls[0]: psycopg.connect,
        sqlite_url: lambda url: apsw.Connection(path_of(url)),
    }
    for url, connect in connects.items():
        with Forge(url) as app:
            asked = counted(app, monkeypatch)
            for connections in (1, 2):
                conn = connect(url)
                for _ in range(3):
                    app.enqueue("mail", {}, conn=conn)
                conn.close()  # without a commit
                assert len(asked) == connections


def test_a_pooled_connection_is_asked_once_whatever_sessions_are_made_of_it(
    pg_urls: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pg_url, _ = pg_urls
    engine = sqlalchemy.create_engine(sqlalchemy_url(pg_url, "psycopg2"), pool_size=1)
    with Forge(pg_url) as app:
        asked = counted(app, monkeypatch)
        for _ in range(3):
            with sqlalchemy.orm.Session(engine) as session:
                app.enqueue("mail", {}, conn=session)
        assert len(asked) == 1
    engine.dispose()


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_file_by_another_name_is_the_same_file(
    sqlite_url: str, tmp_path: Path, link: Callable[[str, str], None]
) -> None:
    """A hard link is one too, although SQLite itself would not know that its log belongs to both names."""
    alias = f"{tmp_path}/alias.db"
    link(path_of(sqlite_url), alias)
    with Forge(sqlite_url) as app:
        assert app.storage.elsewhere([(0, "main", alias)]) is None
        assert app.storage.elsewhere([(0, "main", "")]) == "a database in memory"
        assert app.storage.elsewhere([(0, "main", f"{tmp_path}/gone.db")]) == f"{tmp_path}/gone.db"


def test_a_server_that_has_been_started_anew_is_still_the_same(pg_urls: tuple[str, str]) -> None:
    pg_url, _ = pg_urls
    with Forge(pg_url) as app, psycopg.connect(pg_url) as conn:
        app.storage.where()
        app.storage._here = (app.storage._here[0], 1)  # type: ignore[attr-defined]
        app.enqueue("mail", {}, conn=conn)
        conn.rollback()


def test_a_database_of_another_server_is_refused_though_all_its_numbers_are_the_same(
    pg_urls: tuple[str, str],
) -> None:
    with Forge(pg_urls[0]) as app:
        app.storage.where()
        oid, started = app.storage._here  # type: ignore[attr-defined]
        assert app.storage.elsewhere([(oid, started, "shop", None, None)]) is None
        assert app.storage.elsewhere([(oid, started + 1, "shop", None, None)]) == "database shop of another server"
        there = app.storage.elsewhere([(oid, started + 1, "shop", "10.0.0.5", 5432)])
        assert there == "database shop of another server (10.0.0.5:5432)"


def test_a_refused_connection_does_not_make_the_apps_own_file(tmp_path: Path, sqlite_url: str) -> None:
    with Forge(f"sqlite:///{tmp_path}/mine.db") as app:
        conn = apsw.Connection(path_of(sqlite_url))
        with pytest.raises(UsageError, match=r"forge\.db, but this app's jobs are in"):
            app.enqueue("mail", {}, conn=conn)
        conn.close()
    assert not (tmp_path / "mine.db").exists()


def test_a_test_cannot_store_jobs_in_the_real_database(tmp_path: Path, sqlite_url: str) -> None:
    """As under the fixture `forge_app`, where a running master would have executed them."""
    app = Forge(f"{sqlite_url}?driver=sqlite3")
    conn = sqlite3.connect(path_of(sqlite_url))
    with open_for_test(url_in(tmp_path)) as storage, lend(storage):
        with pytest.raises(UsageError, match="this app's jobs are in"):
            app.enqueue("mail", {}, conn=conn)
        conn.rollback()
    app.enqueue("mail", {}, conn=conn)
    conn.commit()
    conn.close()
    assert len(list(app.jobs())) == 1
    app.close()
