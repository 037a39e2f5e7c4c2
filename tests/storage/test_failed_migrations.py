"""A migration that fails changes nothing, whatever the cause; once that is gone, it succeeds."""

from __future__ import annotations

from pathlib import Path

import pytest

from forge.errors import ForgeError, SchemaError
from forge.storage import Storage, open_storage
from forge.storage.contract.schema import Migration
from forge.storage.shared.migrations import migrations
from forge.storage.sqlite import SqliteStorage

from .helpers import full_job, is_sqlite, one, sql

pytestmark = pytest.mark.impl_free

EVERYTHING = """
select 'schema', nspname, '', '' from pg_namespace where nspname not like 'pg_toast%'
union all select 'relation', relname, relkind::text, relnamespace::regnamespace::text from pg_class
union all select 'column', attrelid::regclass::text, attname, atttypid::regtype::text from pg_attribute
union all select 'function', proname, prosrc, pronamespace::regnamespace::text from pg_proc
union all select 'type', typname, typtype::text, typnamespace::regnamespace::text from pg_type
order by 1, 2, 3, 4"""


def dump(url: str) -> object:
    """All that the database holds of schemas; of a SQLite file its journal mode too, and its data."""
    if not is_sqlite(url):
        return sql(url, EVERYTHING)
    made = sql(url, "select name, sql from sqlite_schema order by 1")
    tables = [name for (name,) in sql(url, "select name from sqlite_schema where type = 'table' order by 1")]
    return sql(url, "pragma journal_mode"), made, [sql(url, f"select * from {table}") for table in tables]


def make(url: str, statement: str) -> None:
    """A thing of the user's."""
    sql(url, "create table theirs (title text)")
    sql(url, "insert into theirs values ('kept')")
    if statement:
        sql(url, statement)


def add_migrations(monkeypatch: pytest.MonkeyPatch, storage: Storage, *added: str) -> None:
    """Let the release have these, too."""
    known = migrations(storage.dialect)
    more = tuple(Migration(len(known) + i, f"more {i}", text, 1) for i, text in enumerate(added, 1))
    monkeypatch.setattr(f"forge.storage.{storage.dialect}.schema.migrations", lambda *_: known + more)


def refused(storage: Storage) -> str:
    """What `migrate` says."""
    with pytest.raises(ForgeError) as caught:
        storage.migrate()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def check_works(storage: Storage) -> None:
    """A second try succeeds."""
    storage.migrate()
    storage.check_schema()
    new = full_job()
    storage.enqueue([new])
    assert one(storage, new.id).kind == new.kind


def test_the_last_of_all_migrations_fails_and_none_is_applied(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make(empty_url, "")
    before = dump(empty_url)
    with open_storage(empty_url) as storage:
        with monkeypatch.context() as broken:
            add_migrations(broken, storage, "create table second (id integer);\nselect nonsense from nowhere;")
            refused(storage)
            assert storage.schema_state().current == 0
        storage.close()
        assert dump(empty_url) == before
        check_works(storage)


def test_an_upgrade_that_fails_leaves_the_release_before_at_work(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_storage(url) as storage:
        before = dump(url)
        with monkeypatch.context() as broken:
            fine = "create table {} (id integer);".format("forge_more" if is_sqlite(url) else "forge.more")
            add_migrations(broken, storage, fine, f"{fine}\nselect nonsense from nowhere;")
            refused(storage)
        assert dump(url) == before
        check_works(storage)


def test_a_thing_of_the_users_is_in_the_way(empty_url: str) -> None:
    """Of the name that the last migration uses: all before it succeed."""
    name = "forge_metric_writer" if is_sqlite(empty_url) else "forge.metric_writer"
    if not is_sqlite(empty_url):
        sql(empty_url, "create schema forge")
    make(empty_url, f"create view {name} as select title from theirs")
    before = dump(empty_url)
    with open_storage(empty_url) as storage:
        assert "metric_writer" in refused(storage)
        storage.close()
        assert dump(empty_url) == before
        assert sql(empty_url, f"select * from {name}") == [("kept",)]
        sql(empty_url, f"drop view {name}")
        check_works(storage)


@pytest.mark.parametrize("pages", range(3, 40, 8))
def test_the_disk_is_full_and_the_file_stays_as_it_was_byte_for_byte(tmp_path: Path, pages: int) -> None:
    file = tmp_path / "app.db"
    url = f"sqlite:///{file}"
    make(url, "")
    before = file.read_bytes(), dump(url)
    with SqliteStorage(url) as storage:
        with storage._writer.use() as conn:
            conn.rows(f"pragma max_page_count = {pages}")
        assert "free some space" in refused(storage)
        storage.close()
        assert (file.read_bytes(), dump(url)) == before
        assert [each.name for each in tmp_path.iterdir()] == ["app.db"]
        check_works(storage)
        with storage._writer.use() as conn:
            assert conn.rows("pragma journal_mode") == [("wal",)]


def test_a_file_of_a_forge_that_named_its_tables_otherwise_is_refused_in_one_line(sqlite_url: str) -> None:
    for (name,) in sql(sqlite_url, "select name from sqlite_schema where type = 'table' and name like 'forge_%'"):
        sql(sqlite_url, f"alter table {name} rename to {name.removeprefix('forge_')}")
    before = dump(sqlite_url)
    with open_storage(sqlite_url) as storage:
        with pytest.raises(SchemaError, match=r"has the tables of a forge before 0\.1; make a new file"):
            storage.migrate()
        assert dump(sqlite_url) == before
