"""The file: its URL, its mode, its schema, and what is said when something is wrong with it."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forge.errors import ConfigError, DatabaseError, SchemaError
from forge.job import Enqueued
from forge.storage.contract.schema import Migration
from forge.storage.shared.migrations import migrations
from forge.storage.sqlite import SqliteStorage, database
from forge.storage.sqlite.database import parse_url
from forge.storage.sqlite.drivers import DRIVERS, DriverName, SqliteConnection
from forge.storage.sqlite.schema import _statements

from .helpers import elsewhere, some_jobs, start_child

pytestmark = pytest.mark.impl_free


def test_three_slashes_are_relative_and_four_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse_url("sqlite:///some/forge.db") == (f"{tmp_path}/some/forge.db", "apsw")
    assert parse_url("sqlite:////var/lib/forge.db") == ("/var/lib/forge.db", "apsw")
    assert parse_url("sqlite:////var/lib/forge.db?driver=sqlite3") == ("/var/lib/forge.db", "sqlite3")
    assert parse_url("sqlite:///100%.db")[0] == f"{tmp_path}/100%.db"


@pytest.mark.parametrize("name", ["with space", "100%25", "a#b", "ü"])
def test_a_path_is_taken_as_it_stands(tmp_path: Path, driver: DriverName, name: str) -> None:
    with SqliteStorage(f"sqlite:///{tmp_path}/{name}.db?driver={driver}") as storage:
        storage.migrate()
    assert (tmp_path / f"{name}.db").exists()


@pytest.mark.parametrize(
    "url",
    [
        "sqlite://",
        "sqlite:///",
        "sqlite:forge.db",
        "sqlite:///:memory:",
        "sqlite:///f.db?driver=x",
        "sqlite:///f.db?mode=ro",
    ],
)
def test_a_url_that_names_no_file_or_an_unknown_option_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"use|the only one"):
        SqliteStorage(url)


def test_only_its_owner_can_read_the_file_from_its_first_moment(
    path: Path, driver: DriverName, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def spy(where: str, **options: Any) -> SqliteConnection:
        seen.append(os.stat(where).st_mode & 0o777)
        return real(where, **options)

    real = DRIVERS[driver]
    monkeypatch.setattr(database, "DRIVERS", {driver: spy})
    before = os.umask(0)
    try:
        with SqliteStorage(f"sqlite:///{path}?driver={driver}") as storage:
            storage.migrate()
            storage.enqueue(some_jobs(1))
            storage.counts()
            modes = {name.name: name.stat().st_mode & 0o777 for name in path.parent.iterdir()}
    finally:
        os.umask(before)
    assert seen == [0o600, 0o600]
    assert modes == {"forge.db": 0o600, "forge.db-wal": 0o600, "forge.db-shm": 0o600}


def test_a_file_that_is_there_keeps_its_mode(path: Path) -> None:
    path.touch(0o640)
    path.chmod(0o640)
    with SqliteStorage(f"sqlite:///{path}") as storage:
        storage.migrate()
    assert path.stat().st_mode & 0o777 == 0o640


def test_every_commit_reaches_the_disk_through_the_log(storage: SqliteStorage) -> None:
    for handle in (storage._writer, storage._reader):
        with handle.use() as conn:
            assert conn.rows("pragma journal_mode") == [("wal",)]
            assert conn.rows("pragma synchronous") == [(2,)]


@pytest.mark.parametrize(
    "verb",
    [
        lambda storage: storage.check_schema(),
        lambda storage: storage.enqueue(some_jobs(1)),
        lambda storage: storage.counts(),
        lambda storage: storage.listen().wait(0),
    ],
    ids=["check_schema", "enqueue", "counts", "listen"],
)
def test_a_missing_file_is_not_made_but_said(path: Path, driver: DriverName, verb: Callable[[Any], object]) -> None:
    storage = SqliteStorage(f"sqlite:///{path}?driver={driver}")
    with pytest.raises(SchemaError, match="forge db migrate"):
        verb(storage)
    assert storage.schema_state().current == 0
    assert not path.exists()


def test_an_empty_file_has_no_schema(path: Path, driver: DriverName) -> None:
    path.touch()
    with SqliteStorage(f"sqlite:///{path}?driver={driver}") as storage:
        for verb in (storage.check_schema, storage.counts, lambda: storage.enqueue(some_jobs(1))):
            with pytest.raises(SchemaError, match="run: forge db migrate"):
                verb()


def test_a_schema_from_the_future_says_to_upgrade(apsw_storage: SqliteStorage, path: Path) -> None:
    elsewhere(path, "conn.execute(\"insert into forge_migration values (700, 'later', 0, 700)\")")
    with pytest.raises(SchemaError, match=r"needs a release that knows 700, this one knows \d+; upgrade forge-jobs"):
        apsw_storage.check_schema()


def test_a_file_that_is_no_database_is_one_line(path: Path, driver: DriverName) -> None:
    path.write_text("to be or not to be, that is the question\n" * 50)
    with SqliteStorage(f"sqlite:///{path}?driver={driver}") as storage:
        with pytest.raises(DatabaseError, match="not a database") as caught:
            storage.migrate()
        assert "\n" not in str(caught.value)


def test_a_path_in_no_folder_is_one_line(tmp_path: Path) -> None:
    storage = SqliteStorage(f"sqlite:///{tmp_path}/no/where.db")
    with pytest.raises(DatabaseError, match="cannot create"):
        storage.migrate()


def test_a_full_disk_is_an_error_and_nothing_happened(apsw_storage: SqliteStorage) -> None:
    with apsw_storage._writer.use() as conn:
        conn.rows("pragma max_page_count = 30")
    with pytest.raises(DatabaseError, match="full; free some space"):
        apsw_storage.enqueue(some_jobs(5000))
    (job,) = some_jobs(1)
    assert apsw_storage.enqueue([job]) == [Enqueued(job.id)]
    assert apsw_storage.counts()["default"].pending == 1


def test_ten_processes_may_migrate_at_once(path: Path, driver: DriverName) -> None:
    ready, go = os.pipe(), os.pipe()

    def migrate() -> None:
        os.write(ready[1], b".")
        os.read(go[0], 1)
        with SqliteStorage(f"sqlite:///{path}?driver={driver}") as storage:
            os.write(ready[1], b"!" * len(storage.migrate()))
            storage.enqueue(some_jobs(3))

    children = [start_child(migrate) for _ in range(10)]
    for _ in children:
        os.read(ready[0], 1)
    os.write(go[1], b"." * 10)
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * 10
    assert os.read(ready[0], 100) == b"!" * len(migrations("sqlite")), "each was applied once, by whomever"
    with SqliteStorage(f"sqlite:///{path}?driver={driver}") as storage:
        storage.check_schema()
        assert storage.counts()["default"].pending == 30
    for fd in (*ready, *go):
        os.close(fd)


def test_a_migration_that_fails_leaves_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = (Migration(1, "jobs", "create table forge_job (id);\ncreate table forge_job (id);", 1),)
    monkeypatch.setattr("forge.storage.sqlite.schema.migrations", lambda _: broken)
    with SqliteStorage(f"sqlite:///{path}") as storage:
        with pytest.raises(DatabaseError):
            storage.migrate()
        with storage._reader.use() as conn:
            assert conn.rows("select name from sqlite_master") == []


def test_migrations_are_cut_into_whole_statements() -> None:
    for each in migrations("sqlite"):
        cut = list(_statements(each.sql))
        assert "\n".join(cut).strip() == each.sql.strip()
        assert all(sqlite3.complete_statement(statement) for statement in cut)
