"""Migrations: from nothing, twice, at once, and refusing to work on a schema of another release."""

from __future__ import annotations

import pytest

from forge.errors import ForgeError, SchemaError
from forge.job import Enqueued
from forge.storage import Storage, open_storage
from forge.storage.contract.schema import SchemaState
from forge.storage.shared.migrations import migrations
from forge.storage.shared.statements import load_queries

from . import children
from .helpers import columns, full_job, is_sqlite, one, plain_job, prepare, sql, told

pytestmark = pytest.mark.impl_free


def known(storage: Storage) -> list[tuple[int, str]]:
    """Every migration this release has."""
    return [(each.number, each.title) for each in migrations(storage.dialect)]


def test_an_empty_database_is_brought_up_to_date(empty_url: str) -> None:
    with open_storage(empty_url) as storage:
        latest = len(known(storage))
        assert storage.schema_state() == SchemaState(0, latest, tuple(known(storage)))
        assert storage.migrate() == known(storage)
        assert storage.schema_state() == SchemaState(latest, latest, ())
        storage.check_schema()
        new = full_job()
        assert told(storage.enqueue([new])) == told([Enqueued(new.id)])


def test_migrating_again_does_nothing_and_keeps_the_jobs(storage: Storage) -> None:
    new = full_job()
    storage.enqueue([new])
    before = one(storage, new.id)
    assert storage.migrate() == []
    assert one(storage, new.id) == before


def test_ten_processes_migrate_at_once_and_each_migration_is_applied_once(empty_url: str) -> None:
    applied = children.race(children.migrate, [(empty_url,)] * 10)
    with open_storage(empty_url) as storage:
        assert sorted(step for steps in applied for step in steps) == known(storage)
        storage.check_schema()
    assert sql(empty_url, "select number from {migration}") == [(n,) for n in range(1, len(known(storage)) + 1)]


def later(url: str, oldest: int | None) -> None:
    """A later release has migrated the database; which is the oldest that runs on it?"""
    said = "null" if oldest is None else oldest
    into = "insert into {migration} (number, title, oldest, applied_at)"
    sql(url, f"{into} select 999, 'of a later release', {said}, applied_at from {{migration}} limit 1")


def refusal(url: str) -> str:
    """What `check_schema` says, having checked how it says it."""
    with open_storage(url) as storage, pytest.raises(SchemaError) as caught:
        storage.check_schema()
    assert int(caught.value.exit_code) == 6
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_database_without_a_schema_is_refused_with_the_command_to_type(empty_url: str) -> None:
    assert "forge db migrate" in refusal(empty_url)


def test_a_schema_that_is_too_old_is_refused_with_the_command_to_type(empty_url: str) -> None:
    with open_storage(empty_url) as storage:
        storage.migrate()
        latest = len(known(storage))
    sql(empty_url, f"delete from {{migration}} where number = {latest}")
    assert "forge db migrate" in refusal(empty_url)


def test_a_schema_that_is_too_new_is_refused_with_what_to_do(empty_url: str) -> None:
    with open_storage(empty_url) as storage:
        storage.migrate()
    later(empty_url, None)
    message = refusal(empty_url)
    assert "999" in message
    assert "upgrade" in message
    with open_storage(empty_url) as storage:
        assert storage.migrate() == []
        assert storage.schema_state().current == 999


def test_a_newer_schema_on_which_this_release_may_run_is_worked_on_with_a_warning(
    empty_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with open_storage(empty_url) as storage:
        storage.migrate()
        storage.check_schema()
        assert caplog.messages == []
        latest = len(known(storage))
        later(empty_url, latest)
        storage.check_schema()
        (said,) = caplog.messages
        assert said.startswith(f"the schema is at 999, newer than this release, which knows {latest} and may run on it")
        assert told(storage.enqueue([new := full_job()])) == told([Enqueued(new.id)])
    sql(empty_url, f"update {{migration}} set oldest = {latest + 1} where number = 999")
    assert f"needs a release that knows {latest + 1}, this one knows {latest}; upgrade" in refusal(empty_url)


def test_every_migration_from_the_ninth_on_says_which_release_may_run_on_it() -> None:
    for each in migrations("postgres")[8:]:
        assert each.sql.startswith(f"-- oldest: {each.oldest}\n")
        assert each.oldest <= each.number


def test_a_verb_without_a_schema_is_an_error_of_ours(empty_url: str) -> None:
    with open_storage(empty_url) as storage, pytest.raises(ForgeError) as caught:
        storage.enqueue([plain_job()])
    assert "\n" not in str(caught.value)


def test_migrations_are_additive_and_numbered_alike_in_both_databases() -> None:
    both = [[(each.number, each.title, each.oldest) for each in migrations(name)] for name in ("postgres", "sqlite")]
    assert both[0] == both[1]


def test_history_has_room_for_all_that_a_live_job_has_but_for_what_goes_with_its_claim(url: str) -> None:
    tables = columns(url)
    assert tables["job_history"] - tables["job"] == {"finished_at", "result"}
    assert tables["job"] - tables["job_history"] == {"progress", "place"}


def test_both_databases_have_the_same_tables_and_columns(sqlite_url: str, pg_url: str) -> None:
    apart = columns(pg_url)
    apart["pod"] -= {"reaped_at"}  # SQLite has one writer: nobody claims while a pod is removed
    del apart["offer"]  # nobody there could be told of a job
    assert columns(sqlite_url) == apart


def test_every_query_fits_the_migrated_schema(url: str) -> None:
    """A query that names a column no migration made would only fail when its verb is called."""
    for query in load_queries("sqlite" if is_sqlite(url) else "postgres"):
        if not query.sql.startswith("copy"):
            prepare(url, query)
